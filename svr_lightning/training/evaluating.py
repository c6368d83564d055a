"""Validation, test and predict: adaptive inference inside Lightning's evaluation loops."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule

from svr_lightning.core.types import Problem, Turn
from svr_lightning.display import print_outcome, print_turn
from svr_lightning.evaluation.adaptive import Record
from svr_lightning.evaluation.results import (
    RESULTS,
    package_versions,
    summarize,
    write_results,
    write_samples,
)
from svr_lightning.metrics import METRIC_NAMES
from svr_lightning.rollout import Decoding
from svr_lightning.tasks import TASKS, get_task
from svr_lightning.training.config import EvaluationConfig
from svr_lightning.training.ranks import gather_lists


class AdaptiveEvaluation(LightningModule):
    """The evaluation half of :class:`SVRModule`; subclasses bring :meth:`run_adaptive`."""

    run_adaptive: Callable[..., list[Record]]
    """Adaptive inference on problems of one data set."""
    evaluation: EvaluationConfig
    run_config: dict[str, Any]
    """The resolved configuration, as results files quote it."""
    _records: list[Record]

    def on_validation_epoch_start(self) -> None:
        """Begin a fresh set of records."""
        self._records = []

    def validation_step(
        self, batch: list[Problem], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Solve a batch of one validation data set."""
        source = self._datamodule.val_sources[dataloader_idx]
        self._records += self.run_adaptive(batch, source.name, source.max_completion_tokens)

    def on_validation_epoch_end(self) -> None:
        """Log and write what the records say."""
        fitting = self.trainer.state.fn == "fit"
        name = self._step_name() if fitting else "validate"
        self._log_results("val", self.save_evaluation(name, self._records))

    def validation_is_on_disk(self) -> bool:
        """Whether the present step's validation was finished before an interruption."""
        return (self._evaluation_folder(self._step_name()) / RESULTS).is_file()

    def _step_name(self) -> str:
        return f"step-{self.global_step:06d}"

    def _evaluation_folder(self, name: str) -> Path:
        return Path(self.trainer.default_root_dir) / "eval" / name

    def on_test_epoch_start(self) -> None:
        """Begin a fresh set of records."""
        self._records = []

    def test_step(self, batch: list[Problem], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Solve a batch of one test data set."""
        source = self._datamodule.test_sources[dataloader_idx]
        self._records += self.run_adaptive(batch, source.name, source.max_completion_tokens)

    def on_test_epoch_end(self) -> None:
        """Log and write what the records say."""
        self._log_results("test", self.save_evaluation("test", self._records))

    def on_predict_epoch_start(self) -> None:
        """Begin a fresh set of records."""
        self._records = []

    def predict_step(self, batch: list[Problem], batch_idx: int) -> list[Record]:
        """Answer the user's questions, showing each turn as it comes."""
        several = len(batch) > 1

        def show(problem: Problem, turn: Turn) -> None:
            print_turn(problem, turn, name_problem=several)

        records = self.run_adaptive(batch, "predict", on_turn=show)
        for record in records:
            print_outcome(record, self.evaluation.threshold)
        self._records += records
        return records

    def on_predict_epoch_end(self) -> None:
        """Leave the transcripts on disk."""
        self.save_evaluation("predict", self._records)

    def save_evaluation(self, name: str, records: Sequence[Record]) -> dict[str, Any]:
        """Gather the records of all ranks and write ``eval/<name>/``.

        Returns:
            The results on every rank; empty where no problem has a reference.
        """
        everything = gather_records(records)
        graded = bool(everything) and all(record["reference"] for record in everything)
        if self.trainer.is_global_zero and everything and not self.trainer.sanity_checking:
            folder = self._evaluation_folder(name)
            if graded:
                graders = {name: task.grader for name, task in TASKS.items()}
                config = {**self.run_config, "graders": graders}
                write_results(folder, everything, config, package_versions())
            else:
                write_samples(folder, everything)
        return summarize(everything) if graded else {}

    def write_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log at an optimizer step of our choosing.

        Lightning's own step counter lags by one after a resume, which would shift the curves.
        """
        for logger in self.trainer.loggers:
            logger.log_metrics(dict(values), step=step)

    def _log_results(self, stage: str, results: dict[str, Any]) -> None:
        datasets: dict[str, dict[str, Any]] = dict(results.get("datasets", {}))
        macro = results.get("macro", {})
        if len(datasets) > 1:
            datasets |= {name: macro[name] for name in ("all", "math") if macro[name]["datasets"]}
        values = {
            f"{stage}/{dataset}/{metric}": float(metrics[metric])
            for dataset, metrics in datasets.items()
            for metric in METRIC_NAMES
            if metrics[metric] is not None
        }
        self.write_metrics(values, self.global_step)
        # Equal on all ranks already; Lightning advises to say so.
        self.log_dict(values, logger=False, sync_dist=True)
        if stage == "val" and macro:
            for name, metric in (("val_acc", "accuracy"), ("turns", "turns")):
                self.log(name, macro["all"][metric], prog_bar=True, logger=False, sync_dist=True)

    @property
    def _datamodule(self) -> Any:
        return self.trainer.datamodule  # type: ignore[attr-defined]


def evaluation_decoding(config: EvaluationConfig, task: str, own_limit: int | None) -> Decoding:
    """How completions of a data set are drawn.

    Args:
        config: the evaluation.
        task: name of the data set's task.
        own_limit: the data set's own completion limit; None takes the task's. Neither goes above
            ``config.max_completion_tokens``.
    """
    limit = own_limit or get_task(task).max_completion_tokens
    if config.max_completion_tokens is not None:
        limit = min(limit, config.max_completion_tokens)
    return Decoding(
        max_completion_tokens=limit,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
    )


def gather_records(records: Sequence[Record]) -> list[Record]:
    """The records of all ranks, each problem of a data set once, in a stable order."""
    return list({(r["dataset"], r["id"]): r for r in gather_lists(records)}.values())
