"""The LightningModule: owns the policy and the reference, and knows one training step."""

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from svr_lightning.core.losses import policy_loss
from svr_lightning.core.seeds import derive_seed
from svr_lightning.core.types import Problem
from svr_lightning.engines.base import Engine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.adaptive import OnTurn, Record, run_adaptive
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.svr import SVR
from svr_lightning.rendering import Renderer
from svr_lightning.rollout import Decoding, Driver
from svr_lightning.tasks import get_task
from svr_lightning.training.batching import TrainBatch, micro_batches
from svr_lightning.training.config import (
    EvaluationConfig,
    OptimizerConfig,
    PolicyConfig,
    ReferenceConfig,
    ResampleMode,
    SamplingConfig,
    require,
)
from svr_lightning.training.csv_log import CSVLog
from svr_lightning.training.evaluating import AdaptiveEvaluation, mean_over_ranks
from svr_lightning.training.experience import Group, roll_out, samples_of, with_resampling
from svr_lightning.training.logprobs import completion_logprobs
from svr_lightning.training.optimizer import make_optimizer, mix_reference, total_norm
from svr_lightning.training.policy import load_policy, stop_token_ids
from svr_lightning.training.stats import rollout_stats


class SVRModule(AdaptiveEvaluation):
    """Trains a policy with a recipe and evaluates it with adaptive inference.

    Args:
        policy: which model, and how it is prompted.
        recipe: the training method.
        sampling: how rollouts are drawn.
        optimizer: AdamW and its schedule.
        reference: how the reference follows the policy.
        evaluation: adaptive inference.
        engine: what samples; None chooses the in-process transformers engine.
        resample: what to do about problems whose trajectories all earn the same.
        updates_per_rollout: optimizer steps per rollout; above 1 the ratio and the clip act.
        seed: of every random draw; the command line sets it from ``seed_everything``.
    """

    policy: torch.nn.Module
    reference: torch.nn.Module | None

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
        seed: int = 42,
    ) -> None:
        super().__init__()
        require(
            updates_per_rollout >= 1,
            f"model.updates_per_rollout={updates_per_rollout} must be at least 1",
        )
        self.policy_config = policy
        self.recipe = recipe or SVR()
        self.sampling = sampling
        self.optimizer_config = optimizer
        self.reference_config = reference
        self.evaluation = evaluation
        self.engine = engine or TransformersEngine()
        self.resample = resample
        self.updates_per_rollout = updates_per_rollout
        self.seed = seed
        self.groups: list[Group] = []
        self.run_config: dict[str, Any] = {}
        self._sums: dict[str, float] = {}
        self._phase_seconds: dict[str, float] = {}

    # --- set-up -----------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Load the policy once, and copy it as the reference where the loss has a KL term."""
        if hasattr(self, "renderer"):
            return
        self.policy, tokenizer = load_policy(self.policy_config, self.seed)
        config = self.policy_config
        self.renderer = Renderer(
            tokenizer,
            max_prompt_tokens=config.max_prompt_tokens,
            max_model_len=config.max_model_len,
            chat_template_kwargs=config.chat_template_kwargs,
        )
        self.reference = None
        if self.recipe.loss.beta and self._is_training_run():
            self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        stop_ids = stop_token_ids(self.policy, tokenizer)
        self.engine.start(self.policy, stop_ids, config.max_model_len)

    def setup(self, stage: str) -> None:
        """Check what only the trainer and the data together can tell."""
        precision = str(self.trainer.precision)
        deepspeed = "deepspeed" in type(self.trainer.strategy).__name__.lower()
        if stage == "fit" and precision.endswith("-true") and precision != "32-true":
            require(
                deepspeed,
                f"trainer.precision={precision} keeps no fp32 masters, so that a learning rate of "
                f"{self.optimizer_config.lr} would change nothing; use bf16-mixed or DeepSpeed",
            )

    def _is_training_run(self) -> bool:
        return self._trainer is None or self.trainer.state.fn in (None, "fit")

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW over the policy, warmup-stable-decay over the planned optimizer steps."""
        total = int(self.trainer.estimated_stepping_batches)
        return make_optimizer(self.policy, self.optimizer_config, total)

    def on_train_start(self) -> None:
        """Let the logs of a resumed run forget what the checkpoint does not vouch for."""
        for logger in self.trainer.loggers:
            if isinstance(logger, CSVLog):
                logger.rewind(self.global_step)

    # --- training ---------------------------------------------------------------------------

    def collect(self, problems: list[Problem]) -> list[TrainBatch]:
        """One on-policy batch: problems to groups, labels, rewards, samples, micro-batches."""
        started = time.perf_counter()
        with self.sampling_mode():
            self.groups = with_resampling(
                problems, self._roll_out, self._fresh_problems, self.resample
            )
        samples = samples_of(self.groups, self.recipe)
        self._phase_seconds["rollout"] = time.perf_counter() - started
        accumulate = int(self.trainer.accumulate_grad_batches)
        if len(samples) % (accumulate * self.updates_per_rollout):
            raise ConfigError(
                f"{len(samples)} samples per rollout (problems per rank x "
                f"{self.recipe.samples_per_problem} of the recipe) do not divide into "
                f"trainer.accumulate_grad_batches={accumulate} x model.updates_per_rollout="
                f"{self.updates_per_rollout} micro-batches; change one of them"
            )
        return micro_batches(
            samples,
            accumulate=accumulate,
            updates=self.updates_per_rollout,
            version=self.global_step,
        )

    def training_step(self, batch: TrainBatch, batch_idx: int) -> Tensor:
        """The policy loss of one micro-batch."""
        temperature = self.sampling.temperature
        logp = completion_logprobs(self.policy, batch, temperature)
        ref_logp = None
        if self.reference is not None:
            with torch.no_grad():
                ref_logp = completion_logprobs(self.reference, batch, temperature)
        # One update per rollout: the sampling policy is the present one, and its detached
        # log-probabilities are exact where the engine's carry rounding of their own.
        old_logp = logp.detach() if self.updates_per_rollout == 1 else batch.logprobs
        terms = policy_loss(
            logp, old_logp, ref_logp, batch.advantages, batch.mask, self.recipe.loss
        )
        loss = terms.loss.sum() * batch.weight
        if not torch.isfinite(loss):
            raise RuntimeError(self._not_finite("loss", batch.group_ids))
        gap = ((logp.detach() - batch.logprobs).abs() * batch.mask).sum() / batch.mask.sum()
        self._accumulate(
            {
                "train/loss": loss.detach(),
                "train/kl": terms.kl.mean(),
                "train/clip_frac": terms.clipped.mean(),
                "train/ratio_max": terms.ratio_max.max(),
                "engine/logprob_diff": gap,
            }
        )
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an update that is not finite, and log the step."""
        norm = total_norm(self.policy)
        if not torch.isfinite(norm):
            ids = tuple(group.problem.id for group in self.groups)
            raise RuntimeError(self._not_finite("gradient", ids))
        accumulate = int(self.trainer.accumulate_grad_batches)
        stats = {name: total / accumulate for name, total in self._sums.items()}
        self._sums = {}
        stats["train/grad_norm"] = norm.item()
        stats["train/lr"] = optimizer.param_groups[0]["lr"]
        stats["time/rollout"] = self._phase_seconds.get("rollout", 0.0)
        stats |= rollout_stats(self.groups)
        stats = mean_over_ranks(stats)
        self.write_metrics(stats, self.global_step + 1)
        for name, key in (("reward", "train/reward/mean"), ("accuracy", "train/accuracy")):
            self.log(name, stats[key], prog_bar=True, logger=False, batch_size=1)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step, then let the reference follow after every N-th step."""
        super().optimizer_step(*args, **kwargs)
        step = self.global_step + 1
        every = self.reference_config.every
        if self.reference is not None and every and step % every == 0:
            mix_reference(self.reference, self.policy, self.reference_config.mix)

    @contextmanager
    def sampling_mode(self) -> Iterator[None]:
        """The policy in eval mode and the engine on its present weights."""
        training = self.policy.training
        self.policy.eval()
        try:
            if self.engine.version != self.global_step:
                self.engine.sync(self.policy, self.global_step)
            with torch.no_grad():
                yield
        finally:
            self.policy.train(training)

    def _roll_out(self, problems: Sequence[Problem], attempt: int) -> list[Group]:
        decoding = Decoding(
            max_completion_tokens=self.sampling.max_completion_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
        )
        driver = self._driver(attempt)
        return roll_out(
            problems, recipe=self.recipe, driver=driver, decoding=decoding, attempt=attempt
        )

    def _fresh_problems(self, attempt: int, count: int, exclude: frozenset[str]) -> list[Problem]:
        """This rank's share of a draw that is the same on all ranks, so that none meets twice."""
        seed = derive_seed(
            self.seed, step=self.global_step, problem_id="", attempt=attempt, purpose="resample"
        )
        ranks = int(self.trainer.world_size)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        drawn = data.fresh_problems(seed, (count + len(exclude)) * ranks)
        share = [p for p in drawn[self.global_rank :: ranks] if p.id not in exclude]
        return share[:count]

    def _driver(self, attempt: int = 0) -> Driver:
        return Driver(
            self.engine, self.renderer, run_seed=self.seed, step=self.global_step, attempt=attempt
        )

    def _accumulate(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.item()

    def _not_finite(self, what: str, problem_ids: Sequence[str]) -> str:
        named = ", ".join(dict.fromkeys(problem_ids))
        return (
            f"the {what} of optimizer step {self.global_step + 1} is not finite; stopped before "
            f"the update. Problems: {named}. The last checkpoint is intact"
        )

    # --- evaluation -------------------------------------------------------------------------

    def run_adaptive(
        self,
        problems: Sequence[Problem],
        dataset: str,
        max_completion_tokens: int | None = None,
        on_turn: OnTurn | None = None,
    ) -> list[Record]:
        """Adaptive inference on problems of one data set, as ``evaluation`` says.

        The completion limit is the data set's own, else the task's, and never above
        ``evaluation.max_completion_tokens``.
        """
        config = self.evaluation
        if not problems:
            return []
        limit = max_completion_tokens or get_task(problems[0].task).max_completion_tokens
        if config.max_completion_tokens is not None:
            limit = min(limit, config.max_completion_tokens)
        decoding = Decoding(
            max_completion_tokens=limit,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
        )
        with self.sampling_mode():
            return run_adaptive(
                problems,
                dataset=dataset,
                driver=self._driver(),
                renderer=self.renderer,
                decoding=decoding,
                max_turns=config.max_turns,
                threshold=config.threshold if config.adaptive else None,
                on_turn=on_turn,
            )
