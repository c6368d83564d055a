"""The comparison on held-out problems: adaptive inference before training and after it."""

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.console import Console

from svr_lightning.analysis.results import RESULTS, SAMPLES, read_tables
from svr_lightning.analysis.stops import compare_stops
from svr_lightning.core.metrics import DEFINITIONS
from svr_lightning.core.stopping import StopRule
from svr_lightning.display import plain, text_table


class BeforeAfter(Callback):
    """Runs the test sets at the start and at the end of ``fit`` and prints both side by side.

    Writes ``eval/before/`` and ``eval/after/``. A resumed run keeps its ``before``.
    ``trainer.limit_test_batches`` applies; ``trainer.fast_dev_run`` leaves the comparison out.

    Args:
        compare_stops: also record the turns that the trained policy would take after its stop, up
            to T_max for every problem, and name the best stopping rule that needs no self-check,
            within the tokens of the policy's own.
    """

    def __init__(self, compare_stops: bool = False) -> None:
        self.compare_stops = compare_stops

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate the untrained policy; a resumed run did so when it began."""
        if trainer.ckpt_path is None and _compares(trainer):
            pl_module.run_test_sets("before")

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate the trained policy and print the table."""
        if trainer.interrupted or not _compares(trainer):
            return
        pl_module.run_test_sets("after", every_turn=self.compare_stops)
        root = Path(trainer.default_root_dir) / "eval"
        files = [root / name / RESULTS for name in ("before", "after")]
        if trainer.is_global_zero and all(file.is_file() for file in files):
            before, after = (json.loads(file.read_text())["datasets"] for file in files)
            for dataset in sorted(before.keys() & after.keys()):
                uses_labels = pl_module.recipe.uses_labels
                print_comparison(dataset, before[dataset], after[dataset], uses_labels=uses_labels)
            max_turns, rule = pl_module.stop_policy
            if self.compare_stops and rule is not None:
                print_free_stops(root / "after" / SAMPLES, rule, max_turns)


def print_comparison(
    dataset: str, before: dict[str, Any], after: dict[str, Any], *, uses_labels: bool = False
) -> None:
    """A table of before and after on one data set."""
    note = ", privileged: labels in prompts" if uses_labels else ""
    rows = []
    for key, metric in DEFINITIONS.items():
        if not metric.in_tables:
            continue
        old, new = before.get(key), after.get(key)
        texts = ["undefined" if value is None else metric.text(value) for value in (old, new)]
        signed = metric.form.replace(":", ":+")
        change = "" if old is None or new is None else signed.format(new - old)
        rows.append([metric.words, *texts, change])
    title = f"{plain(dataset)}: {after['n']} held-out prompts{note}"
    Console().print(text_table(("", "before", "after", "change"), rows, title))


def print_free_stops(samples: Path, rule: StopRule, max_turns: int) -> None:
    """The best rule that needs no self-check on each data set, within the tokens of ``rule``.

    Its setting is chosen on one half of the problems and measured on the other, both ways.
    """
    _, tables = read_tables(samples)
    for name, table in tables.items():
        found = compare_stops({name: table}, rule, max_turns)
        free = [
            row
            for row in found["rows"]
            if not row["self_check"] and not row["reads_labels"] and row["accuracy"] is not None
        ]
        outcome = "no stopping rule without a self-check"
        if free:
            best = max(free, key=lambda row: float(row["accuracy"]))
            low, high = best["ci95"]
            outcome = (
                f"the best stop without a self-check is {best['name']}, accuracy "
                f"{best['accuracy']:.3f} [{low:.3f}, {high:.3f}] at {best['tokens']:.0f} tokens"
            )
        line = f"{plain(name)}: within {found['budget']:.0f} tokens, {outcome}"
        Console().print(line, markup=False, highlight=False)


def _compares(trainer: Trainer) -> bool:
    """Whether there is something to compare: nothing in a ``fast_dev_run``."""
    data, fast = trainer.datamodule, trainer.fast_dev_run  # type: ignore[attr-defined]
    return not fast and bool(data.sources["test"])
