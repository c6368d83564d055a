"""A policy in Lightning's validation, test and predict loops."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from svr_lightning.analysis.metrics import named_metrics
from svr_lightning.analysis.operating_point import (
    OPERATING_POINT,
    Certificate,
    read_operating_point,
)
from svr_lightning.analysis.results import certified_settings, package_versions
from svr_lightning.core.stopping import Confident, rule_as_config
from svr_lightning.core.types import Problem
from svr_lightning.engines.base import Engine
from svr_lightning.engines.openai import OpenAIEngine
from svr_lightning.evaluation.config import EvaluationConfig, Protocol
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.evaluation.printing import TurnPrinter, print_outcome
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.policy import Policy, RemotePolicy, choose_engine
from svr_lightning.recipes.base import Recipe
from svr_lightning.tasks import TASKS
from svr_lightning.training.data import Split, SVRDataModule
from svr_lightning.training.distributed import SVRDeepSpeedStrategy
from svr_lightning.training.logs import CSVLog, gather_lists
from svr_lightning.training.sources import problems_digest


class PolicyModule(LightningModule):
    """A policy and its evaluation in Lightning's loops.

    For the arguments see :class:`~svr_lightning.training.module.SVRModule`.
    """

    actor: Any = None
    """The policy with its tokenizer and engine: a :class:`~svr_lightning.policy.policy.Policy`,
    from :meth:`read_policy` on, or a :class:`~svr_lightning.policy.policy.RemotePolicy`."""
    policy: torch.nn.Module
    """The actor's weights, which checkpoints hold under this name. With a server there are none."""
    evaluator: Evaluator
    """The evaluation in Lightning's loops, set when it begins."""

    def __init__(
        self,
        policy: PolicyConfig,
        recipe: Recipe,
        evaluation: EvaluationConfig,
        engine: Engine | None,
        seed: int,
    ) -> None:
        super().__init__()
        self.policy_config = policy
        self.strict_loading = policy.lora is None  # adapters come without their base model
        self.recipe = recipe
        self.evaluation = evaluation
        self.engine = engine
        self.seed = seed
        if engine is not None and not engine.reads_tokens:
            self.actor = RemotePolicy(engine)
        self.run_config: dict[str, Any] = {}

    @property
    def trains(self) -> bool:
        """Whether this is a training, or a module without a trainer, which may become one."""
        return self._trainer is None or self.trainer.state.fn == "fit"

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move, but in an evaluation not beside an engine's own copy, with which it may not fit."""
        beside = self.engine is not None and self.engine.holds_copy and not self.trains
        moves = bool(args) and isinstance(args[0], torch.device)
        if moves and beside and not isinstance(self.trainer.strategy, SVRDeepSpeedStrategy):
            return self  # DeepSpeed needs its module on the GPU
        return super().to(*args, **kwargs)

    @property
    def shows_progress(self) -> bool:
        """Whether this process shows how far it is: ``trainer.enable_progress_bar`` decides."""
        return self.global_rank == 0 and getattr(self.trainer, "shows_progress", True)

    @property
    def data(self) -> SVRDataModule:
        """The trainer's data."""
        return self.trainer.datamodule  # type: ignore[attr-defined, no-any-return]

    def read_policy(self) -> None:
        """Read the policy's files once; :class:`SVRTrainer` does so before it writes anything.

        Raises:
            ConfigError: if they cannot be used.
        """
        if self.actor is None:
            self.actor = Policy.read(self.policy_config, self.seed)
            self.policy = self.actor.model

    def configure_model(self) -> None:
        """Prepare the policy once, and start its engine."""
        self.read_policy()
        if not hasattr(self.actor, "engine"):
            device = "cpu" if self._trainer is None else self.trainer.strategy.root_device.type
            self.actor.prepare(device, self.seed, trains=self.trains)
            if self.engine is None:
                self.engine = choose_engine(device)
            if self._trainer is not None and self.trains:
                problems = self.data.problems_per_rollout // self.trainer.world_size
                self.engine.trajectories = problems * self.recipe.group_size
            # Before there is an optimizer: an engine may measure the free memory for its KV cache.
            self.actor.start(self.engine)
        if isinstance(self.engine, OpenAIEngine):
            self.engine.model.chat_template_kwargs = self.policy_config.chat_template_kwargs

    def write_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log at a step; Lightning's own counter is one behind after a resume."""
        for logger in self.trainer.loggers:
            logger.log_metrics(dict(values), step=step)

    # --- Lightning's loops ----------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        """Begin the records, or continue those of a killed process."""
        command: Any = self.trainer.state.fn
        name = f"step-{self.global_step:06d}" if command == "fit" else command.value
        self.evaluator = self._evaluator(name, self._part, self.applied_evaluation)

    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start

    def validation_step(
        self, batch: list[Problem], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Solve a batch of one data set."""
        source = self.data.sources[self._part][dataloader_idx]
        self.evaluator.solve(batch, source.name, source.max_completion_tokens)

    test_step = validation_step

    def predict_step(self, batch: list[Problem], batch_idx: int) -> list[dict[str, Any]]:
        """Answer the user's questions, showing each turn as it comes; the records as JSON."""
        show = TurnPrinter(name_problems=len(batch) > 1)
        (source,) = self.data.sources["predict"]
        records = self.evaluator.solve(batch, source.name, on_turn=show)
        for record in records:
            print_outcome(record, self.evaluator.rule, name_problem=len(batch) > 1)
        return [record.to_json() for record in records]

    def on_validation_epoch_end(self) -> None:
        """Write the records; log their results under ``val/`` or ``test/``."""
        if not self.trainer.sanity_checking:
            self._log_results(self.evaluator.finish(self.quoted_config()))

    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end

    # --- one evaluation -------------------------------------------------------------------------

    @property
    def _part(self) -> Split:
        """The data that Lightning's current loop evaluates."""
        stage: Any = self.trainer.state.stage
        return stage.dataloader_prefix  # type: ignore[no-any-return]

    def _evaluator(
        self, name: str, part: Split, evaluation: EvaluationConfig, *, every_turn: bool = False
    ) -> Evaluator:
        """An evaluation of the current weights, begun or continued, with files in ``eval/name``."""
        trial = self.trainer.sanity_checking
        return Evaluator(
            self.actor.engine,
            evaluation,
            recipe=self.recipe,
            renderer=self.actor.renderer,
            folder=Path(self.trainer.default_root_dir) / "eval" / name,
            seed=self.seed,
            step=self.global_step,
            fingerprint=None if trial else self.record_fingerprint(part, evaluation),
            every_turn=every_turn,
            sampling=self.actor.sampling,
            gather=gather_lists,
            rank=self.trainer.global_rank,
            quiet=not self.shows_progress,
        )

    def run_test_sets(
        self, name: str, evaluation: EvaluationConfig | None = None, *, every_turn: bool = False
    ) -> None:
        """A complete evaluation outside Lightning's loops, with their limit on batches.

        Args:
            name: its files are in ``eval/<name>/``.
            evaluation: settings that replace :attr:`applied_evaluation`.
            every_turn: also record the turns after a stop.
        """
        evaluation = evaluation or self.applied_evaluation
        evaluator = self._evaluator(name, "test", evaluation, every_turn=every_turn)
        limit, loaders = self.trainer.limit_test_batches, self.data.test_dataloader()
        for source, loader in zip(self.data.sources["test"], loaders, strict=True):
            # Rounded up: a process with one batch less must not stay away from a common sync.
            batches = limit if isinstance(limit, int) else math.ceil(len(loader) * limit)
            for problems in islice(loader, batches):
                evaluator.solve(problems, source.name, source.max_completion_tokens)
        evaluator.finish(self.quoted_config(evaluation))

    @cached_property
    def operating_point(self) -> Confident | Certificate | None:
        """The certificate in the policy's folder; None without one, and for a server."""
        if isinstance(self.actor, RemotePolicy):
            return None
        return read_operating_point(self.policy_config.path)

    @property
    def applied_evaluation(self) -> EvaluationConfig:
        """The configured evaluation, with the stopping rule that applies.

        This is the configured one, else the policy's own, else the paper's.
        """
        own = self.operating_point
        rule = own.rule if isinstance(own, Certificate) else own
        return replace(self.evaluation, stop=self.evaluation.stop or rule or Confident())

    @property
    def protocol(self) -> Protocol:
        """Dialogue, T_max and stopping rule of its evaluations."""
        return self.applied_evaluation.resolve(self.recipe)

    def report_operating_point(self, stage: str) -> None:
        """Log that the policy's own rule is used, and what voids its guarantee."""
        own, folder = self.operating_point, self.policy_config.path
        if self.evaluation.stop is not None or own is None:
            return
        file = Path(folder) / OPERATING_POINT
        rule = self.applied_evaluation.full_rule
        text = f"stops at {rule}, the operating point of {file}"
        if not self.evaluation.adaptive:
            text = f"records every turn; replays stop at {rule}, the operating point of {file}"
        promises = own.promises if isinstance(own, Certificate) else ()
        rank_zero_info("; ".join([text, *promises]))
        if not isinstance(own, Certificate):
            return
        protocol = self.protocol
        settings = {
            "model": {"evaluation": asdict(self.evaluation), "policy": asdict(self.policy_config)},
            "data": {part: [*map(asdict, self.data.sources[part])] for part in ("val", "test")},
        }
        departures = own.departures(protocol.rule, protocol.max_turns, certified_settings(settings))
        if not own.is_for(folder):  # hashes whole files
            departures.append("other weights than it was written for")
        if departures:
            rank_zero_warn(f"{file} promises nothing for {', '.join(departures)}")
        parts: Mapping[str, Split] = {"validate": "val", "test": "test"}
        names = {}
        if part := parts.get(stage):
            problems = self.data.problems(part)
            for source, rows in zip(self.data.sources[part], problems, strict=True):
                for row in rows:
                    name = f"{source.name}/{row.id}"
                    names[name] = (name, row.question)
        if note := own.calibration_note(names):
            rank_zero_warn(f"{file}: {note}; its promises say nothing of these")

    def quoted_config(self, evaluation: EvaluationConfig | None = None) -> dict[str, Any]:
        """The configuration for results files, with the stopping rule that is used."""
        evaluation = evaluation or self.applied_evaluation
        model: dict[str, Any] = dict(self.run_config.get("model", {}))
        if isinstance(self.actor, RemotePolicy):  # only the requests are known here
            template = self.policy_config.chat_template_kwargs
            model = {key: model[key] for key in ("engine", "recipe", "evaluation") if key in model}
            model["policy"] = {"chat_template_kwargs": template}
        protocol = evaluation.resolve(self.recipe)
        stop = None if protocol.rule is None else rule_as_config(protocol.rule)
        model["evaluation"] = {**asdict(replace(evaluation, stop=None)), "stop": stop}
        return {
            **self.run_config,
            "model": model,
            "graders": dict.fromkeys(TASKS, evaluation.grader),
            "protocol": {
                "max_turns": protocol.max_turns,
                "adaptive": protocol.applied_rule is not None,
                "privileged": self.recipe.uses_labels,
            },
        }

    def record_fingerprint(self, part: Split, evaluation: EvaluationConfig) -> str:
        """A digest of all that determines a record, as far as it is known of a server."""
        sources = zip(self.data.sources[part], self.data.problems(part), strict=True)
        facts = {
            **self.actor.identity(),
            "policy": asdict(self.policy_config),
            "data": [(s.name, s.max_completion_tokens, problems_digest(p)) for s, p in sources],
            "ranks": self.trainer.world_size,
            "evaluation": repr(evaluation),
            "draws": [self.seed, self.global_step],
            "recipe": repr(self.recipe),
            "engine": type(self.engine).__name__,
            "versions": package_versions(),
        }
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def _log_results(self, results: Mapping[str, Any]) -> None:
        now, stage = self.global_step, self._part
        if not results or stage == "predict":
            return
        for logger in self.trainer.loggers:
            if isinstance(logger, CSVLog):  # an earlier run of the command, or an interrupted one
                logger.keep(lambda step, key: step != now or not key.startswith(f"{stage}/"))
        values = named_metrics(stage, results)
        # Equal on all ranks already. Nothing is reduced: NCCL cannot reduce a CPU's tensors.
        # Lightning writes them to the loggers at "step" and returns them from validate() and
        # test(). In float64, as results.json.
        exact = {k: torch.tensor(v, dtype=torch.float64, device="cpu") for k, v in values.items()}
        exact["step"] = torch.tensor(float(now))
        self.log_dict(exact, logger=True)
        if stage == "val":
            for name, metric in (("val_acc", "accuracy"), ("turns", "turns")):
                self.log(name, results["macro"]["all"][metric], prog_bar=True, logger=False)
