"""The conditions of the study, and the training run of one of them in a plain loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import svr_lightning as svr
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.rewards import RewardWeights
from svr_lightning.core.schedule import warmup_stable_decay
from svr_lightning.core.stopping import Confident
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.training.logs import rollout_stats

STEPS, PROBLEMS, GROUP, LENGTH_SCALE = 120, 6, 8, 256
TEMPERATURE, MAX_TOKENS, MICRO_BATCH, CLIP = 0.9, 96, 24, 2.0
RATE, BETA = 8e-4, 0.1
KEPT = (
    *("train/accuracy", "train/turn1/accuracy", "train/turn3/accuracy"),
    *("train/verdict/correct", "train/verdict/incorrect", "train/would_stop"),
    *("train/confidence/right", "train/confidence/wrong", "train/confidence/spread"),
    *("train/auroc", "train/brier", "train/reward/solve", "train/reward/verify"),
)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One way to train, from one start."""

    name: str
    asks: str
    """The question that it answers."""
    start: str = "uninformative"
    """``uninformative`` or ``informative``: the warm start's self-checks."""
    recipe: Callable[..., Recipe] = SVR
    weights: RewardWeights = field(default_factory=RewardWeights)
    horizon: int = 3
    group: int = GROUP
    rate: float = RATE
    beta: float = BETA


EVERY_TURN = partial(SVRPlus, turns="all", proper=False)
"""The paper's reward, credited per turn and section."""
CONDITIONS = (
    Condition(name="SVR", asks="the collapse itself"),
    Condition(name="SVR, informative start", asks="the start", start="informative"),
    Condition(name="SVR+, every turn", asks="credit per section", recipe=EVERY_TURN),
    Condition(name="SVR, a quarter of the rate", asks="the learning rate", rate=RATE / 4),
    Condition(
        name="SVR without the overconfidence term",
        asks="the term that punishes CORRECT",
        weights=RewardWeights(over=0.0),
    ),
    Condition(
        name="SVR without verification rewards",
        asks="the verification rewards",
        weights=RewardWeights(cal=0.0, over=0.0, detect=0.0, ready=0.0),
    ),
    Condition(name="SVR, ten times the KL", asks="CORRECT no longer sampled", beta=10 * BETA),
    Condition(name="SVR, one turn", asks="refinement prompts", horizon=1, group=3 * GROUP),
    Condition(
        name="SVR+, every turn, a quarter of the rate",
        asks="both",
        recipe=EVERY_TURN,
        rate=RATE / 4,
    ),
)
"""In the order in which they run: the first ones say most."""


Log = list[dict[str, float | None]]
"""The logged values of every step; None for a value that a rollout does not have."""


def train(
    condition: Condition, policy: Path, rows: list[dict[str, Any]], seed: int
) -> Iterator[dict[str, float | None]]:
    """Train from ``policy``; yields the logged values of every step."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model, reference = (AutoModelForCausalLM.from_pretrained(policy) for _ in range(2))
    reference.requires_grad_(False)
    engine = TransformersEngine(max_batch=160)
    engine.start(model, (tokenizer.eos_token_id,), max_model_len=1024)
    renderer = svr.Renderer(tokenizer, max_prompt_tokens=512, max_model_len=1024)
    loss = LossSpec(clip_eps=0.2, beta=condition.beta)
    recipe = condition.recipe(
        group_size=condition.group,
        horizon=condition.horizon,
        length_scale=LENGTH_SCALE,
        loss=loss,
        weights=condition.weights,
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=condition.rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    problems = _problems(rows, seed)
    for step in range(STEPS):
        scale = warmup_stable_decay(step, STEPS)
        optimizer.param_groups[0]["lr"] = condition.rate * scale
        engine.sync(model, step)
        groups = svr.collect_rollout(
            engine,
            recipe,
            [next(problems) for _ in range(PROBLEMS)],
            renderer=renderer,
            sampling=svr.Decoding(max_completion_tokens=MAX_TOKENS, temperature=TEMPERATURE),
            seed=seed,
            step=step,
        )
        samples = [sample for group in groups for sample in group.samples]
        batches = svr.micro_batches(
            samples, accumulate=-(-len(samples) // MICRO_BATCH), updates=1, version=step
        )
        for batch in batches:
            update = svr.policy_update_loss(model, reference, batch, loss, temperature=TEMPERATURE)
            (update.loss / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        stats = rollout_stats(groups, recipe.protocol(1, Confident())[1])
        yield {key.removeprefix("train/"): stats.get(key) for key in KEPT}


def _problems(rows: list[dict[str, Any]], seed: int) -> Iterator[svr.Problem]:
    task, rng = svr.get_task("countdown"), Random(seed)
    while True:
        for row in rng.sample(rows, len(rows)):
            yield task.from_row(row)
