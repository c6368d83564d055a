"""Results, tables and figures of everything that was judged."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.miniature import plan, tuning
from experiments.miniature.cells import read_record
from experiments.miniature.figure import budgets as draw_budgets
from experiments.miniature.figure import rows as draw_rows
from experiments.miniature.outcomes import FILE as OUTCOMES
from experiments.miniature.outcomes import write_outcomes
from experiments.miniature.plan import Settings
from experiments.miniature.reading import Seeds, joined, read_row
from experiments.miniature.results import REFERENCE, summarise
from experiments.miniature.tables import commands_md, table_md
from svr_lightning.analysis.results import package_versions
from svr_lightning.errors import ConfigError
from svr_lightning.files import write_file, write_json
from svr_lightning.report.drawing import svg

FILES = (
    "table.md",
    "results.json",
    "commands.md",
    "rows.svg",
    "budgets.svg",
    OUTCOMES,
    tuning.TUNED,
)
HEADLINES = (
    *("warm_start", "grpo", "grpo_mt", "murphy", "svr", "svr_plus"),
    *("rlcr_fresh", "svr_fresh", "svr_plus_fresh"),
)
"""The rows of the figure of budgets, which more would make unreadable."""


def write_report(
    settings: Settings, seeds: Sequence[int], names: Sequence[str], published: Sequence[Seeds] = ()
) -> list[str]:
    """Leave the outcomes of all rows and what follows from them: tables, numbers, two figures.

    Args:
        settings: of the experiment.
        seeds: that were planned.
        names: of the rows.
        published: what was judged earlier; the seeds of a row that stand there count as done.

    Returns:
        Lines for the terminal.

    Raises:
        ConfigError: if nothing was judged yet, or results cannot be read.
    """
    out = Path(settings.out)
    found = [one for name in names if (one := _judged(name, seeds, settings, published))]
    if not found:
        raise ConfigError(f"{settings.out}: nothing is judged yet; run --stage judge")
    write_outcomes(out / OUTCOMES, found, settings.task)
    shown = replace(settings, out=Settings.out)  # without this run's folder
    write_file(out / "commands.md", [commands_md([one.row for one in found], shown, seeds)])
    write_json(out / "times.json", _seconds(found, settings))
    missing = _missing(found, names, seeds)
    entries, budgets = summarise(found)
    tuned = out / tuning.TUNED
    write_json(
        out / "results.json",
        {
            "rows": entries,
            "budgets": budgets,
            "missing": missing,
            "tuned": json.loads(tuned.read_text(encoding="utf-8")) if tuned.is_file() else None,
            "versions": package_versions(),
        },
    )
    write_file(out / "table.md", [table_md(entries, budgets, missing)])
    # What is shown is greedy, where fresh turns repeat the first one.
    once = [_point(entry) for entry in entries if entry["group"] != "fresh"]
    write_file(out / "rows.svg", [svg(draw_rows, once)])
    curves = [one for one in budgets["curves"] if one["name"] in HEADLINES]
    write_file(out / "budgets.svg", [svg(draw_budgets, {"curves": curves})])
    table = f"{out / 'table.md'}: {len(entries)} rows"
    return [table, *(f"not judged: {cell}" for cell in missing)]


def _judged(
    name: str, seeds: Sequence[int], settings: Settings, published: Sequence[Seeds]
) -> Seeds | None:
    """What was judged of a row, here or earlier."""
    row = plan.BY_NAME[name]
    earlier = next((one for one in published if one.row is row), None)
    left = [seed for seed in seeds if not earlier or seed not in earlier.seeds]
    tuned = not plan.trains(row) or (row.rate_of or row.name) in settings.rates
    here = read_row(row, left, settings) if tuned else None
    return joined(earlier, here) if earlier and here else earlier or here


def publish(out: Path, folder: Path, files: Sequence[str] = FILES) -> list[str]:
    """Copy ``files``; returns a line that says so.

    Raises:
        ConfigError: if one is not there.
    """
    for name in files:
        source, target = out / name, folder / name
        if not source.is_file():
            raise ConfigError(f"{source} is not there; run --stage report")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return [f"{folder}: {', '.join(files)}"]


def _point(entry: Mapping[str, Any]) -> dict[str, Any]:
    values = entry["greedy"]
    return {
        "title": entry["title"],
        "kind": kind_of(entry),
        "accuracy": values["accuracy"]["mean"],
        "interval": values["accuracy"]["ci95"],
        "tokens": values["tokens"]["mean"],
    }


def kind_of(entry: Mapping[str, Any]) -> str:
    """As the figure of rows tells them apart."""
    if entry["name"] == REFERENCE:
        return "reference"
    return "privileged" if entry["privileged"] else str(entry["group"])


def _missing(found: Sequence[Seeds], names: Sequence[str], seeds: Sequence[int]) -> list[str]:
    judged = {(one.row.name, seed) for one in found for seed in one.seeds}
    return [
        f"{name}-{seed}"
        for name in names
        for seed in plan.seeds_of(plan.BY_NAME[name], tuple(seeds))
        if (name, seed) not in judged
    ]


def _seconds(found: Sequence[Seeds], settings: Settings) -> dict[str, dict[str, Any]]:
    """How long each command of each cell took, with whatever else ran beside it."""
    taken = {}
    for one in found:
        for seed in one.seeds:
            cell = plan.cell(one.row, seed, settings, ("train", "judge"))
            seconds = {c.name: read_record(c).get("seconds") for c in cell.commands}
            if None not in seconds.values():  # else it was published by another run
                taken[cell.name] = seconds
    return taken
