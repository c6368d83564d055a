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


class MeteredEngine:
    """An engine that counts what it does.

    Args:
        engine: started and synced; it does the work.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._running = 0
        self.steps = 0
        self.tokens = 0
        """Sampled tokens of completions that have ended."""
        self._filled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Any) -> None:
        """Start or queue a request."""
        self._engine.submit(request)
        self._running += 1

    def step(self) -> Any:
        """Work on all requests."""
        self.steps += 1
        self._filled += min(self._running, self._engine.max_batch)
        outputs = self._engine.step()
        self._running -= len(outputs)
        self.tokens += sum(len(output.token_ids) for output in outputs)
        return outputs

    def stats(self, seconds: float) -> dict[str, float]:
        """What is logged of the ``seconds`` that this engine has worked for."""
        return {
            "speed/rollout": self.tokens / seconds,
            "engine/steps": float(self.steps),
            "engine/batch_fill": self._filled / max(self.steps * self._engine.max_batch, 1),
        }


class ModuleRollouts:
    """Rolls out a module's training problems and makes micro-batches of them.

    ``module`` is an :class:`SVRModule` with a policy in this process; its file imports this one.
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
        engine: Any = MeteredEngine(module.serving.engine)
        part, parts = self._place()
        with module.serving.sampling(module.global_step):
            groups = collect_rollout(
                engine,
                module.recipe,
                problems,
                renderer=module.renderer,
                sampling=module.sampling.decoding(),
                seed=module.seed,
                step=module.global_step,
                resample=module.resample,
                fresh=partial(self._fresh_problems, batch),
                part=part,
                parts=parts,
                show_progress=module.global_rank == 0,
            )
        # The processes of one engine all rolled out the same groups; each trains on its share.
        own = len(groups) // module.ranks_per_engine
        first = module.global_rank % module.ranks_per_engine * own
        groups = groups[first : first + own]
        samples = samples_of(groups, module.recipe.samples_per_problem)
        module.recipe.scheduler.remember(groups, module.global_step, gather_lists)
        stats = rollout_stats(groups)
        stats["time/rollout"] = time.perf_counter() - started
        stats |= engine.stats(stats["time/rollout"])
        sync_seconds = module.serving.sync_seconds()
        if sync_seconds is not None:
            stats["time/sync"] = sync_seconds
        batches = micro_batches(
            samples,
            accumulate=int(module.trainer.accumulate_grad_batches),
            updates=module.updates_per_rollout,
            version=module.global_step,
            loss_tokens=module.renderer.loss_tokens,
            dummy_sample=dummy_sample(groups),
        )
        return [self._with_old_logprobs(batch) for batch in batches], groups, stats

    def _place(self) -> tuple[int, int]:
        """Which engine this process uses, of how many."""
        shared = self._module.ranks_per_engine
        return self._module.global_rank // shared, self._module.trainer.world_size // shared

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

    def _fresh_problems(
        self, batch: frozenset[str], attempt: int, count: int, exclude: frozenset[str]
    ) -> list[Problem]:
        """This engine's share of a draw that all make alike, none of them in ``batch``."""
        module = self._module
        seed = derive_seed(
            module.seed, step=module.global_step, problem_id="", attempt=attempt, purpose="resample"
        )
        part, parts = self._place()
        data: Any = module.trainer.datamodule
        drawn = data.fresh_problems(seed, (count + len(exclude)) * parts, batch)
        fresh = share_of(drawn, count, exclude, part, parts)
        self._name_too_long(fresh)
        return fresh

    def _show_prompt(self, problems: Sequence[Problem]) -> None:
        """Print the first prompt of a run as rendered."""
        if not self._prompt_shown:
            module = self._module
            text = module.renderer.text(module.recipe.dialogue.first(problems[0]))
            rank_zero_info(f"first rendered prompt:\n{plain(text)}")
            self._prompt_shown = True

    def _name_too_long(self, problems: Sequence[Problem]) -> None:
        """Name problems that a prompt cannot hold; each process knows of its own alone."""
        renderer, dialogue = self._module.renderer, self._module.recipe.dialogue
        unfit = [p.id for p in problems if not renderer.fits(dialogue.first(p))]
        if unfit:
            warnings.warn(
                f"training problems {', '.join(unfit)} do not fit model.policy.max_prompt_tokens="
                f"{renderer.max_prompt_tokens}; the left of their text is cut",
                stacklevel=2,
            )
