"""The comparison on held-out problems: adaptive inference before training and after it."""

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.console import Console

from svr_lightning.display import plain, text_table

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
        if trainer.ckpt_path is None and _compares(trainer):
            pl_module.evaluating.run_test_sets("before")

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate the trained policy and print the table."""
        if trainer.interrupted or not _compares(trainer):
            return
        pl_module.evaluating.run_test_sets("after")
        root = Path(trainer.default_root_dir) / "eval"
        files = [root / name / "results.json" for name in ("before", "after")]
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
    rows = []
    for key, label, form in ROWS:
        old, new = before.get(key), after.get(key)
        texts = ["undefined" if value is None else form.format(value) for value in (old, new)]
        change = "" if old is None or new is None else form.replace(":", ":+").format(new - old)
        rows.append([label, *texts, change])
    title = f"{plain(dataset)}: {after['n']} held-out prompts{note}"
    Console().print(text_table(("", "before", "after", "change"), rows, title))


def _compares(trainer: Trainer) -> bool:
    """Whether there is something to compare: nothing in a ``fast_dev_run``."""
    data, fast = trainer.datamodule, trainer.fast_dev_run  # type: ignore[attr-defined]
    return not fast and bool(data.sources["test"])
