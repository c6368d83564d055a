"""SVR in a plain PyTorch loop, built from functions of this package.

``collect_rollout`` samples, grades, rewards and credits; ``policy_update_loss`` is the loss. The
trainer uses both: from the same policy, problems and seed it takes the same first optimizer step
(``tests/integration/test_minimal_example.py``). ``svr_from_scratch.py`` spells out what they do.

    python examples/minimal_svr.py --steps 3
"""

import argparse
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import svr_lightning as svr
from svr_lightning.core.losses import LossSpec
from svr_lightning.engines.base import Engine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.sources import DataSource, load_problems

GROUP, HORIZON, TEMPERATURE, MAX_TOKENS, LENGTH_SCALE = 8, 3, 0.9, 96, 256
LR, WEIGHT_DECAY, BETAS, CLIP = 6e-4, 0.1, (0.9, 0.95), 2.0
LOSS = LossSpec(clip_eps=0.2, beta=0.1)
RECIPE = SVR(group_size=GROUP, horizon=HORIZON, length_scale=LENGTH_SCALE, loss=LOSS)
SAMPLING = svr.Decoding(max_completion_tokens=MAX_TOKENS, temperature=TEMPERATURE)
MICRO_BATCH = 8


def make_engine(policy: Any, tokenizer: Any) -> tuple[Engine, svr.Renderer]:
    """What samples completions, and what renders prompts."""
    engine = TransformersEngine()
    engine.start(policy, (tokenizer.eos_token_id,), max_model_len=1024)
    return engine, svr.Renderer(tokenizer, max_prompt_tokens=512, max_model_len=1024)


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
    engine: Engine,
    renderer: svr.Renderer,
    optimizer: torch.optim.Optimizer,
    problems: Sequence[svr.Problem],
    seed: int,
    step: int,
) -> float:
    """One on-policy optimizer step; returns the mean return R_SVR."""
    engine.sync(policy, step)  # the engine samples from the current weights
    groups = svr.collect_rollout(
        engine, RECIPE, problems, renderer=renderer, sampling=SAMPLING, seed=seed, step=step
    )
    samples = [sample for group in groups for sample in group.samples]
    batches = svr.micro_batches(
        samples, accumulate=-(-len(samples) // MICRO_BATCH), updates=1, version=step
    )
    optimizer.zero_grad()
    for batch in batches:
        update = svr.policy_update_loss(policy, reference, batch, LOSS, temperature=TEMPERATURE)
        (update.loss / len(batches)).backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), CLIP)
    optimizer.step()
    returns = [value for group in groups for value in group.returns]
    return sum(returns) / len(returns)


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
    engine, renderer = make_engine(policy, tokenizer)
    optimizer = make_optimizer(policy)
    source = DataSource(name="train", task="countdown", path="embedded:countdown-tiny")
    problems = load_problems(source)
    for step in range(options.steps):
        first = step * options.problems
        batch = problems[first : first + options.problems]
        value = train_step(
            policy, reference, engine, renderer, optimizer, batch, options.seed, step
        )
        print(f"step {step + 1}  mean return {value:+.3f}")


if __name__ == "__main__":
    main()
