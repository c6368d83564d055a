"""The LightningModule of a training: one rollout, then its optimizer steps.

:meth:`SVRModule.collect` and :meth:`SVRModule.training_step` are the loop of
``examples/minimal_svr.py``; the fit loop calls one, then the other. Loading and evaluating the
policy are the base class's.
"""

import math
import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from svr_lightning.core.ranges import Count, check_arguments
from svr_lightning.core.seeds import derive_seed
from svr_lightning.core.types import Decoding, Problem
from svr_lightning.display import plain
from svr_lightning.engines.acting_weights import adapters_of
from svr_lightning.engines.base import Engine
from svr_lightning.errors import require
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.policy import RemotePolicy, seconds_now
from svr_lightning.recipes.base import Group, Recipe
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.collect import ResampleMode, collect_rollout
from svr_lightning.training.checkpoint import check_adapters, check_weights, without_reference
from svr_lightning.training.config import (
    EvaluationConfig,
    OptimizerConfig,
    ReferenceConfig,
    check_sampling,
)
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.distributed import SVRDeepSpeedStrategy, check_precision
from svr_lightning.training.evaluating import PolicyModule
from svr_lightning.training.logs import (
    CSVLog,
    combined,
    gather_lists,
    nothing_to_learn,
    peak_memory,
    rollout_stats,
)
from svr_lightning.training.optimizer import (
    clip_gradients,
    make_optimizer,
    make_reference,
    mix_reference,
    set_scheduled_rates,
)
from svr_lightning.training.trainer import RolloutFitLoop
from svr_lightning.training.update import (
    TrainBatch,
    dummy_sample,
    micro_batches,
    policy_update_loss,
    samples_of,
)

LOGPROB_DIFF_LIMIT = 0.1
"""Mean difference in nats between trainer and engine above which a warning is given. Rounding to
bf16 explains about 0.03; another policy's weights make several tenths."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What one rollout gives to train on."""

    steps: list[list[TrainBatch]]
    """The micro-batches of each optimizer step."""
    stats: dict[str, float]
    """What is logged with the first of them."""


class SVRModule(PolicyModule):
    """Trains a policy with a recipe and evaluates it with adaptive inference.

    Args:
        policy: which model, and how it is prompted.
        recipe: the training method.
        sampling: how rollouts are drawn.
        optimizer: AdamW, its schedule and the gradient's clipping.
        reference: how the reference follows the policy.
        evaluation: adaptive inference, or samples for majority voting.
        engine: what samples; None chooses vLLM if the policy is on a GPU and vLLM is installed,
            else the transformers engine. With a server's the module evaluates only, and loads no
            policy.
        resample: what to do about problems whose trajectories have equal returns.
        updates_per_rollout: optimizer steps per rollout; above 1 ratio and clip have an effect.
        micro_batch_size: sequences per forward and backward pass on one process, on average: a
            micro-batch of short ones may hold more, one of long ones fewer. As many micro-batches
            as an optimizer step needs are accumulated, which does not change the gradient.
        seed: of every random draw; the command line sets it from ``seed_everything``.
    """

    reference: Any
    """A model, or with adapters a substitute for one; None if the loss needs none."""

    @check_arguments
    def __init__(
        self,
        policy: PolicyConfig = PolicyConfig(),  # noqa: B008 - frozen, and the CLI shows it
        recipe: Recipe | None = None,
        sampling: Decoding = Decoding(),  # noqa: B008
        optimizer: OptimizerConfig = OptimizerConfig(),  # noqa: B008
        reference: ReferenceConfig = ReferenceConfig(),  # noqa: B008
        evaluation: EvaluationConfig = EvaluationConfig(),  # noqa: B008
        engine: Engine | None = None,
        resample: ResampleMode = "top_up",
        updates_per_rollout: Count = 1,
        micro_batch_size: Count = 8,
        seed: int = 42,
    ) -> None:
        super().__init__(policy, recipe or SVR(), evaluation, engine, seed)
        check_sampling(self.recipe, sampling, updates_per_rollout)
        self.automatic_optimization = False
        self.sampling = sampling
        self.optimizer_config = optimizer
        self.reference_config = reference
        self.resample = resample
        self.updates_per_rollout = updates_per_rollout
        self.micro_batch_size = micro_batch_size
        self.reference = None
        self.groups: list[Group] = []
        """The groups of the latest rollout, for observers."""
        self._prompt_shown = self._warned_of_nothing = False

    # --- before the first step ------------------------------------------------------------------

    def configure_model(self) -> None:
        """Load the policy once, and copy it as the reference if the loss has a KL term."""
        super().configure_model()
        if not self.trains or not self.recipe.loss.beta or isinstance(self.actor, RemotePolicy):
            return
        if self.reference is None:
            self.reference = make_reference(self.policy, self.reference_config)

    def setup(self, stage: str) -> None:
        """Check what data, trainer, engine and precision can do together."""
        require(
            isinstance(getattr(self.trainer, "datamodule", None), SVRDataModule),
            "SVRModule needs the problems of an SVRDataModule: trainer.fit(module, "
            "datamodule=SVRDataModule(train=..., problems_per_step=...))",
        )
        require(
            stage != "fit" or isinstance(self.trainer.fit_loop, RolloutFitLoop),
            "a stock lightning Trainer has no rollouts to train on: use svr_lightning.SVRTrainer, "
            "or write a loop of your own with collect_rollout and policy_update_loss",
        )
        self.report_operating_point(stage)
        if stage != "fit":
            return
        require(
            not isinstance(self.actor, RemotePolicy),
            f"model.engine={type(self.engine).__name__} returns no token ids, which training "
            "needs; leave model.engine out, or use TransformersEngine, VLLMEngine or ServersEngine",
        )
        for logger in self.trainer.loggers:
            logger.log_hyperparams(self.run_config)
        sharded = isinstance(self.trainer.strategy, SVRDeepSpeedStrategy)
        require(
            not (sharded and self.policy_config.lora),
            "model.policy.lora leaves DeepSpeed next to nothing to shard; set trainer.strategy=ddp "
            "and trainer.precision=bf16-mixed",
        )
        check_precision(str(self.trainer.precision), sharded=sharded)

    def configure_optimizers(self) -> Any:
        """AdamW over the policy, warmup-stable-decay over the planned optimizer steps."""
        total = self.trainer.estimated_stepping_batches
        require(
            math.isfinite(total),
            "trainer.max_steps and trainer.max_epochs are both unlimited, and the learning-rate "
            "schedule needs a length; set one of them",
        )
        return make_optimizer(self.policy, self.optimizer_config, int(total))

    def on_train_start(self) -> None:
        """Cut the logs of a resumed run back to the checkpoint, and continue on its schedule."""
        for logger in self.trainer.loggers:
            if isinstance(logger, CSVLog):
                logger.keep(lambda step, _: step <= self.global_step)
        set_scheduled_rates(self.lr_schedulers())
        self.actor.start_watching()

    def on_train_batch_end(self, *_: Any) -> None:
        """Remember what a checkpoint of an interrupted run holds of the loop."""
        loop = self.trainer.fit_loop
        loop.resumable = loop.state_dict()  # type: ignore[attr-defined]

    # --- one rollout ----------------------------------------------------------------------------

    @torch.no_grad()
    def collect(self, problems: list[Problem]) -> Rollout:
        """Roll out one batch of problems with the current weights."""
        started = time.perf_counter()
        self._show_prompt(problems)
        self._warn_of_cut_prompts(problems)
        # Of all processes if single groups are replaced; whole batches are drawn from all problems.
        replaces = self.resample == "top_up"
        batch_ids = gather_lists([problem.id for problem in problems]) if replaces else []
        with (
            self.actor.sampling(self.global_step) as sync_seconds,
            self.trainer.profiler.profile("rollout"),  # type: ignore[attr-defined]
        ):
            groups = collect_rollout(
                self.actor.engine,
                self.recipe,
                problems,
                renderer=self.actor.renderer,
                sampling=self.sampling,
                seed=self.seed,
                step=self.global_step,
                resample=self.resample,
                fresh=partial(self._fresh_problems, frozenset(batch_ids)),
                show_progress=self.shows_progress,
            )
        self.groups = groups
        stats = rollout_stats(groups, self.recipe)
        stats["time/rollout"] = time.perf_counter() - started
        turns = [turn for group in groups for scored in group.scored for turn in scored]
        tokens = sum(turn.completion_tokens for turn in turns)
        stats["speed/rollout"] = tokens / stats["time/rollout"]
        if sync_seconds is not None:
            stats["time/sync"] = sync_seconds
        if self.trainer.world_size > 1:
            waiting = time.perf_counter()
            self.trainer.strategy.barrier()
            stats["time/wait"] = time.perf_counter() - waiting
        return Rollout(steps=self._optimizer_steps(groups), stats=stats)

    def _optimizer_steps(self, groups: Sequence[Group]) -> list[list[TrainBatch]]:
        """The micro-batches of the optimizer steps that share a rollout."""
        problems = self.data.problems_per_step // self.trainer.world_size
        sequences = problems * self.recipe.samples_per_problem
        accumulate = math.ceil(sequences / self.micro_batch_size)
        batches = micro_batches(
            samples_of(groups, self.recipe.samples_per_problem),
            accumulate=accumulate,
            updates=self.updates_per_rollout,
            version=self.global_step,
            loss_tokens=self.actor.renderer.loss_tokens,
            token_choices=self.actor.renderer.token_choices,
            dummy_sample=dummy_sample(groups),
        )
        if self.updates_per_rollout > 1:
            batches = [self._with_old_logprobs(batch) for batch in batches]
        return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]

    def _with_old_logprobs(self, batch: TrainBatch) -> TrainBatch:
        """Store the log-probabilities that ratios start from.

        The engine's are unsuitable: their rounding can exceed the clip range.
        """
        with self.trainer.precision_plugin.train_step_context():
            here = batch.to(self.device)
            old = self.actor.logprobs(here, self.sampling.temperature)
        return replace(batch, old_logprobs=old.to(batch.logprobs.device))

    def _fresh_problems(
        self, batch_ids: frozenset[str], draw: int, count: int, exclude: frozenset[str]
    ) -> list[Problem]:
        """This process's stride of a draw that is equal on all, without a batch's problems."""
        seed = derive_seed(
            self.seed, step=self.global_step, problem_id="", attempt=draw, purpose="resample"
        )
        rank, ranks = self.data.shard
        drawn = self.data.fresh_problems(seed, (count + len(exclude)) * ranks, batch_ids)
        fresh = [problem for problem in drawn[rank::ranks] if problem.id not in exclude][:count]
        self._warn_of_cut_prompts(fresh)
        return fresh

    def _show_prompt(self, problems: Sequence[Problem]) -> None:
        """Print the first prompt of a run as rendered."""
        if not self._prompt_shown:
            text = self.actor.renderer.text(self.recipe.dialogue.first(problems[0]))
            rank_zero_info(f"\nfirst rendered prompt:\n{plain(text)}")
            self._prompt_shown = True

    def _warn_of_cut_prompts(self, problems: Sequence[Problem]) -> None:
        """Name problems that do not fit a prompt; each process knows only its own."""
        first = self.recipe.dialogue.first
        unfit = [one.id for one in problems if not self.actor.renderer.fits(first(one))]
        if unfit:
            warnings.warn(
                f"training problems {', '.join(unfit)} do not fit model.policy.max_prompt_tokens="
                f"{self.actor.renderer.max_prompt_tokens}; the left of their text is cut",
                stacklevel=2,
            )

    # --- its optimizer steps --------------------------------------------------------------------

    def training_step(self, rollout: Rollout, batch_idx: int) -> None:
        """Train on one rollout."""
        stats = rollout.stats
        for batches in rollout.steps:
            if self.global_step == self.trainer.max_steps:
                break
            self._update(batches, stats)
            stats = {}

    def _update(self, batches: Sequence[TrainBatch], stats: dict[str, float]) -> None:
        """One optimizer step: accumulate the gradient, clip it, step, and log with ``stats``."""
        step, started = self.global_step + 1, seconds_now()
        logged = []
        for number, batch in enumerate(batches, start=1):
            here = batch.to(self.device)
            with self._gradient_sync(last=number == len(batches)):
                update = policy_update_loss(
                    self.policy,
                    self.reference,
                    here,
                    self.recipe.loss,
                    temperature=self.sampling.temperature,
                )
                _require_finite("loss", update.loss.item(), step, batch.group_ids)
                with torch.autocast(self.device.type, enabled=False):
                    self.manual_backward(update.loss / len(batches))
            logged.append({name: value.item() for name, value in update.logged.items()})
        seconds = seconds_now() - started
        optimizer: Any = self.optimizers()
        stats = {
            **combined(logged),
            "time/update": seconds,
            "speed/update": sum(sum(batch.lengths) for batch in batches) / seconds,
            "memory/peak": peak_memory(self.device),
            **stats,
            "train/lr": optimizer.param_groups[0]["lr"],
        }
        stats = combined(gather_lists([stats]))
        self.write_metrics(stats, step)
        self._watch(stats, step)
        norm = self._step(optimizer, step)
        every = self.reference_config.every
        if self.reference is not None and every and step % every == 0:
            mix_reference(self.reference, self.policy, self.reference_config.mix)
        changed = self.actor.fraction_of_weights_changed()
        self.write_metrics({"train/grad_norm": norm, "engine/changed_frac": changed}, step)

    def _gradient_sync(self, *, last: bool) -> AbstractContextManager[None]:
        """Within it, gradients are exchanged between processes only for a step's last backward."""
        strategy = self.trainer.strategy
        if last or not isinstance(strategy, ParallelStrategy):
            return nullcontext()
        return strategy.block_backward_sync()

    def _step(self, optimizer: Any, step: int) -> float:
        """Clip, step and free the gradients; the gradient's norm before clipping."""
        strategy, ids = self.trainer.strategy, [group.problem.id for group in self.groups]
        if isinstance(strategy, SVRDeepSpeedStrategy):
            optimizer.step()  # which clips, and leaves out an update that is not finite
            norm = strategy.gradient_norm()
            _require_finite("gradient", norm, step, ids)
        else:
            norm = clip_gradients(optimizer, self.optimizer_config.gradient_clip_val)
            _require_finite("gradient", norm, step, ids)
            optimizer.step()
        self.policy.zero_grad()  # else gradients would take memory during the next rollout
        scheduler: Any = self.lr_schedulers()
        scheduler.step()
        return norm

    def _watch(self, stats: dict[str, float], step: int) -> None:
        """Warn of a rollout without signal and of an engine with other weights; show progress.

        Raises:
            RuntimeError: if the engine's log-probabilities are not numbers.
        """
        if not self._warned_of_nothing and (warning := nothing_to_learn(stats)):
            self._warned_of_nothing = True
            rank_zero_warn(f"optimizer step {step}: {warning}")
        gap = stats["engine/logprob_diff"]
        # Later updates of a rollout differ from what sampled it, and top_p cuts a distribution.
        comparable = "train/reward/mean" in stats and not self.sampling.restricted
        if comparable and not gap <= LOGPROB_DIFF_LIMIT:
            line = (
                f"engine/logprob_diff is {gap:.3g} nats at optimizer step {step}, above "
                f"{LOGPROB_DIFF_LIMIT}: the engine does not sample from the policy that trains. "
                "Its weights are stale or wrong, or it computes in another precision"
            )
            if math.isnan(gap):
                raise RuntimeError(f"{line}. Stopped before the update")
            rank_zero_warn(line)
        for name, key in (("reward", "train/reward/mean"), ("accuracy", "train/accuracy")):
            if key in stats:
                self.log(name, stats[key], prog_bar=True, logger=False, batch_size=1)

    # --- checkpoints ----------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """All weights; with adapters only these, since their base model never changes."""
        state = super().state_dict(*args, **kwargs)
        return state if self.policy_config.lora is None else adapters_of(state)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add whose adapters these are."""
        checkpoint |= self.actor.adapter_facts()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that it fits; drop the reference if the run does not train."""
        require(
            self._trainer is None or not self.trains or "lr_schedulers" in checkpoint,
            "the checkpoint was saved with save_weights_only and a training cannot resume from it; "
            "start from the exported policy/ with model.policy.path",
        )
        self.actor.weights_replaced()
        check_adapters(checkpoint, self.actor.adapter_facts())
        if "state_dict" not in checkpoint:
            return  # DeepSpeed loads weights itself
        if self.reference is None and not self.trains:
            checkpoint["state_dict"] = without_reference(checkpoint["state_dict"])
        check_weights(self.state_dict(), checkpoint["state_dict"])


def _require_finite(what: str, value: float, step: int, problem_ids: Sequence[str]) -> None:
    if not math.isfinite(value):
        raise RuntimeError(
            f"the {what} of optimizer step {step} is not finite; stopped before the update. "
            f"Problems: {', '.join(dict.fromkeys(problem_ids))}. The last checkpoint is intact"
        )
