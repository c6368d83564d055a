"""SVR from scratch: rollout, rewards, advantage, update. No Lightning, no engine, no batching.

Read this file to learn the method. It also checks the trainer: from the same policy, problems and
seed both take the same first optimizer step (``tests/integration/test_minimal_example.py``).

    python examples/svr_from_scratch.py --steps 3
"""

import argparse
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import svr_lightning as svr
from svr_lightning.core.credit import group_advantages
from svr_lightning.core.losses import LossSpec, policy_loss, token_logprobs
from svr_lightning.core.seeds import derive_seed
from svr_lightning.core.types import Problem, ScoredTurn
from svr_lightning.tiny.problems import generate

GROUP, HORIZON, TEMPERATURE, MAX_TOKENS, LENGTH_SCALE = 8, 3, 0.9, 96, 256
LR, WEIGHT_DECAY, BETAS, CLIP = 6e-4, 0.1, (0.9, 0.95), 2.0
LOSS = LossSpec(clip_eps=0.2, beta=0.1)

Tokens = list[int]


@torch.no_grad()
def complete(model: Any, prompts: list[Tokens], seeds: Sequence[int], eos: int) -> list[Tokens]:
    """Sample one completion per prompt, each from its own seed. Recomputes everything: simple."""
    draws = [
        torch.rand(MAX_TOKENS, generator=torch.Generator().manual_seed(s), dtype=torch.float64)
        for s in seeds
    ]
    completions: list[Tokens] = []
    for prompt, draw in zip(prompts, draws, strict=True):
        tokens: Tokens = []
        while len(tokens) < MAX_TOKENS and eos not in tokens:
            logits = model(torch.tensor([prompt + tokens])).logits[0, -1]
            cumulative = (logits / TEMPERATURE).softmax(dim=-1).double().cumsum(dim=-1)
            target = draw[len(tokens)] * cumulative[-1]
            tokens.append(int(torch.searchsorted(cumulative, target, right=True)))
        completions.append(tokens)
    return completions


def encode(tokenizer: Any, messages: list[dict[str, str]]) -> Tokens:
    """Render a prompt with the chat template."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def rollout(
    model: Any, tokenizer: Any, problem: Problem, seed: int, step: int
) -> tuple[list[tuple[Tokens, Tokens]], list[list[ScoredTurn]]]:
    """G trajectories of T_tr turns: the last (prompt, completion) of each, and all their labels."""
    task = svr.get_task(problem.task)
    prompts = [encode(tokenizer, svr.first_turn_messages(task, problem))] * GROUP
    scored: list[list[ScoredTurn]] = [[] for _ in range(GROUP)]
    final: list[tuple[Tokens, Tokens]] = []
    for turn in range(1, HORIZON + 1):
        seeds = [
            derive_seed(seed, step=step, problem_id=problem.id, sample=i, turn=turn)
            for i in range(GROUP)
        ]
        completions = complete(model, prompts, seeds, tokenizer.eos_token_id)
        final = list(zip(prompts, completions, strict=True))
        prompts = []
        for i, tokens in enumerate(completions):
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            check = svr.parse_self_check(text)
            truncated = tokens[-1] != tokenizer.eos_token_id
            scored[i].append(
                ScoredTurn(
                    correct=task.grade(text, problem),
                    truncated=truncated,
                    verdict=check.verdict,
                    confidence=check.confidence,
                    completion_tokens=len(tokens),
                    task_format=task.format_score(text),
                    self_check_format=svr.self_check_format_score(text),
                )
            )
            messages = svr.refinement_messages(  # what the policy wrote, and no label
                task,
                problem,
                previous=text,
                verdict=check.verdict,
                confidence=check.confidence,
                truncated=truncated,
                turn=turn + 1,
            )
            prompts.append(encode(tokenizer, messages))
    return final, scored


def logprobs(model: Any, prompt: Tokens, completion: Tokens) -> Tensor:
    """[1, L] log-probabilities of a completion at the sampling temperature."""
    logits = model(torch.tensor([prompt + completion])).logits[:, len(prompt) - 1 : -1]
    return token_logprobs(logits, torch.tensor([completion]), TEMPERATURE)


def losses(
    policy: Any, reference: Any, final: list[tuple[Tokens, Tokens]], advantages: list[float]
) -> list[Tensor]:
    """One loss per trajectory, over the tokens of its final completion."""
    terms = []
    for (prompt, completion), advantage in zip(final, advantages, strict=True):
        logp = logprobs(policy, prompt, completion)
        with torch.no_grad():
            ref_logp = logprobs(reference, prompt, completion)
        mask = torch.ones_like(logp)
        a = torch.tensor([advantage])
        terms.append(policy_loss(logp, logp.detach(), ref_logp, a, mask, LOSS).loss[0])
    return terms


def make_optimizer(policy: torch.nn.Module, lr: float = LR) -> torch.optim.Optimizer:
    """AdamW without decay on norms and biases."""
    matrices = [p for p in policy.parameters() if p.ndim >= 2]
    vectors = [p for p in policy.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS)


def train_step(
    policy: Any,
    reference: Any,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    problems: Sequence[Problem],
    seed: int,
    step: int,
) -> float:
    """One on-policy optimizer step; returns the mean return R_SVR."""
    all_losses: list[Tensor] = []
    all_returns: list[float] = []
    for problem in problems:
        final, scored = rollout(policy, tokenizer, problem, seed, step)
        returns = [svr.trajectory_return(turns, length_scale=LENGTH_SCALE) for turns in scored]
        all_losses += losses(policy, reference, final, group_advantages(returns))
        all_returns += returns
    optimizer.zero_grad()
    torch.stack(all_losses).mean().backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), CLIP)
    optimizer.step()
    return sum(all_returns) / len(all_returns)


def main() -> None:
    """Train the embedded policy for a few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--problems", type=int, default=2, help="problems per step")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()

    folder = str(files("svr_lightning.tiny") / "countdown_policy")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = AutoModelForCausalLM.from_pretrained(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)
    optimizer = make_optimizer(policy)
    task = svr.get_task("countdown")
    problems = [task.from_row(row) for row in generate("train")]
    for step in range(options.steps):
        first = step * options.problems
        batch = problems[first : first + options.problems]
        value = train_step(policy, reference, tokenizer, optimizer, batch, options.seed, step)
        print(f"step {step + 1}  mean return {value:+.3f}")


if __name__ == "__main__":
    main()
