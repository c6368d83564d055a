"""A policy in Lightning's validation, test and predict loops."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
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
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.evaluation.printing import TurnPrinter, print_outcome
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.policy import Policy, RemotePolicy, choose_engine
from svr_lightning.recipes.base import Recipe
from svr_lightning.tasks import TASKS
from svr_lightning.training.data import Split, SVRDataModule
from svr_lightning.training.distributed import SVRDeepSpeedStrategy
from svr_lightning.training.logs import CSVLog, gather_lists, shows_progress
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
        self.measured: dict[str, Any] = {}
        """Results of the current weights, which the model card of their export quotes."""

    @property
    def trains(self) -> bool:
        """Whether this is a training, or a module without a trainer, which may become one."""
        return self._trainer is None or self.trainer.state.fn == "fit"

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move, unless an evaluation's engine has its own copy, beside which it may not fit."""
        beside = self.engine is not None and self.engine.holds_copy and not self.trains
        moves = bool(args) and isinstance(args[0], torch.device)
        if moves and beside and not isinstance(self.trainer.strategy, SVRDeepSpeedStrategy):
            return self  # DeepSpeed needs its module on the GPU
        return super().to(*args, **kwargs)

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
        if hasattr(self.actor, "engine"):
            self.actor.synced = None  # each trainer counts its own steps
        else:
            device = "cpu" if self._trainer is None else self.trainer.strategy.root_device.type
            # Lightning has no name for a warm start, which trains as well.
            trains = self.trains or self.trainer.state.fn is None
            self.actor.prepare(device, self.seed, trains=trains)
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
        self.evaluator = new_evaluator(self, name, part_of(self), self.applied_evaluation)

    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start

    def validation_step(
        self, batch: list[Problem], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Solve a batch of one data set."""
        source = self.data.sources[part_of(self)][dataloader_idx]
        self.evaluator.solve(batch, source.name, source.max_completion_tokens)

    test_step = validation_step

    def predict_step(self, batch: list[Problem], batch_idx: int) -> list[dict[str, Any]]:
        """Answer the user's questions, showing each turn as it comes; the records as JSON."""
        several = len(batch) > 1
        show = TurnPrinter(name_problems=several)
        (source,) = self.data.sources["predict"]
        records = self.evaluator.solve(batch, source.name, on_turn=show)
        for record in records:
            print_outcome(record, self.evaluator.rule, name_problem=several)
        return [record.to_json() for record in records]

    def on_validation_epoch_end(self) -> None:
        """Write the records; log their results under ``val/`` or ``test/``."""
        if not self.trainer.sanity_checking:
            log_results(self, self.evaluator.finish(quoted_config(self, self.evaluator.config)))

    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end

    def run_test_sets(
        self, name: str, evaluation: EvaluationConfig | None = None, *, every_turn: bool = False
    ) -> dict[str, Any]:
        """The results of a complete evaluation outside Lightning's loops, with their limits.

        Args:
            name: its files are in ``eval/<name>/``.
            evaluation: settings that replace :attr:`applied_evaluation`.
            every_turn: also record the turns after a stop.
        """
        evaluation = evaluation or self.applied_evaluation
        evaluator = new_evaluator(self, name, "test", evaluation, every_turn=every_turn)
        limit = self.trainer.limit_test_batches
        loaders = self.data.evaluation_loaders("test")
        for source, loader in zip(self.data.sources["test"], loaders, strict=True):
            # Rounded up: a process with one batch less must still take part in a common sync.
            batches = limit if isinstance(limit, int) else math.ceil(len(loader) * limit)
            for problems in islice(loader, batches):
                evaluator.solve(problems, source.name, source.max_completion_tokens)
        return evaluator.finish(quoted_config(self, evaluation))

    @property
    def applied_evaluation(self) -> EvaluationConfig:
        """The configured evaluation, with the stopping rule that applies.

        This is the configured one, else the certified one, else the paper's.
        """
        certificate = operating_point(self)
        rule = Confident() if certificate is None else certificate.rule
        return replace(self.evaluation, stop=self.evaluation.stop or rule)


# --- its certificate, its configuration, its results --------------------------------------------


def part_of(module: PolicyModule) -> Split:
    """The data that Lightning's current loop evaluates."""
    stage: Any = module.trainer.state.stage
    return stage.dataloader_prefix  # type: ignore[no-any-return]


def new_evaluator(
    module: PolicyModule,
    name: str,
    part: Split,
    evaluation: EvaluationConfig,
    *,
    every_turn: bool = False,
) -> Evaluator:
    """An evaluation of the current weights, begun or continued, with files in ``eval/name``."""
    trial = module.trainer.sanity_checking
    return Evaluator(
        module.actor,
        evaluation,
        recipe=module.recipe,
        folder=Path(module.trainer.default_root_dir) / "eval" / name,
        seed=module.seed,
        step=module.global_step,
        fingerprint=None if trial else record_fingerprint(module, part, evaluation),
        every_turn=every_turn,
        gather=gather_lists,
        rank=module.trainer.global_rank,
        quiet=not shows_progress(module.trainer),
    )


def operating_point(module: PolicyModule) -> Certificate | None:
    """The certificate in the policy's folder; None without one, and for a server."""
    if isinstance(module.actor, RemotePolicy):
        return None
    return read_operating_point(module.policy_config.path)


def report_operating_point(module: PolicyModule) -> None:
    """Log that the rule of the policy's certificate is used; warn of what voids its promises."""
    certificate = operating_point(module)
    folder = module.policy_config.path
    if module.evaluation.stop is not None or certificate is None:
        return
    file = Path(folder) / OPERATING_POINT
    rule = module.applied_evaluation.full_rule
    text = f"stops at {rule}, the operating point of {file}"
    if not module.evaluation.adaptive:
        text = f"records every turn; replays stop at {rule}, the operating point of {file}"
    rank_zero_info("; ".join([text, *certificate.promises]))
    protocol = module.applied_evaluation.resolve(module.recipe)
    settings = {
        "model": {"evaluation": asdict(module.evaluation), "policy": asdict(module.policy_config)},
        "data": {part: [*map(asdict, module.data.sources[part])] for part in ("val", "test")},
    }
    departures = certificate.departures(
        protocol.rule, protocol.max_turns, certified_settings(settings)
    )
    if not certificate.is_for(folder):  # hashes whole files
        departures.append("other weights than it was written for")
    departures += [f"any answer: {reason}" for reason in certificate.unrecorded]
    if departures:
        rank_zero_warn(f"{file} promises nothing for {', '.join(departures)}")
    part = part_of(module)
    names = {}
    if part != "train":
        problems = module.data.problems(part)
        for source, rows in zip(module.data.sources[part], problems, strict=True):
            for row in rows:
                name = f"{source.name}/{row.id}"
                names[name] = (name, row.question)
    if note := certificate.calibration_note(names):
        rank_zero_warn(f"{file}: {note}; its promises say nothing of these")


def quoted_config(module: PolicyModule, evaluation: EvaluationConfig) -> dict[str, Any]:
    """The configuration for results files, with the stopping rule that is used."""
    model: dict[str, Any] = dict(module.run_config.get("model", {}))
    if isinstance(module.actor, RemotePolicy):  # only the requests are known here
        template = module.policy_config.chat_template_kwargs
        model = {key: model[key] for key in ("engine", "recipe", "evaluation") if key in model}
        model["policy"] = {"chat_template_kwargs": template}
    protocol = evaluation.resolve(module.recipe)
    stop = None if protocol.rule is None else rule_as_config(protocol.rule)
    model["evaluation"] = {**asdict(replace(evaluation, stop=None)), "stop": stop}
    return {
        **module.run_config,
        "model": model,
        "graders": dict.fromkeys(TASKS, evaluation.grader),
        "protocol": {
            "max_turns": protocol.max_turns,
            "adaptive": protocol.applied_rule is not None,
            "privileged": module.recipe.uses_labels,
        },
    }


def record_fingerprint(module: PolicyModule, part: Split, evaluation: EvaluationConfig) -> str:
    """A digest of all that determines a record, as far as it is known of a server."""
    sources = zip(module.data.sources[part], module.data.problems(part), strict=True)
    facts = {
        **module.actor.identity(),
        "policy": asdict(module.policy_config),
        "data": [(s.name, s.max_completion_tokens, problems_digest(p)) for s, p in sources],
        "ranks": module.trainer.world_size,
        "evaluation": repr(evaluation),
        "draws": [module.seed, module.global_step],
        "recipe": repr(module.recipe),
        "engine": type(module.engine).__name__,
        "versions": package_versions(),
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def log_results(module: PolicyModule, results: Mapping[str, Any]) -> None:
    """Log the results of Lightning's loop under ``val/`` or ``test/``."""
    now = module.global_step
    stage = part_of(module)
    if not results or stage == "predict":
        return
    for logger in module.trainer.loggers:
        if isinstance(logger, CSVLog):  # an earlier run of the command, or an interrupted one
            logger.keep(lambda step, key: step != now or not key.startswith(f"{stage}/"))
    values = named_metrics(stage, results)
    # Equal on all ranks already. Nothing is reduced: NCCL cannot reduce a CPU's tensors.
    # Lightning writes them to the loggers at "step" and returns them from validate() and
    # test(). In float64, as results.json.
    exact = {k: torch.tensor(v, dtype=torch.float64, device="cpu") for k, v in values.items()}
    exact["step"] = torch.tensor(float(now))
    module.log_dict(exact, logger=True)
    if stage == "val":
        for name, metric in (("val_acc", "accuracy"), ("turns", "turns")):
            module.log(name, results["macro"]["all"][metric], prog_bar=True, logger=False)
