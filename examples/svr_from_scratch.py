"""SVR from scratch: prompts, self-check, reward, advantage, loss and stopping rule in one file.

The method is all here, in the order in which it happens. The package only lends its half-million-
parameter policy and the task: Countdown's problems, and whether an answer solves one. Nothing is
batched, cached or configurable. From the same policy, problems and seed, :func:`train_step` takes
the trainer's first optimizer step (``tests/integration/test_minimal_example.py``). docs/method.md
explains each part.

    python examples/svr_from_scratch.py --steps 3
"""

import argparse
import copy
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from svr_lightning import Problem, get_task
from svr_lightning.training.sources import DataSource, load_problems

GROUP, HORIZON = 8, 3  # G trajectories per problem, T_tr turns each
MAX_TURNS, THRESHOLD = 10, 0.85  # T_max and gamma: only inference stops early
TEMPERATURE, MAX_TOKENS, LENGTH_SCALE = 0.9, 96, 256
LR, WEIGHT_DECAY, BETAS, CLIP_NORM = 6e-4, 0.1, (0.9, 0.95), 2.0
CLIP_EPS, BETA = 0.2, 0.1  # of the loss: clip range, weight of the KL term
PROBLEMS, SEED = 2, 42  # problems per step, seed of all draws
TASK = get_task("countdown")


# 1. The prompts. They show what the policy wrote, and never whether it was right. (The package cuts
# drafts of more than 512 characters, which this policy does not write.)

SYSTEM = """\
You are a careful math assistant who audits your own work.
First reason step-by-step inside <think>...</think>. \
Then give the final answer inside <answer>YOUR_EQUATION</answer>.
Finally, on a new line, output a self-verification in EXACTLY this form: \
<self_check>VERDICT: CORRECT, INCORRECT, or UNSURE; CONFIDENCE: a number in [0,1] </self_check>
Be honest and well-calibrated: \
only report CORRECT with high confidence after verifying every step."""

CUT_OFF = """\
Your previous response was CUT OFF before completion. Discard it and produce a fresh, COMPLETE \
solution. Keep <think>...</think> concise so the entire answer (including <answer>...</answer> \
and the <self_check> block) fits within the budget."""

RE_DERIVE = """\
In your previous attempt you judged the answer CORRECT (self-confidence {c:.2f}), with NO \
external confirmation. Independently re-derive the single most error-prone step. If it still \
holds, restate the SAME final answer in <answer>...</answer> and report VERDICT: CORRECT. If you \
now find a mistake, fix it and report your updated verdict honestly."""

CORRECT_IT = """\
In your previous attempt you judged the answer likely WRONG or were unsure (self-confidence \
{c:.2f}). Locate the specific logical or arithmetic error, then produce a corrected, complete \
step-by-step solution with the final answer in <answer>...</answer> and an honest <self_check> \
block."""


@dataclass(frozen=True)
class Turn:
    """One completion, and the self-check that it ends with. It has no label."""

    prompt: list[int]
    tokens: list[int]
    text: str
    truncated: bool  # q_t: it ran into MAX_TOKENS
    verdict: str  # v_t
    confidence: float  # c_t
    check_format: float  # r_scfmt


def user_message(problem: Problem, turns: list[Turn]) -> str:
    """The question alone at turn 1; later the question, the last draft and what to do with it."""
    if not turns:
        return problem.question
    last = turns[-1]
    header = f"{last.verdict} (conf {last.confidence:.2f})"
    instruction = RE_DERIVE if last.verdict == "CORRECT" else CORRECT_IT
    if last.truncated:
        header, instruction = "TRUNCATED", CUT_OFF
    return (
        f"[T={len(turns) + 1}] Your self-verification last turn: {header}\n"
        f"Question: {problem.question}\n\n"
        f"Your previous solution:\n{last.text}\n\n"
        f"{instruction.format(c=last.confidence)}"
    )


# 2. The self-check: a verdict and a confidence. Its form is scored strictly, and it is read
# leniently. The package reads further spellings, which this policy never writes.

BLOCK = re.compile(r"<self_check>(.*?)</self_check>", re.DOTALL)
VERDICT = re.compile(r"\bVERDICT: (CORRECT|INCORRECT|UNSURE)\b")
CONFIDENCE = re.compile(r"\bCONFIDENCE: (\d+\.?\d*|\.\d+)")
PRIOR = {"CORRECT": 0.8, "INCORRECT": 0.2, "UNSURE": 0.5}  # all of them below THRESHOLD


def parse_self_check(text: str) -> tuple[str, float, float]:
    """v_t, c_t, and r_scfmt: 1 for a block with both fields, 0 for a broken one, -1 for none.

    A missing verdict is read as UNSURE, a missing confidence as the verdict's prior.
    """
    final = text.rpartition("</think>")[2]  # the reasoning may quote other self-checks
    block = BLOCK.search(final)
    scope = block[1] if block else final
    word, number = VERDICT.search(scope), CONFIDENCE.search(scope)
    verdict = word[1] if word else "UNSURE"
    confidence = min(float(number[1]), 1.0) if number else PRIOR[verdict]
    if "<self_check>" not in final:
        return verdict, confidence, -1.0
    return verdict, confidence, float(bool(block and word and number))


def task_format(text: str) -> float:
    """r_taskfmt: 1 for reasoning, then an answer, and nothing else but the self-check."""
    form = r"<think>.*?</think>\s*<answer>.*?</answer>"
    return float(bool(re.fullmatch(form, BLOCK.sub("", text).strip(), re.DOTALL)))


# 3. One trajectory. Training takes all its turns; inference stops at the first confident CORRECT.

Place = tuple[int | str, ...]  # step, problem, trajectory, turn: each has a seed of its own


def refine(
    model: Any, tokenizer: Any, problem: Problem, place: Place, horizon: int, adaptive: bool = False
) -> list[Turn]:
    """One turn after another; each prompt shows the turn before."""
    turns: list[Turn] = []
    while len(turns) < horizon:
        user = {"role": "user", "content": user_message(problem, turns)}
        messages = [{"role": "system", "content": SYSTEM}, user]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = list(tokenizer.encode(text, add_special_tokens=False))
        tokens = sample(model, prompt, (*place, len(turns) + 1), tokenizer.eos_token_id)
        written = tokenizer.decode(tokens, skip_special_tokens=True)
        truncated = tokens[-1] != tokenizer.eos_token_id
        turns.append(Turn(prompt, tokens, written, truncated, *parse_self_check(written)))
        sure = turns[-1].verdict == "CORRECT" and turns[-1].confidence >= THRESHOLD
        if adaptive and sure and not truncated:
            break
    return turns


@torch.no_grad()
def sample(model: Any, prompt: list[int], place: Place, eos: int) -> list[int]:
    """A completion, token by token, by inverting each distribution at a uniform number."""
    key = "\0".join(map(str, (SEED, *place, 0, "generate")))
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(MAX_TOKENS, generator=generator, dtype=torch.float64)
    tokens: list[int] = []
    new, cache = prompt, None
    while len(tokens) < MAX_TOKENS and eos not in tokens:
        output = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        cumulative = (output.logits[0, -1] / TEMPERATURE).softmax(dim=-1).double().cumsum(dim=-1)
        target = draws[len(tokens)] * cumulative[-1]
        tokens.append(int(torch.searchsorted(cumulative, target, right=True)))
        new, cache = tokens[-1:], output.past_key_values
    return tokens


# 4. The reward. Only here does the label y_t matter.

# By (y_{t-1}, y_t): +0.3 for getting better and -0.3 for getting worse; on top of that, +0.3 if a
# correct answer is kept, -0.5 if it is lost, and -0.3 if a wrong answer stays wrong.
PROGRESS = {(0, 1): 0.3, (1, 1): 0.3, (1, 0): -0.3 - 0.5, (0, 0): -0.3}


def rewards(turns: list[Turn], problem: Problem) -> list[float]:
    """r_t = solve + verify + format of every turn, with the paper's coefficients."""
    labels = [int(TASK.grade(turn.text, problem)) for turn in turns]
    earned: list[float] = []
    for turn, y, before in zip(turns, labels, [None, *labels], strict=False):
        q, c = turn.truncated, turn.confidence
        says_right, says_wrong = turn.verdict == "CORRECT", turn.verdict == "INCORRECT"
        absolute = y * (1 - 0.5 * min(len(turn.tokens), LENGTH_SCALE) / LENGTH_SCALE)
        solve = absolute + PROGRESS.get((before, y), 0.0) - 0.5 * q  # no progress at turn 1
        verify = (
            0.5 * (1 - (c - y) ** 2)  # calibration: a Brier score
            - 0.8 * c * (says_right and not y)  # overconfidence
            + 0.2 * (says_wrong and not y)  # an error detected
            + 0.3 * c * (says_right and y)  # ready to stop
        )
        form = 0.4 * (task_format(turn.text) + turn.check_format)
        earned.append(solve + (0.0 if q else verify) + form)
    return earned


# 5. The update: a trajectory's return, compared with its group, moves its last completion.


def advantages(returns: list[float]) -> list[float]:
    """A_i = (R_i - mean) / (std + 1e-4) within one problem's group."""
    mean, scale = fmean(returns), stdev(returns) + 1e-4
    return [(one - mean) / scale for one in returns]


def logprobs(model: Any, turn: Turn) -> Tensor:
    """[L] log-probabilities of a completion's tokens, at the sampling temperature."""
    logits = model(torch.tensor([turn.prompt + turn.tokens])).logits[0, len(turn.prompt) - 1 : -1]
    chosen = torch.tensor(turn.tokens)
    return (logits / TEMPERATURE).log_softmax(dim=-1)[torch.arange(len(chosen)), chosen]


def sequence_loss(policy: Any, reference: Any, turn: Turn, advantage: float) -> Tensor:
    """GRPO's clipped surrogate and a KL penalty, averaged over one completion's tokens."""
    logp = logprobs(policy, turn)
    with torch.no_grad():
        reference_logp = logprobs(reference, turn)
    ratio = (logp - logp.detach()).exp()  # 1, with the gradient of logp: one update per rollout
    clipped = ratio.clamp(1 - CLIP_EPS, 1 + CLIP_EPS)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    gap = reference_logp - logp
    return (BETA * (gap.exp() - gap - 1) - surrogate).mean()


def make_optimizer(policy: torch.nn.Module, lr: float = LR) -> torch.optim.Optimizer:
    """AdamW, without weight decay on norms and biases."""
    groups = [
        {"params": [p for p in policy.parameters() if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in policy.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS)


def train_step(
    policy: Any, reference: Any, tokenizer: Any, optimizer: Any, problems: list[Problem], step: int
) -> tuple[list[tuple[list[Turn], list[float], float]], float]:
    """One update; returns turns, rewards and advantage of each trajectory, and the loss."""
    seen: list[tuple[list[Turn], list[float], float]] = []
    for problem in problems:
        places: list[Place] = [(step, problem.id, i) for i in range(GROUP)]
        group = [refine(policy, tokenizer, problem, place, HORIZON) for place in places]
        earned = [rewards(turns, problem) for turns in group]
        seen += zip(group, earned, advantages([fmean(one) for one in earned]), strict=True)
    losses = [sequence_loss(policy, reference, turns[-1], a) for turns, _, a in seen]
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), CLIP_NORM)
    optimizer.step()
    return seen, loss.item()


def main() -> None:
    """Train the embedded policy for a few steps, then watch it solve a new problem."""
    parser = argparse.ArgumentParser(description="SVR in one file")
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)  # for a policy this small more threads take longer

    folder = str(files("svr_lightning.tiny") / "countdown_policy")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = AutoModelForCausalLM.from_pretrained(folder)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = make_optimizer(policy)
    tiny = {"task": "countdown", "path": "embedded:countdown-tiny"}
    problems = load_problems(DataSource(name="train", **tiny))
    for step in range(steps):
        chosen = problems[step * PROBLEMS : (step + 1) * PROBLEMS]
        seen, _ = train_step(policy, reference, tokenizer, optimizer, chosen, step)
        print(f"step {step + 1}  mean return {fmean(fmean(earned) for _, earned, _ in seen):+.3f}")

    problem = load_problems(DataSource(name="test", split="test", **tiny))[0]
    print(problem.question)
    place = (steps, problem.id, 0)
    for turn in refine(policy, tokenizer, problem, place, MAX_TURNS, adaptive=True):
        print(f"\n{turn.text}\n({'right' if TASK.grade(turn.text, problem) else 'wrong'})")


if __name__ == "__main__":
    main()
