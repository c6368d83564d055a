"""A rollout as the trainer needs it: its problems before it, and its optimizer steps after it."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lightning.pytorch.utilities import rank_zero_info

from svr_lightning.core.seeds import derive_seed
from svr_lightning.core.types import Problem
from svr_lightning.display import plain
from svr_lightning.recipes.base import Group, Recipe
from svr_lightning.recipes.dialogues import Dialogue
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.update import TrainBatch, dummy_sample, micro_batches, samples_of


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


def show_prompt(renderer: Renderer, dialogue: Dialogue, problem: Problem) -> None:
    """Print a first prompt as it is rendered."""
    text = renderer.text(dialogue.first(problem))
    rank_zero_info(f"\nfirst rendered prompt:\n{plain(text)}")


def warn_of_cut_prompts(
    renderer: Renderer, dialogue: Dialogue, problems: Sequence[Problem]
) -> None:
    """Name problems that do not fit a prompt; each process knows only its own."""
    cut = [problem.id for problem in problems if not renderer.fits(dialogue.first(problem))]
    if cut:
        warnings.warn(
            f"training problems {', '.join(cut)} do not fit model.policy.max_prompt_tokens="
            f"{renderer.max_prompt_tokens}; the left of their text is cut",
            stacklevel=2,
        )


def fresh_problems(
    data: SVRDataModule,
    run_seed: int,
    step: int,
    *,
    draw: int,
    count: int,
    batch_ids: frozenset[str],
    exclude: frozenset[str],
) -> list[Problem]:
    """Training problems for one process in place of degenerate ones.

    The draw is equal on all processes, and each takes its stride of it: no two of them get the same
    problem.

    Args:
        data: the problems, and this process's place among all.
        run_seed: of the run.
        step: optimizer steps before this rollout.
        draw: number of the draw within the rollout.
        count: how many.
        batch_ids: problems of all processes' batches, which are not drawn.
        exclude: problems that this process had already.
    """
    seed = derive_seed(run_seed, step=step, problem_id="", attempt=draw, purpose="resample")
    rank, ranks = data.shard
    drawn = data.fresh_problems(seed, (count + len(exclude)) * ranks, batch_ids)
    mine = [problem for problem in drawn[rank::ranks] if problem.id not in exclude]
    return mine[:count]


def fresh_source(
    data: SVRDataModule,
    run_seed: int,
    step: int,
    batch_ids: frozenset[str],
    warn: Callable[[Sequence[Problem]], None],
) -> Callable[[int, int, frozenset[str]], list[Problem]]:
    """:func:`fresh_problems` of one rollout, each draw shown to ``warn``.

    ``batch_ids`` are the problems of all processes where single ones are replaced (``top_up``);
    whole batches are drawn from all problems.
    """

    def fresh(draw: int, count: int, exclude: frozenset[str]) -> list[Problem]:
        drawn = fresh_problems(
            data,
            run_seed,
            step,
            draw=draw,
            count=count,
            batch_ids=batch_ids,
            exclude=exclude,
        )
        warn(drawn)
        return drawn

    return fresh


def optimizer_steps(
    groups: Sequence[Group],
    recipe: Recipe,
    renderer: Renderer,
    *,
    problems_per_step: int,
    micro_batch_size: int,
    updates: int,
    version: int,
    trainer_logprobs: Callable[[TrainBatch], TrainBatch],
) -> list[list[TrainBatch]]:
    """The micro-batches of the optimizer steps that share a rollout.

    Args:
        groups: of this process.
        recipe: how many sequences a problem is worth.
        renderer: says which tokens are in the loss.
        problems_per_step: of one optimizer step, on this process.
        micro_batch_size: sequences of a micro-batch, on average.
        updates: optimizer steps of the rollout.
        version: optimizer steps of the weights that sampled.
        trainer_logprobs: adds the trainer's log-probabilities, from which ratios start where there
            are several updates. With one update they are the loss's own.
    """
    sequences = problems_per_step * recipe.samples_per_problem
    accumulate = math.ceil(sequences / micro_batch_size)
    batches = micro_batches(
        samples_of(groups, recipe.samples_per_problem),
        accumulate=accumulate,
        updates=updates,
        version=version,
        loss_tokens=renderer.loss_tokens,
        token_choices=renderer.token_choices,
        dummy_sample=dummy_sample(groups),
    )
    if updates > 1:
        batches = [trainer_logprobs(batch) for batch in batches]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
