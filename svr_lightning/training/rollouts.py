"""A rollout as the trainer needs it: its problems before it, and its optimizer steps after it."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Problem
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.dialogues import Dialogue
from svr_lightning.rollout.collect import FreshProblems
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.update import TrainBatch, dummy_sample, micro_batches, samples_of

if TYPE_CHECKING:
    from svr_lightning.training.module import SVRModule


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What one rollout gives to train on; the fit loop hands it to ``training_step``."""

    groups: list[Group]
    """One for each problem: trajectories, labels, rewards and advantages."""
    steps: list[list[TrainBatch]]
    """The micro-batches of each optimizer step."""
    stats: dict[str, float]
    """What is logged with the first of them."""

    @property
    def problem_ids(self) -> list[str]:
        """The problems that it ended with."""
        return [group.problem.id for group in self.groups]


def warn_of_cut_prompts(
    renderer: Renderer, dialogue: Dialogue, problems: Sequence[Problem]
) -> None:
    """Warn of problems whose text does not fit a prompt; each process knows only its own."""
    cut = [problem.id for problem in problems if not renderer.fits(dialogue.first(problem))]
    if cut:
        warnings.warn(
            f"training problems {', '.join(cut)} do not fit model.policy.max_prompt_tokens="
            f"{renderer.max_prompt_tokens}; the left of their text is cut",
            stacklevel=2,
        )


def fresh_source(
    data: SVRDataModule,
    run_seed: int,
    step: int,
    batch_ids: frozenset[str],
    warn: Callable[[Sequence[Problem]], None],
) -> FreshProblems:
    """A function that draws training problems for one process, to replace degenerate groups.

    The draw is the same on all processes, and each takes its own stride of it, so that no two get
    the same problem.

    Args:
        data: the problems, and this process's place among all.
        run_seed: of the run.
        step: optimizer steps before this rollout.
        batch_ids: problems that are not drawn: those of all processes where single ones are
            replaced (``top_up``); none where whole batches are drawn.
        warn: called with the problems of each draw.
    """
    rank, ranks = data.shard

    def fresh(draw: int, count: int, exclude: frozenset[str]) -> list[Problem]:
        seed = SeedContext(run_seed=run_seed, step=step, attempt=draw).seed("", purpose="resample")
        drawn = data.fresh_problems(seed, (count + len(exclude)) * ranks, batch_ids)
        mine = [problem for problem in drawn[rank::ranks] if problem.id not in exclude][:count]
        warn(mine)
        return mine

    return fresh


def optimizer_steps(
    module: "SVRModule", groups: Sequence[Group], version: int
) -> list[list[TrainBatch]]:
    """The micro-batches of the optimizer steps that share a rollout.

    Where there are several steps, ratios start from the trainer's log-probabilities; of a single
    one they are the loss's own.

    Args:
        module: the training.
        groups: of this process.
        version: optimizer steps of the weights that sampled.
    """
    renderer = module.actor.renderer
    updates = module.updates_per_rollout
    problems = module.data.problems_per_step // module.trainer.world_size
    sequences = problems * module.recipe.samples_per_problem
    accumulate = math.ceil(sequences / module.micro_batch_size)
    batches = micro_batches(
        samples_of(groups, module.recipe.samples_per_problem),
        accumulate=accumulate,
        updates=updates,
        version=version,
        renderer=renderer,
        dummy_sample=dummy_sample(groups),
    )
    if updates > 1:
        batches = [_with_trainer_logprobs(module, batch) for batch in batches]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


def _with_trainer_logprobs(module: "SVRModule", batch: TrainBatch) -> TrainBatch:
    # The engine's own are unsuitable: their rounding can exceed the clip range.
    with module.trainer.precision_plugin.train_step_context():
        logprobs = module.actor.logprobs(batch.to(module.device), module.sampling.temperature)
    return replace(batch, trainer_logprobs=logprobs.to(batch.engine_logprobs.device))
