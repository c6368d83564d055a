"""The LightningModule of a training: one rollout, then its optimizer steps.

:meth:`SVRModule.collect` and :meth:`SVRModule.training_step` are the loop of
``examples/minimal_svr.py``; the fit loop calls one, then the other. Loading and evaluating the
policy are the base class's.

Departs from GRPO in:

- several turns, whose prompts quote the turn before; what of them trains is the recipe's choice;
- degenerate groups are replaced by fresh problems (``resample``);
- with one update per rollout the ratio starts from the loss's own log-probabilities, never from the
  engine's;
- a reference that follows the policy (``reference``);
- all sequences of an optimizer step weigh the same, however they are split.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from svr_lightning.core.ranges import Count, check_arguments
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Decoding, Problem, Sample
from svr_lightning.display import plain
from svr_lightning.engines.acting_weights import adapters_of
from svr_lightning.engines.base import Engine
from svr_lightning.errors import require
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.policy import RemotePolicy, seconds_now
from svr_lightning.recipes.base import Group, Recipe, sample_of
from svr_lightning.recipes.dialogues import Dialogue
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.collect import FreshProblems, ResampleMode, collect_rollout
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.checkpoint import check_adapters, check_weights, without_reference
from svr_lightning.training.config import (
    EvaluationConfig,
    OptimizerConfig,
    ReferenceConfig,
    check_sampling,
)
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.distributed import (
    SVRDeepSpeedStrategy,
    check_precision,
    gradient_sync,
)
from svr_lightning.training.evaluating import PolicyModule, report_operating_point
from svr_lightning.training.logs import (
    CSVLog,
    check_engine_gap,
    combined,
    gather_lists,
    nothing_to_learn,
    peak_memory,
    require_finite_number,
    rollout_stats,
    shows_progress,
    transferred,
)
from svr_lightning.training.optimizer import (
    clip_and_step,
    make_optimizer,
    make_reference,
    mix_reference,
    set_scheduled_rates,
)
from svr_lightning.training.trainer import RolloutFitLoop
from svr_lightning.training.update import TrainBatch, micro_batches, policy_update_loss


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What one rollout gives to train on; the fit loop hands it to ``training_step``."""

    groups: list[Group]
    """One for each problem: trajectories, labels, rewards and advantages."""
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
        self._prompt_shown = False
        self._warned_of_nothing = False

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
        report_operating_point(self)
        if stage != "fit":
            return
        require(
            not isinstance(self.actor, RemotePolicy),
            f"model.engine={type(self.engine).__name__} returns no token ids, which training "
            "needs; leave model.engine out, or use TransformersEngine or VLLMEngine",
        )
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
            logger.log_hyperparams(self.run_config)
            if isinstance(logger, CSVLog):
                logger.keep(lambda step, _: step <= self.global_step)
        set_scheduled_rates(self.lr_schedulers())
        self.actor.start_watching()

    def on_train_batch_end(self, *_: Any) -> None:
        """Remember what an interrupted run would save; end the run if a signal came."""
        trainer: Any = self.trainer
        trainer.fit_loop.resumable = trainer.fit_loop.state_dict()
        trainer.defers_interrupts = False
        if trainer.interrupt_waits:  # before a validation that is due
            raise KeyboardInterrupt(trainer.interrupt_waits)

    # --- one rollout ----------------------------------------------------------------------------

    @torch.no_grad()
    def collect(self, problems: list[Problem]) -> Rollout:
        """Roll out one batch of problems with the current weights; the fit loop calls it."""
        started = time.perf_counter()
        step = self.global_step
        renderer = self.actor.renderer

        # 1. Look at the prompts.
        if not self._prompt_shown:
            prompt = renderer.text(self.recipe.dialogue.first(problems[0]))
            rank_zero_info(f"\nfirst rendered prompt:\n{plain(prompt)}")
            self._prompt_shown = True
        warn = partial(warn_of_cut_prompts, renderer, self.recipe.dialogue)
        warn(problems)

        # 2. Sample, grade, reward and credit, with the current weights in the engine.
        ids = gather_lists([each.id for each in problems]) if self.resample == "top_up" else []
        with (
            self.actor.sampling(step) as sync_seconds,
            self.trainer.profiler.profile("rollout"),  # type: ignore[attr-defined]
        ):
            groups = collect_rollout(
                self.actor.engine,
                self.recipe,
                problems,
                renderer=renderer,
                sampling=self.sampling,
                seed=self.seed,
                step=step,
                resample=self.resample,
                fresh=fresh_source(self.data, self.seed, step, frozenset(ids), warn),
                show_progress=shows_progress(self.trainer),
            )

        # 3. Measure it.
        stats = rollout_stats(groups, self.recipe, time.perf_counter() - started)
        if sync_seconds is not None:
            stats["time/sync"] = sync_seconds

        # 4. Split its sequences into micro-batches.
        steps = optimizer_steps(self, groups, step)
        return Rollout(groups=groups, steps=steps, stats=stats)

    # --- its optimizer steps --------------------------------------------------------------------

    def training_step(self, rollout: Rollout, batch_idx: int) -> None:
        """Train on one rollout; Lightning calls it with what :meth:`collect` returned."""
        stats = rollout.stats
        problem_ids = [group.problem.id for group in rollout.groups]
        for batches in rollout.steps:
            if self.global_step == self.trainer.max_steps:
                break
            self._update(batches, stats, problem_ids)
            stats = {}

    def _update(
        self, batches: Sequence[TrainBatch], stats: dict[str, float], problem_ids: Sequence[str]
    ) -> None:
        """One optimizer step, logged with ``stats`` of the rollout of ``problem_ids``."""
        started = seconds_now()
        step = self.global_step + 1
        strategy = self.trainer.strategy

        # 1. Loss and gradient, one micro-batch after the other.
        logged = []
        for number, batch in enumerate(batches, start=1):
            with gradient_sync(strategy, last=number == len(batches)):
                update = policy_update_loss(
                    self.policy,
                    self.reference,
                    batch.to(self.device),
                    self.recipe.loss,
                    temperature=self.sampling.temperature,
                )
                with torch.autocast(self.device.type, enabled=False):
                    self.manual_backward(update.loss / len(batches))
            logged.append(update.logged)
        rows = transferred(logged)
        for batch, row in zip(batches, rows, strict=True):
            require_finite_number("loss", row["train/loss"], step, batch.group_ids)
        seconds = seconds_now() - started

        # 2. What is logged, over micro-batches and processes; stop if the engine is broken.
        optimizer: Any = self.optimizers()
        stats = {
            **combined(rows),
            "time/update": seconds,
            "speed/update": sum(sum(batch.lengths) for batch in batches) / seconds,
            "memory/peak": peak_memory(self.device),
            **stats,
            "train/lr": optimizer.param_groups[0]["lr"],
        }
        stats = combined(gather_lists([stats]))
        self.write_metrics(stats, step)
        if not self._warned_of_nothing and (warning := nothing_to_learn(stats)):
            self._warned_of_nothing = True
            rank_zero_warn(f"optimizer step {step}: {warning}")
        if not self.sampling.restricted:  # top_p cuts a distribution
            check_engine_gap(stats, step)
        _show(self, stats)

        # 3. Clip and step, and the schedule with it.
        finite = partial(require_finite_number, "gradient", step=step, problem_ids=problem_ids)
        norm = clip_and_step(strategy, optimizer, self.optimizer_config.gradient_clip_val, finite)
        self.policy.zero_grad()  # else gradients would take memory during the next rollout
        scheduler: Any = self.lr_schedulers()
        scheduler.step()

        # 4. Let the reference follow, and see whether the engine's weights changed.
        every = self.reference_config.every
        if self.reference is not None and every and step % every == 0:
            mix_reference(self.reference, self.policy, self.reference_config.mix)
        changed = self.actor.fraction_of_weights_changed()
        self.write_metrics({"train/grad_norm": norm, "engine/changed_frac": changed}, step)

    # --- checkpoints ----------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """All weights; with adapters only these, since their base model never changes."""
        state = super().state_dict(*args, **kwargs)
        return state if self.policy_config.lora is None else adapters_of(state)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the adapters' settings and the fingerprint of their base model."""
        checkpoint |= self.actor.adapter_facts()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that it fits; drop the reference if the run does not train."""
        require(
            self._trainer is None or not self.trains or "lr_schedulers" in checkpoint,
            "the checkpoint was saved with save_weights_only and a training cannot resume from it; "
            "start from the exported policy/ with model.policy.path",
        )
        check_adapters(checkpoint, self.actor.adapter_facts())
        if "state_dict" not in checkpoint:
            return  # DeepSpeed loads weights itself
        if self.reference is None and not self.trains:
            checkpoint["state_dict"] = without_reference(checkpoint["state_dict"])
        check_weights(self.state_dict(), checkpoint["state_dict"])


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
    module: SVRModule, groups: Sequence[Group], version: int
) -> list[list[TrainBatch]]:
    """The micro-batches of the optimizer steps that share a rollout.

    Where there are several steps, ratios start from the trainer's log-probabilities; of a single
    one they are the loss's own.

    Args:
        module: the training.
        groups: of this process.
        version: optimizer steps of the weights that sampled.
    """
    updates, per_problem = module.updates_per_rollout, module.recipe.samples_per_problem
    samples: list[Sample | None] = []
    for group in groups:
        samples += [*group.samples, *[None] * (per_problem - len(group.samples))]
    turns = [turn for group in groups for t in group.trajectories for turn in t.turns]
    shortest = min(turns, key=lambda turn: turn.completion.completion_tokens)
    problems = module.data.problems_per_step // module.trainer.world_size
    accumulate = math.ceil(problems * per_problem / module.micro_batch_size)
    batches = micro_batches(
        samples,
        accumulate=accumulate,
        updates=updates,
        version=version,
        renderer=module.actor.renderer,
        dummy_sample=sample_of(shortest, groups[0].problem, 0.0),
    )
    if updates > 1:
        batches = [_with_trainer_logprobs(module, batch) for batch in batches]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


def _with_trainer_logprobs(module: SVRModule, batch: TrainBatch) -> TrainBatch:
    # The engine's own are unsuitable: their rounding can exceed the clip range.
    with module.trainer.precision_plugin.train_step_context():
        logprobs = module.actor.logprobs(batch.to(module.device), module.sampling.temperature)
    return replace(batch, trainer_logprobs=logprobs.to(batch.engine_logprobs.device))


def _show(module: SVRModule, stats: dict[str, float]) -> None:
    """Show a rollout's reward and accuracy in the progress bar."""
    for name, key in (("reward", "train/reward/mean"), ("accuracy", "train/accuracy")):
        if key in stats:
            module.log(name, stats[key], prog_bar=True, logger=False, batch_size=1)
