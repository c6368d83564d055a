"""An :class:`Evaluator` inside Lightning's validation, test and predict loops."""

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from svr_lightning.analysis.metrics import named_metrics
from svr_lightning.analysis.operating_point import (
    OPERATING_POINT,
    Certificate,
    read_operating_point,
)
from svr_lightning.analysis.results import RESULTS, certified_settings
from svr_lightning.core.stopping import Confident, StopRule, rule_as_config
from svr_lightning.core.types import Problem
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.evaluation.printing import print_outcome, print_turn
from svr_lightning.tasks import TASKS
from svr_lightning.training.data import Split
from svr_lightning.training.gathering import gather_lists
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.policy import fingerprint as hash_of
from svr_lightning.training.policy import weights_fingerprint
from svr_lightning.training.sources import problems_digest


class ModuleEvaluation:
    """Evaluates a module's policy on its data module's problems, and logs the results.

    ``module`` is an :class:`SVRModule`, whose file imports this one.
    """

    evaluator: Evaluator
    """From :meth:`connect` on."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def connect(self) -> None:
        """Create the evaluator; the engine has started and the trainer is known."""
        module, trainer, here = self._module, self._module.trainer, self._module.in_process
        self.evaluator = Evaluator(
            module.engine,
            self.config,
            recipe=module.recipe,
            renderer=module.renderer if here else None,
            root=Path(trainer.default_root_dir),
            seed=module.seed,
            chat_template_kwargs=module.policy_config.chat_template_kwargs,
            sampling=module.serving.sampling if here else None,
            gather=gather_lists,
            rank=trainer.global_rank,
            shared=module.ranks_per_engine,
        )

    @cached_property
    def operating_point(self) -> Confident | Certificate | None:
        """The certificate in the policy's folder; None without one, and for a server."""
        path = self._module.policy_config.path
        return read_operating_point(path) if self._module.in_process else None

    @property
    def config(self) -> EvaluationConfig:
        """The configured evaluation, with the stopping rule that applies.

        This is the configured one, else the policy's own, else the paper's.
        """
        configured: EvaluationConfig = self._module.evaluation
        own = self.operating_point
        rule = own.rule if isinstance(own, Certificate) else own
        return replace(configured, stop=configured.stop or rule or Confident())

    @property
    def protocol(self) -> tuple[int, StopRule | None]:
        """T_max and the stopping rule, also if every turn is recorded."""
        return self.config.stop_policy(self._module.recipe, self.config.full_rule)

    def report_operating_point(self) -> None:
        """Log that the policy's own rule is used, and which settings void its guarantee."""
        own, folder = self.operating_point, self._module.policy_config.path
        if self._module.evaluation.stop is not None or own is None:
            return
        file, rule = Path(folder) / OPERATING_POINT, self.config.full_rule
        certificate = own if isinstance(own, Certificate) else None
        promised = "".join(f"; {words}" for words in certificate.promises) if certificate else ""
        rank_zero_info(f"stops at {rule}, the operating point of {file}{promised}")
        if certificate is None:
            return
        turns, applied = self.protocol
        module = self._module
        told = {
            "model": {
                "evaluation": asdict(module.evaluation),
                "policy": asdict(module.policy_config),
            },
            "data": {part: [*map(asdict, self._data.sources[part])] for part in ("val", "test")},
        }
        other = certificate.departures(applied, turns, certified_settings(told))
        if not certificate.is_for(folder):  # hashes whole files
            other.append("other weights than it was written for")
        if other:
            rank_zero_warn(f"{file} promises nothing for {', '.join(other)}")

    def quoted_config(self) -> dict[str, Any]:
        """The configuration for results files, with the stopping rule that is used."""
        module = self._module
        model: dict[str, Any] = dict(module.run_config.get("model", {}))
        if not module.in_process:  # of a server's policy only the requests are known here
            template = module.policy_config.chat_template_kwargs
            model = {key: model[key] for key in ("engine", "recipe", "evaluation") if key in model}
            model["policy"] = {"chat_template_kwargs": template}
        max_turns, rule = self.protocol
        stop = None if rule is None else rule_as_config(rule)
        model["evaluation"] = {**model.get("evaluation", {}), "stop": stop}
        return {
            **module.run_config,
            "model": model,
            "graders": dict.fromkeys(TASKS, module.evaluation.grader),
            "protocol": {
                "max_turns": max_turns,
                "adaptive": rule is not None and module.evaluation.adaptive,
                "privileged": module.recipe.uses_labels,
            },
        }

    def begin(self, name: str, split: Split, *, every_turn: bool = False) -> None:
        """Begin ``eval/<name>/``, or continue that of a killed process.

        With ``every_turn``, the turns after a stop are recorded too.
        """
        if self._module.trainer.sanity_checking:
            self.evaluator.records = []
            return
        found = self.evaluator.begin(
            name,
            step=self._module.global_step,
            fingerprint=self.fingerprint(split),
            every_turn=every_turn,
        )
        if found:
            rank_zero_info(found)

    def solve(self, problems: list[Problem], split: Split, index: int = 0) -> None:
        """Run a batch of one data set: adaptive inference, or votes."""
        source = self._data.sources[split][index]
        voting = split == "test" and self.evaluator.config.votes
        run = self.evaluator.vote if voting else self.evaluator.solve
        run(problems, source.name, source.max_completion_tokens)

    def answer(self, problems: list[Problem]) -> list[dict[str, Any]]:
        """Answer the user's questions, showing each turn as it comes; the records as JSON."""
        show = partial(print_turn, name_problem=len(problems) > 1)
        (source,) = self._data.sources["predict"]
        records = self.evaluator.solve(problems, source.name, source.max_completion_tokens, show)
        for record in records:
            print_outcome(record, self.evaluator.rule, name_problem=len(problems) > 1)
        return [record.to_json() for record in records]

    def finish(self, stage: Split | None = None) -> None:
        """Write the files; with a ``stage``, also log the metrics under ``<stage>/...``."""
        if self._module.trainer.sanity_checking:
            return
        results = self.evaluator.finish(self.quoted_config())
        if stage is not None:
            self._log(stage, results)

    def run_test_sets(self, name: str, *, every_turn: bool = False) -> None:
        """A complete evaluation outside Lightning's loops, with their limit on batches."""
        self.begin(name, "test", every_turn=every_turn)
        limit, loaders = self._module.trainer.limit_test_batches, self._data.test_dataloader()
        for source, loader in zip(self._data.sources["test"], loaders, strict=True):
            # Rounded up: a process with one batch less must not stay away from a common sync.
            batches = limit if isinstance(limit, int) else math.ceil(len(loader) * limit)
            for problems in islice(loader, batches):
                self.evaluator.solve(problems, source.name, source.max_completion_tokens)
        self.finish()

    @property
    def validation_name(self) -> str:
        """Folder of a validation: that of the step while training."""
        return self._step_name if self._module.trainer.state.fn == "fit" else "validate"

    def fingerprint(self, split: Split) -> str | None:
        """A digest of all that determines a record; None if the engine has its own journal."""
        module, policy = self._module, self._module.policy_config
        if not module.in_process:
            return None
        sources = zip(self._data.sources[split], self._data.problems(split), strict=True)
        return hash_of(
            {
                "weights": weights_fingerprint(module.policy.state_dict()),
                **({} if policy.lora is None else {"lora": asdict(policy.lora)}),
                "prompts": [
                    module.renderer.tokenizer.chat_template,
                    policy.chat_template_kwargs,
                    policy.max_prompt_tokens,
                    policy.max_model_len,
                ],
                "data": [(s.name, s.max_completion_tokens, problems_digest(p)) for s, p in sources],
                "ranks": module.trainer.world_size,
                **self.evaluator.identity(),
            }
        )

    def log_finished_validation(self) -> bool:
        """Whether the present step's validation was finished before an interruption.

        Its results may be on disk but not completely in the log: they are logged again.
        """
        self._forget("val")
        path = self.evaluator.folder(self._step_name) / RESULTS
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        # Rank 0 wrote it, perhaps to a disk that only rank 0 can read.
        text = self._module.trainer.strategy.broadcast(text)
        if text is None:
            return False
        values = named_metrics("val", json.loads(text))
        self._module.write_metrics(values, self._module.global_step)
        return True

    @property
    def _step_name(self) -> str:
        return f"step-{self._module.global_step:06d}"

    @property
    def _data(self) -> Any:
        return self._module.trainer.datamodule

    def _log(self, stage: str, results: Mapping[str, Any]) -> None:
        self._forget(stage)  # of an earlier run of the same command, or of an interrupted one
        module, values = self._module, named_metrics(stage, results)
        # Equal on all ranks already. Nothing is reduced: NCCL cannot reduce a CPU's tensors.
        # Lightning writes them to the loggers at "step" and returns them from validate() and
        # test(). In float64, as results.json.
        exact = {k: torch.tensor(v, dtype=torch.float64, device="cpu") for k, v in values.items()}
        if exact:
            exact["step"] = torch.tensor(float(module.global_step))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*have no logger configured.*")
            module.log_dict(exact, logger=True)
        macro = results.get("macro")
        if stage == "val" and macro:
            for name, metric in (("val_acc", "accuracy"), ("turns", "turns")):
                module.log(name, macro["all"][metric], prog_bar=True, logger=False)

    def _forget(self, stage: str) -> None:
        """Drop from ``metrics.csv`` what was logged of a stage at the present step."""
        for logger in self._module.trainer.loggers:
            if isinstance(logger, CSVLog):
                logger.forget(self._module.global_step, f"{stage}/")
