"""The rollouts of a training: :func:`collect_rollout` on a module's policy, engine and data."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info

from svr_lightning.core.seeds import derive_seed
from svr_lightning.core.types import Problem
from svr_lightning.display import plain
from svr_lightning.recipes.base import Group
from svr_lightning.rollout.collect import collect_rollout, share_of
from svr_lightning.training.batching import TrainBatch, dummy_sample, micro_batches, samples_of
from svr_lightning.training.distributed import gather_lists
from svr_lightning.training.logs import rollout_stats
from svr_lightning.training.update import completion_logprobs


class ModuleRollouts:
    """Rolls out a module's training problems and makes micro-batches of them.

    Args:
        module: with a policy in this process.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._prompt_shown = False

    def collect(
        self, problems: list[Problem]
    ) -> tuple[list[TrainBatch], list[Group], dict[str, float]]:
        """One on-policy batch.

        Returns:
            The micro-batches of its optimizer steps, the groups that this process trains on, and
            what is logged of them.
        """
        module = self._module
        started = time.perf_counter()
        module.serving.sync_seconds()  # of an evaluation since, which is none of the rollout's
        self._show_prompt(problems)
        self._name_too_long(problems)
        own_ids = [problem.id for problem in problems]
        # Of all processes, where single groups are replaced; whole batches are drawn from all.
        batch = frozenset(gather_lists(own_ids) if module.resample == "top_up" else [])
        with module.serving.sampling(module.global_step):
            groups = collect_rollout(
                module.serving.engine,
                module.recipe,
                problems,
                renderer=module.renderer,
                sampling=module.sampling.decoding(),
                seed=module.seed,
                step=module.global_step,
                resample=module.resample,
                fresh=partial(self._fresh_problems, batch),
                part=module.global_rank // module.ranks_per_engine,
                parts=module.trainer.world_size // module.ranks_per_engine,
                show_progress=module.global_rank == 0,
            )
        groups = self._own_share(groups)
        samples = samples_of(groups, module.recipe.samples_per_problem)
        module.recipe.scheduler.remember(groups, module.global_step, gather_lists)
        stats = rollout_stats(groups)
        stats["time/rollout"] = time.perf_counter() - started
        sync_seconds = module.serving.sync_seconds()
        if sync_seconds is not None:
            stats["time/sync"] = sync_seconds
        batches = micro_batches(
            samples,
            accumulate=int(module.trainer.accumulate_grad_batches),
            updates=module.updates_per_rollout,
            version=module.global_step,
            max_tokens=module.policy_config.max_tokens_per_forward,
            loss_tokens=module.renderer.loss_tokens,
            dummy_sample=dummy_sample(groups),
        )
        return [self._with_old_logprobs(batch) for batch in batches], groups, stats

    def _with_old_logprobs(self, batch: TrainBatch) -> TrainBatch:
        """Where several updates share a rollout, note what their ratios start from.

        The engine's log-probabilities would not do: its rounding can be wider than the clip range.
        """
        module = self._module
        if module.updates_per_rollout == 1:
            return batch
        with torch.no_grad(), module.trainer.precision_plugin.train_step_context():
            here = batch.to(module.device)
            old = completion_logprobs(module.policy, here, module.sampling.temperature)
        return replace(batch, old_logprobs=old.to(batch.logprobs.device))

    def _own_share(self, groups: list[Group]) -> list[Group]:
        """What this process trains on of the groups that its engine's processes all rolled out."""
        module = self._module
        own = len(groups) // module.ranks_per_engine
        first = module.global_rank % module.ranks_per_engine * own
        return groups[first : first + own]

    def _fresh_problems(
        self, batch: frozenset[str], attempt: int, count: int, exclude: frozenset[str]
    ) -> list[Problem]:
        """This engine's share of a draw that all make alike, none of them in ``batch``."""
        module = self._module
        seed = derive_seed(
            module.seed, step=module.global_step, problem_id="", attempt=attempt, purpose="resample"
        )
        engines = module.trainer.world_size // module.ranks_per_engine
        data: Any = module.trainer.datamodule
        drawn = data.fresh_problems(seed, (count + len(exclude)) * engines, batch)
        own = module.global_rank // module.ranks_per_engine
        fresh = share_of(drawn, count, exclude, own, engines)
        self._name_too_long(fresh)
        return fresh

    def _show_prompt(self, problems: Sequence[Problem]) -> None:
        """Print the first prompt of a run as rendered."""
        module = self._module
        if not self._prompt_shown:
            text = module.renderer.text(module.recipe.dialogue.first(problems[0]))
            rank_zero_info(f"first rendered prompt:\n{plain(text)}")
            self._prompt_shown = True

    def _name_too_long(self, problems: Sequence[Problem]) -> None:
        """Name problems that a prompt cannot hold; each process knows of its own alone."""
        module = self._module
        fits = module.renderer.fits
        unfit = [p.id for p in problems if not fits(module.recipe.dialogue.first(p))]
        if unfit:
            warnings.warn(
                f"training problems {', '.join(unfit)} do not fit model.policy.max_prompt_tokens="
                f"{module.renderer.max_prompt_tokens}; the left of their text is cut",
                stacklevel=2,
            )
