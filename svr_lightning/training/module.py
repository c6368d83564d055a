"""The LightningModule: owns the policy and the reference, and knows one training step."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from svr_lightning.core.types import Problem
from svr_lightning.engines import lora
from svr_lightning.engines.base import Engine
from svr_lightning.errors import require
from svr_lightning.recipes.base import Group, Recipe
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.collect import ResampleMode
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.canary import Canary
from svr_lightning.training.checkpoint import (
    check_adapters,
    check_resumable,
    check_weights,
    without_reference,
)
from svr_lightning.training.config import (
    EvaluationConfig,
    OptimizerConfig,
    PolicyConfig,
    ReferenceConfig,
    SamplingConfig,
)
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.distributed import check_precision
from svr_lightning.training.evaluating import ModuleEvaluation
from svr_lightning.training.flops import batch_flops
from svr_lightning.training.gathering import over_ranks
from svr_lightning.training.internals import has_trainer
from svr_lightning.training.logs import MAXIMA, CollapseWatch, CSVLog, StepLog, hyperparameters
from svr_lightning.training.optimizer import make_optimizer
from svr_lightning.training.policy import adapter_facts, load_policy, stop_token_ids
from svr_lightning.training.profiling import StepTrace
from svr_lightning.training.reference import make_reference, mix_reference
from svr_lightning.training.rollouts import ModuleRollouts, PolicyEngine
from svr_lightning.training.sharding import shard_for
from svr_lightning.training.trainer import RolloutFitLoop
from svr_lightning.training.update import (
    TrainBatch,
    policy_update_loss,
    total_norm,
)


class SVRModule(LightningModule):
    """Trains a policy with a recipe and evaluates it with adaptive inference.

    Args:
        policy: which model, and how it is prompted.
        recipe: the training method.
        sampling: how rollouts are drawn.
        optimizer: AdamW and its schedule.
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
        profile_steps: first and last optimizer step of which torch's profiler writes a trace.
        seed: of every random draw; the command line sets it from ``seed_everything``.
    """

    policy: torch.nn.Module
    reference: Any
    """A model, or with adapters a substitute for one; None if the loss needs none."""
    renderer: Renderer
    serving: PolicyEngine
    """Keeps the policy's weights in the engine. With a server there are neither."""

    def __init__(
        self,
        policy: PolicyConfig = PolicyConfig(),  # noqa: B008 - frozen, and the CLI shows it
        recipe: Recipe | None = None,
        sampling: SamplingConfig = SamplingConfig(),  # noqa: B008
        optimizer: OptimizerConfig = OptimizerConfig(),  # noqa: B008
        reference: ReferenceConfig = ReferenceConfig(),  # noqa: B008
        evaluation: EvaluationConfig = EvaluationConfig(),  # noqa: B008
        engine: Engine | None = None,
        resample: ResampleMode = "top_up",
        updates_per_rollout: int = 1,
        micro_batch_size: int = 8,
        profile_steps: tuple[int, int] | None = None,
        seed: int = 42,
    ) -> None:
        super().__init__()
        counts = {"micro_batch_size": micro_batch_size, "updates_per_rollout": updates_per_rollout}
        for name, value in counts.items():
            require(value >= 1, f"model.{name}={value} must be at least 1")
        self.policy_config = policy
        self.strict_loading = policy.lora is None  # adapters come without their base model
        self.recipe = recipe or SVR()
        self.recipe.check()
        self.sampling = sampling
        self.optimizer_config = optimizer
        self.reference_config = reference
        self.evaluation = evaluation
        self.engine = engine
        self.resample = resample
        self.updates_per_rollout = updates_per_rollout
        self.micro_batch_size = micro_batch_size
        self.seed = seed
        self.evaluating = ModuleEvaluation(self)
        self.groups: list[Group] = []
        self.run_config: dict[str, Any] = {}
        self.reference = None
        self.trace = StepTrace(profile_steps)
        self._step_log = StepLog()
        self._rollout_stats: dict[str, float] = {}
        self._collapse, self._canary = CollapseWatch(), Canary(sampling.max_logprob_noise)
        self._watches: dict[str, Any] = {"collapse": self._collapse, "canary": self._canary}
        self.rollouts = ModuleRollouts(self)
        self._grad_norm = math.nan

    def configure_model(self) -> None:
        """Load the policy once, and copy it as the reference if the loss has a KL term."""
        if self.in_process and not hasattr(self, "serving"):
            self._load_policy()
        if self.in_process and self.reference is None and self.recipe.loss.beta and self._trains:
            self.reference = make_reference(self.policy, self.reference_config, self.seed)
        if has_trainer(self):
            if self.in_process:
                shard_for(self.trainer, self.policy, self.reference, self.engine)
            self.evaluating.connect()

    @property
    def in_process(self) -> bool:
        """Whether the policy is here, and not with a server."""
        return self.engine is None or self.engine.reads_tokens

    @property
    def _trains(self) -> bool:
        return not has_trainer(self) or self.trainer.state.fn == "fit"

    def _load_policy(self) -> None:
        config = self.policy_config
        device = "cpu" if not has_trainer(self) else self.trainer.strategy.root_device.type
        self.policy, tokenizer = load_policy(config, self.seed, device, trains=self._trains)
        self.renderer = Renderer(
            tokenizer,
            max_prompt_tokens=config.max_prompt_tokens,
            max_model_len=config.max_model_len,
            chat_template_kwargs=config.chat_template_kwargs,
        )
        trajectories = None
        if has_trainer(self) and self._trains:
            data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
            problems = data.problems_per_rollout * self.ranks_per_engine // self.trainer.world_size
            trajectories = problems * self.recipe.group_size
        # Before there is an optimizer: an engine may measure the free memory for its KV cache.
        self.serving = PolicyEngine(
            self.policy,
            self.engine,
            stop_token_ids=stop_token_ids(self.policy, tokenizer),
            max_model_len=config.max_model_len,
            device_type=device,
            trajectories=trajectories,
        )
        self.engine = self.serving.engine

    def on_validation_epoch_start(self) -> None:
        """Begin or continue the records of a validation."""
        self.evaluating.begin(self.evaluating.validation_name, "val")

    def validation_step(
        self, batch: list[Problem], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Solve a batch of one validation data set."""
        self.evaluating.solve(batch, "val", dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        """Write and log the results."""
        self.evaluating.finish("val")

    def on_test_epoch_start(self) -> None:
        """Begin or continue the records of a test."""
        self.evaluating.begin("votes" if self.evaluation.votes else "test", "test")

    def test_step(self, batch: list[Problem], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Solve a batch of one test data set, or sample votes on it."""
        self.evaluating.solve(batch, "test", dataloader_idx)

    def on_test_epoch_end(self) -> None:
        """Write and log the results."""
        self.evaluating.finish("test")

    def on_predict_epoch_start(self) -> None:
        """Begin or continue the answers to the user's questions."""
        self.evaluating.begin("predict", "predict")

    def predict_step(self, batch: list[Problem], batch_idx: int) -> list[dict[str, Any]]:
        """Answer the user's questions, showing each turn as it comes."""
        return self.evaluating.answer(batch)

    def on_predict_epoch_end(self) -> None:
        """Write the transcripts."""
        self.evaluating.finish()

    def write_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log at a step; Lightning's own counter is one behind after a resume."""
        for logger in self.trainer.loggers:
            logger.log_metrics(dict(values), step=step)

    @property
    def ranks_per_engine(self) -> int:
        """Neighbouring processes that share an engine, and therefore see the same problems."""
        return self.engine.ranks if self.engine is not None else 1

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """All weights; with adapters only these, since their base model never changes."""
        state = super().state_dict(*args, **kwargs)
        return state if self.policy_config.lora is None else lora.adapters_of(state)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the states of watches, the adapters' settings and their base model."""
        checkpoint |= {name: watch.state_dict() for name, watch in self._watches.items()}
        checkpoint |= adapter_facts(self.policy, self.policy_config.lora)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore these states; drop the reference if the run does not train."""
        if has_trainer(self) and self._trains:
            check_resumable(checkpoint)
        for name in self._watches.keys() & checkpoint.keys():  # earlier versions did not save them
            self._watches[name].load_state_dict(checkpoint[name])
        self.serving.weights_replaced()
        check_adapters(checkpoint, adapter_facts(self.policy, self.policy_config.lora))
        if "state_dict" not in checkpoint:
            return  # DeepSpeed and FSDP2 load weights themselves
        if self.reference is None and not self._trains:
            checkpoint["state_dict"] = without_reference(checkpoint["state_dict"])
        check_weights(self.state_dict(), checkpoint["state_dict"])

    def setup(self, stage: str) -> None:
        """Set the gradient accumulation, computed from data, recipe and processes."""
        data: Any = getattr(self.trainer, "datamodule", None)
        require(
            isinstance(data, SVRDataModule),
            "SVRModule needs the problems of an SVRDataModule: trainer.fit(module, "
            "datamodule=SVRDataModule(train=..., problems_per_step=...))",
        )
        require(
            stage != "fit" or isinstance(self.trainer.fit_loop, RolloutFitLoop),
            "a stock lightning Trainer has no rollouts to train on: use svr_lightning.SVRTrainer, "
            "or write a loop of your own with collect_rollout and policy_update_loss",
        )
        self.evaluating.report_operating_point()
        if stage != "fit":
            return
        require(
            self.in_process,
            f"model.engine={type(self.engine).__name__} returns no token ids, which training "
            "needs; leave model.engine out, or use TransformersEngine, VLLMEngine or ServersEngine",
        )
        for logger in self.trainer.loggers:
            logger.log_hyperparams(hyperparameters(self))
        sharded = "deepspeed" in type(self.trainer.strategy).__name__.lower()
        require(
            not (sharded and self.policy_config.lora),
            "model.policy.lora leaves DeepSpeed next to nothing to shard; set trainer.strategy=ddp "
            "and trainer.precision=bf16-mixed",
        )
        if not sharded:
            check_precision(str(self.trainer.precision), self.optimizer_config.lr)
        problems = data.problems_per_step // self.trainer.world_size
        sequences = problems * self.recipe.samples_per_problem
        self.trainer.accumulate_grad_batches = math.ceil(sequences / self.micro_batch_size)

    def configure_callbacks(self) -> list[Callback]:
        """The profiler of the configured steps."""
        return [self.trace]

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
        """Cut the logs of a resumed run back to the checkpoint."""
        for logger in self.trainer.loggers:
            if isinstance(logger, CSVLog):
                logger.rewind(self.global_step)
        self.serving.start_watching()

    @torch.no_grad()
    def collect(self, problems: list[Problem]) -> list[TrainBatch]:
        """The micro-batches of one rollout."""
        batches, self.groups, self._rollout_stats = self.rollouts.collect(problems)
        return batches

    def training_step(self, batch: TrainBatch, batch_idx: int) -> Tensor:
        """The policy loss of one micro-batch."""
        self._step_log.start()
        update = policy_update_loss(
            self.policy,
            self.reference,
            batch,
            self.recipe.loss,
            temperature=self.sampling.temperature,
        )
        if not torch.isfinite(update.loss):
            raise RuntimeError(self._not_finite("loss", batch.group_ids))
        means = {
            "train/loss": update.loss.detach(),
            "train/kl": update.kl,
            "train/clip_frac": update.clip_frac,
            "engine/logprob_diff": update.logprob_diff,
        }
        maxima = {"train/ratio_max": update.ratio_max}
        if (weights := update.behaviour) is not None:
            means |= {f"train/behaviour/{k}": getattr(weights, k) for k in ("mean", "clipped")}
            maxima["train/behaviour/max"] = weights.max
        flops = batch_flops(self.policy, batch, reference=self.reference is not None)
        self._step_log.add(sum(batch.lengths), flops, means, maxima)
        return update.loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an update that is not finite, and log the step."""
        if self.trainer.fit_loop.accumulating:  # type: ignore[attr-defined]
            return  # DeepSpeed comes here after every micro-batch
        if not self.trainer.strategy.handles_gradient_accumulation:
            self._require_finite(total_norm(self.policy).item())
        stats = self._step_log.take(self.device)
        stats["train/lr"] = optimizer.param_groups[0]["lr"]
        gap = stats.get("engine/logprob_diff")
        stats |= self._rollout_stats
        self._rollout_stats = {}  # written once, with the first update of the rollout
        floor = stats.get("engine/logprob_floor")  # of this process, as the gap is
        stats = over_ranks(stats, MAXIMA)
        step = self.global_step + 1
        self.write_metrics(stats, step)
        if warning := self._collapse.note(stats):
            rank_zero_warn(f"optimizer step {step}: {warning}")
        judged = None if gap is None or floor is None else self._canary.judge(gap, floor, step)
        if judged:
            warnings.warn(judged, stacklevel=2)
        for name, key in (("reward", "train/reward/mean"), ("accuracy", "train/accuracy")):
            if key in stats:
                self.log(name, stats[key], prog_bar=True, logger=False, batch_size=1)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step and free the gradients; the reference follows after every N-th step."""
        super().optimizer_step(*args, **kwargs)
        strategy: Any = self.trainer.strategy
        if strategy.handles_gradient_accumulation:
            if self.trainer.fit_loop.accumulating:  # type: ignore[attr-defined]
                return
            self._require_finite(strategy.gradient_norm())  # it left out one that is not
        else:
            self.policy.zero_grad()  # else they would take memory during the next rollout
        step = self.global_step + 1
        every = self.reference_config.every
        if self.reference is not None and every and step % every == 0:
            mix_reference(self.reference, self.policy, self.reference_config.mix)
        changed = self.serving.changed_share()
        after = {"train/grad_norm": self._grad_norm, "engine/changed_frac": changed}
        self.write_metrics(after, step)

    def _require_finite(self, norm: float) -> None:
        if not math.isfinite(norm):
            ids = tuple(group.problem.id for group in self.groups)
            raise RuntimeError(self._not_finite("gradient", ids))
        self._grad_norm = norm

    def _not_finite(self, what: str, problem_ids: Sequence[str]) -> str:
        named = ", ".join(dict.fromkeys(problem_ids))
        return (
            f"the {what} of optimizer step {self.global_step + 1} is not finite; stopped before "
            f"the update. Problems: {named}. The last checkpoint is intact"
        )
