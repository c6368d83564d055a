"""Validation, test and predict: adaptive inference inside Lightning's evaluation loops."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule

from svr_lightning.core.types import Problem, Turn
from svr_lightning.display import print_outcome, print_turn
from svr_lightning.evaluation.adaptive import OnTurn, Record
from svr_lightning.evaluation.results import package_versions, summarize, write_results


class AdaptiveEvaluation(LightningModule):
    """The evaluation half of :class:`SVRModule`; subclasses bring :meth:`run_adaptive`."""

    run_config: dict[str, Any]
    """The resolved configuration, as results files quote it."""
    _records: list[Record]

    def run_adaptive(
        self,
        problems: Sequence[Problem],
        dataset: str,
        max_completion_tokens: int | None = None,
        on_turn: OnTurn | None = None,
    ) -> list[Record]:
        """Adaptive inference on problems of one data set."""
        raise TypeError("a subclass of AdaptiveEvaluation brings run_adaptive")

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
        name = f"step-{self.global_step:06d}" if fitting else "validate"
        self._log_results("val", self.save_evaluation(name, self._records))

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
            print_outcome(record, self.evaluation_threshold)
        self._records += records
        return records

    def on_predict_epoch_end(self) -> None:
        """Leave the transcripts on disk."""
        self.save_evaluation("predict", self._records)

    @property
    def evaluation_threshold(self) -> float:
        """gamma of the present configuration."""
        return float(self.evaluation.threshold)  # type: ignore[union-attr, arg-type]

    def save_evaluation(self, name: str, records: Sequence[Record]) -> dict[str, Any]:
        """Gather the records of all ranks and write ``eval/<name>/``.

        Returns:
            The results on every rank; empty where no problem has a reference.
        """
        everything = gather_records(records)
        graded = [r for r in everything if all(t["correct"] is not None for t in r["turns"])]
        results = summarize(graded) if graded else {}
        if self.trainer.is_global_zero and everything and not self.trainer.sanity_checking:
            folder = Path(self.trainer.default_root_dir) / "eval" / name
            write_results(folder, everything, self.run_config, package_versions())
        return results

    def _log_results(self, stage: str, results: dict[str, Any]) -> None:
        datasets: dict[str, dict[str, Any]] = dict(results.get("datasets", {}))
        if len(datasets) > 1:
            datasets |= {name: values for name, values in results["macro"].items() if values}
        for dataset, values in datasets.items():
            for metric, value in values.items():
                if isinstance(value, int | float) and metric != "n":
                    self.log(f"{stage}/{dataset}/{metric}", float(value), rank_zero_only=True)
        overall = results.get("macro", {}).get("all")
        if overall and stage == "val":
            for name, metric in (("val_acc", "accuracy"), ("turns", "turns")):
                value = float(overall[metric])
                self.log(name, value, prog_bar=True, logger=False, rank_zero_only=True)

    @property
    def _datamodule(self) -> Any:
        return self.trainer.datamodule  # type: ignore[attr-defined]


def gather_records(records: Sequence[Record]) -> list[Record]:
    """The records of all ranks, each problem of a data set once, in a stable order."""
    gathered = [list(records)]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gathered = [[] for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather_object(gathered, list(records))
    unique = {(r["dataset"], r["id"]): r for shard in gathered for r in shard}
    return list(unique.values())
