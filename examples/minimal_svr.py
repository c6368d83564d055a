"""SVR in a plain PyTorch loop, built from functions of this package.

``collect_rollout`` samples, grades, rewards and credits; ``policy_update_loss`` is the loss. The
trainer uses both: from the same policy, problems and seed it takes the same first optimizer step
(``tests/integration/test_minimal_example.py``). ``svr_from_scratch.py`` spells out what they do.

    python examples/minimal_svr.py --steps 3
"""

import argparse
import copy
from collections.abc import Sequence

import torch

import svr_lightning as svr
from svr_lightning.core.losses import LossSpec
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.sources import DataSource, load_problems

GROUP, HORIZON, TEMPERATURE, MAX_TOKENS, LENGTH_SCALE = 8, 3, 0.9, 96, 256
LR, WEIGHT_DECAY, BETAS, CLIP = 6e-4, 0.1, (0.9, 0.95), 2.0
LOSS = LossSpec(clip_eps=0.2, beta=0.1)
RECIPE = SVR(group_size=GROUP, horizon=HORIZON, length_scale=LENGTH_SCALE, loss=LOSS)
SAMPLING = svr.Decoding(max_completion_tokens=MAX_TOKENS, temperature=TEMPERATURE)
MICRO_BATCH = 8


def load_policy() -> svr.Policy:
    """The embedded policy, with its tokenizer and the engine that samples from it."""
    config = svr.PolicyConfig(max_prompt_tokens=512, max_model_len=1024)
    return svr.Policy.load(config, TransformersEngine())


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
    policy: svr.Policy,
    reference: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    problems: Sequence[svr.Problem],
    seed: int,
    step: int,
) -> float:
    """One on-policy optimizer step; returns the mean return R_SVR."""
    with policy.sampling(step):  # the engine samples from the current weights
        groups = svr.collect_rollout(
            policy.engine,
            RECIPE,
            problems,
            renderer=policy.renderer,
            sampling=SAMPLING,
            seed=seed,
            step=step,
        )
    samples = [sample for group in groups for sample in group.samples]
    batches = svr.micro_batches(
        samples, accumulate=-(-len(samples) // MICRO_BATCH), updates=1, version=step
    )
    optimizer.zero_grad()
    for batch in batches:
        update = svr.policy_update_loss(
            policy.model, reference, batch, LOSS, temperature=TEMPERATURE
        )
        (update.loss / len(batches)).backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), CLIP)
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

    policy = load_policy()
    reference = copy.deepcopy(policy.model).requires_grad_(False)
    optimizer = make_optimizer(policy.model)
    source = DataSource(name="train", task="countdown", path="embedded:countdown-tiny")
    problems = load_problems(source)
    for step in range(options.steps):
        first = step * options.problems
        batch = problems[first : first + options.problems]
        value = train_step(policy, reference, optimizer, batch, options.seed, step)
        print(f"step {step + 1}  mean return {value:+.3f}")


if __name__ == "__main__":
    main()
