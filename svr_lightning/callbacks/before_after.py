"""The comparison on held-out problems: adaptive inference before training and after it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, Trainer

from svr_lightning.analysis.check_value import Samples, check_value
from svr_lightning.analysis.results import RESULTS, Evaluation, read_evaluation
from svr_lightning.core.metrics import DEFINITIONS
from svr_lightning.core.ranges import WholeNumber, check_arguments
from svr_lightning.display import interval, plain, print_table
from svr_lightning.tiny.traces import trace_agrees

_DIFFERENCES = {
    "gap": "as stated, minus the best stop without it",
    "gain": "as stated, minus before training",
    "probable_gap": "with its probability, minus the best stop",
    "probable_gain": "with its probability, minus before training",
}


class BeforeAfter(Callback):
    """Runs the test sets at the start and at the end of ``fit`` and prints both side by side.

    Writes ``eval/before/`` and ``eval/after/``. A resumed run keeps its ``before``.
    ``trainer.limit_test_batches`` applies; ``trainer.fast_dev_run`` leaves the comparison out.

    Args:
        fresh_turns: above 0, also show what the self-check is worth: record every turn up to T_max
            after training, and in ``eval/fresh_before/`` and ``eval/fresh/`` as many fresh turns of
            every problem, sampled as in training. Ways to spend the same tokens with and without
            the self-check are compared.
    """

    @check_arguments
    def __init__(self, fresh_turns: WholeNumber = 0) -> None:
        self.fresh_turns = fresh_turns

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate the untrained policy; a resumed run did so when it began."""
        if trainer.ckpt_path is None and _compares(trainer):
            pl_module.run_test_sets("before")
            if self.fresh_turns:
                self._sample(pl_module, "fresh_before")

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate the trained policy and print the table."""
        if trainer.interrupted or not _compares(trainer):
            return
        pl_module.measured = pl_module.run_test_sets("after", every_turn=self.fresh_turns > 0)
        if self.fresh_turns:
            self._sample(pl_module, "fresh")
        root = Path(trainer.default_root_dir) / "eval"
        files = [root / name / RESULTS for name in ("before", "after")]
        if trainer.is_global_zero and all(file.is_file() for file in files):
            before, after = (json.loads(file.read_text())["datasets"] for file in files)
            for name in sorted(before.keys() & after.keys()):
                privileged = pl_module.recipe.uses_labels
                print_comparison(name, before[name], after[name], uses_labels=privileged)
            if self.fresh_turns:
                print_check_value(root)

    def _sample(self, pl_module: Any, name: str) -> None:
        """Record fresh turns of every problem in ``eval/<name>/``."""
        sampling = pl_module.sampling
        fresh = replace(
            pl_module.applied_evaluation,
            adaptive=False,
            fresh_turns=True,
            max_turns=self.fresh_turns,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        )
        pl_module.run_test_sets(name, fresh)


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
        signed = metric.form.replace(":", ":+")
        change = "" if old is None or new is None else signed.format(new - old)
        rows.append([metric.words, metric.text(old), metric.text(new), change])
    title = f"{plain(dataset)}: {after['n']} held-out prompts{note}"
    print_table(("", "before", "after", "change"), rows, title)


def print_check_value(folder: Path) -> None:
    """Tables of what the self-check is worth on each data set.

    Args:
        folder: of the evaluations ``after`` and ``fresh``, and ``fresh_before`` if there is one.
    """
    refined = read_evaluation(folder / "after").tables
    fresh = samples_of(read_evaluation(folder / "fresh"))
    earlier = folder / "fresh_before"
    untrained = samples_of(read_evaluation(earlier)) if earlier.is_dir() else {}
    shown = DEFINITIONS["accuracy"].text
    for name, table in refined.items():
        found = check_value(table, fresh[name], untrained.get(name))
        rows = []
        for row in found["rows"]:
            before = row["before"] or {"accuracy": None}
            cells = [row["name"], *(shown(each["accuracy"]) for each in (before, row))]
            if row["accuracy"] is not None:
                cells += [interval(row["ci95"]), f"{row['tokens']:.0f}"]
            rows.append(cells)
        title = f"{plain(name)}: accuracy within {found['budget']:.0f} tokens per problem"
        print_table(("", "before", "after", "95 %", "tokens"), rows, title)
        rows = [
            [words, f"{found[key]:+.3f}", interval(found[f"{key}_ci95"], "{:+.3f}")]
            for key, words in _DIFFERENCES.items()
            if found.get(key) is not None
        ]
        print_table(("difference", "mean", "95 %"), rows, "what the self-check is worth")


def samples_of(evaluation: Evaluation) -> dict[str, Samples]:
    """The fresh turns of each data set, and whether their own traces agree."""
    samples = {}
    for name, table in evaluation.tables.items():
        records = [record for record in evaluation.records if record.dataset == name]
        told = [[trace_agrees(turn.text) for turn in record.turns] for record in records]
        agrees = np.zeros_like(table.correct)
        for row, turns in enumerate(told):
            agrees[row, : len(turns)] = [agree is True for agree in turns]
        traced = any(agree is not None for turns in told for agree in turns)
        samples[name] = Samples(table, agrees if traced else None)
    return samples


def _compares(trainer: Trainer) -> bool:
    """Whether there is something to compare: nothing in a ``fast_dev_run``."""
    data, fast = trainer.datamodule, trainer.fast_dev_run  # type: ignore[attr-defined]
    return not fast and bool(data.sources["test"])
