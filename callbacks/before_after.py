"""The comparison on held-out problems: adaptive inference before training and after it."""

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.console import Console
from rich.table import Table

ROWS = (
    ("accuracy", "accuracy", "{:.3f}"),
    ("first_turn_accuracy", "first-turn accuracy", "{:.3f}"),
    ("any_turn_accuracy", "any-turn accuracy", "{:.3f}"),
    ("turns", "mean turns", "{:.2f}"),
    ("avg_total_tokens", "tokens per problem", "{:.0f}"),
    ("esr", "early stop rate", "{:.3f}"),
    ("pse", "premature stop error", "{:.3f}"),
    ("verdict_accuracy", "verdict accuracy", "{:.3f}"),
    ("auroc", "AUROC of confidence", "{:.3f}"),
    ("brier", "Brier score", "{:.3f}"),
    ("overconfidence", "overconfidence", "{:.3f}"),
)


class BeforeAfter(Callback):
    """Runs the test sets at the start and at the end of ``fit`` and prints both side by side.

    Leaves ``eval/before/`` and ``eval/after/``. A resumed run keeps the ``before`` it has.
    ``trainer.limit_test_batches`` applies; ``trainer.fast_dev_run`` leaves the comparison out.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate the untrained policy; a resumed run did so when it began."""
        if trainer.ckpt_path is None and _test_sources(trainer):
            pl_module.evaluating.run("before", "test")

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate the trained policy and print the table."""
        if trainer.interrupted or not _test_sources(trainer):
            return
        pl_module.evaluating.run("after", "test")
        files = [_folder(trainer, name) / "results.json" for name in ("before", "after")]
        if trainer.is_global_zero and all(file.is_file() for file in files):
            before, after = (json.loads(file.read_text())["datasets"] for file in files)
            for dataset in sorted(before.keys() & after.keys()):
                uses_labels = pl_module.recipe.uses_labels
                print_comparison(dataset, before[dataset], after[dataset], uses_labels=uses_labels)


def print_comparison(
    dataset: str, before: dict[str, Any], after: dict[str, Any], *, uses_labels: bool = False
) -> None:
    """A table of before and after on one data set."""
    note = ", privileged: labels in prompts" if uses_labels else ""
    table = Table(title=f"{dataset}: {after['n']} held-out prompts{note}")
    for column in ("", "before", "after", "change"):
        table.add_column(column, justify="left" if not column else "right")
    for key, label, form in ROWS:
        old, new = before.get(key), after.get(key)
        change = "" if old is None or new is None else form.replace(":", ":+").format(new - old)
        table.add_row(label, _show(old, form), _show(new, form), change)
    Console().print(table)


def _show(value: float | None, form: str) -> str:
    return "undefined" if value is None else form.format(value)


def _test_sources(trainer: Trainer) -> list[Any]:
    """What is compared: nothing in a ``fast_dev_run``."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    fast: Any = trainer.fast_dev_run  # type: ignore[attr-defined]
    return [] if fast else list(data.test_sources)


def _folder(trainer: Trainer, name: str) -> Path:
    return Path(trainer.default_root_dir) / "eval" / name
