"""Results, tables and figures of everything that was judged."""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from svr_lightning.cli import report
from svr_lightning.cli.commands import parser_of
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.results import package_versions
from svr_lightning.files import write_file, write_json
from svr_lightning.report.figure_experiment import rows as draw_rows
from svr_lightning.report.figure_style import svg
from tools.miniature import plan, tuning
from tools.miniature.cells import read_record
from tools.miniature.plan import Settings
from tools.miniature.reading import Seeds, read_row
from tools.miniature.results import REFERENCE, summarise
from tools.miniature.tables import commands_md, table_md

FIGURE = "00_rows"
RIVAL = "grpo_mt"
"""The row whose fixed budgets are drawn beside the reference's."""
LARGEST_PAGE = 2_000_000
"""Bytes of a page that is worth keeping beside its tables."""


def write_report(settings: Settings, seeds: Sequence[int], names: Sequence[str]) -> list[str]:
    """Leave results.json, table.md, commands.md, and the report page with its figures.

    Returns:
        What there is to tell about them.

    Raises:
        ConfigError: if nothing was judged yet, or results cannot be read.
    """
    rows = [plan.BY_NAME[name] for name in names]
    found = [judged for row in rows if (judged := read_row(row, seeds, settings))]
    if not found:
        raise ConfigError(f"{settings.out}: nothing is judged yet; run --stage judge")
    missing = _missing(found, names, seeds)
    entries = summarise(found)
    out = Path(settings.out)
    tuned = out / tuning.TUNED
    write_json(
        out / "results.json",
        {
            "rows": entries,
            "missing": missing,
            "tuned": json.loads(tuned.read_text(encoding="utf-8")) if tuned.is_file() else None,
            "seconds": _seconds(found, settings),
            "versions": package_versions(),
        },
    )
    write_file(out / "table.md", [table_md(entries, missing)])
    shown = Settings(rates=settings.rates, extra=settings.extra)  # as if it lay where it does
    write_file(out / "commands.md", [commands_md(shown, seeds)])
    _page(found, settings)
    _figure(entries, out / "report" / "figures")
    size = (out / "report" / "index.html").stat().st_size
    return [
        f"{out / 'table.md'}: {len(entries)} rows",
        *(f"not judged: {cell}" for cell in missing),
        f"{out / 'report' / 'index.html'}: {size / 1e6:.1f} MB",
    ]


def publish(out: Path, folder: Path, files: Sequence[str] | None = None) -> list[str]:
    """Copy tables, numbers, the figure of all rows and SVR's own; the page if it is small.

    The figures published there before are removed.

    Args:
        out: the experiment's folder.
        folder: where to copy to.
        files: only these files.

    Raises:
        ConfigError: if there is no report.
    """
    if files is not None:
        for name in files:
            _copy(out / name, folder / name)
        return [f"{folder}: {', '.join(files)}"]
    figures = _published(out / "report")
    shutil.rmtree(folder / "figures", ignore_errors=True)
    (folder / "index.html").unlink(missing_ok=True)
    for path in (out / name for name in ("table.md", "results.json", "commands.md")):
        _copy(path, folder / path.name)
    for stem, name in figures.items():
        for suffix in (".svg", ".json"):
            _copy(
                out / "report" / "figures" / f"{stem}{suffix}",
                folder / "figures" / f"{name}{suffix}",
            )
    page = out / "report" / "index.html"
    size = page.stat().st_size
    if size > LARGEST_PAGE:
        return [f"{folder}: without {page}, which has {size / 1e6:.1f} MB"]
    _copy(page, folder / "index.html")
    return [f"{folder}: with {page}, {size / 1e6:.1f} MB"]


def _published(folder: Path) -> dict[str, str]:
    """Under which name each figure is published; those of one method end in its number."""
    listing = folder / "report.json"
    if not listing.is_file():
        raise ConfigError(f"{listing} is not there; run --stage report")
    names = [one["name"] for one in json.loads(listing.read_text(encoding="utf-8"))["methods"]]
    stems = sorted({path.stem for path in (folder / "figures").glob("*.svg")})
    title = plan.BY_NAME[REFERENCE].title
    suffix = f"_{names.index(title) + 1}" if title in names else None
    own = {
        stem: f"{stem.removesuffix(suffix)}_{REFERENCE}"
        for stem in stems
        if suffix and stem.endswith(suffix)
    }
    return {FIGURE: FIGURE, **own}


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise ConfigError(f"{source} is not there; run --stage report")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _page(found: Sequence[Seeds], settings: Settings) -> None:
    """The report command over every row and seed, as a user would give it."""
    runs = [
        f"{judged.row.title}={plan.folder_of(settings.out, judged.row, seed)}/eval/test"
        for judged in found
        for seed in judged.seeds
    ]
    votes = [
        f"{plan.folder_of(settings.out, judged.row, judged.seeds[0])}/eval/votes/votes.json"
        for judged in found
        if judged.votes
    ]
    arguments = [*runs, "--out", f"{settings.out}/report", "--max-trajectories", "1"]
    arguments += [part for path in votes for part in ("--votes", path)]
    options: argparse.Namespace = parser_of("report").parse_args(arguments)
    report.run(options)


def _figure(entries: Sequence[Mapping[str, Any]], folder: Path) -> None:
    lines = [line for name in (REFERENCE, RIVAL) if (line := _line(entries, name))]
    numbers = {"rows": [_point(entry) for entry in entries], "lines": lines}
    write_file(folder / f"{FIGURE}.svg", [svg(draw_rows(numbers))])
    write_json(folder / f"{FIGURE}.json", numbers)


def _point(entry: Mapping[str, Any]) -> dict[str, Any]:
    values = entry["greedy"]
    return {
        "name": entry["title"],
        "kind": _kind(entry),
        "accuracy": values["accuracy"]["mean"],
        "accuracy_interval": values["accuracy"]["ci95"],
        "tokens": values["tokens"]["mean"],
        "tokens_interval": values["tokens"]["ci95"],
    }


def _line(entries: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any] | None:
    """A row under every fixed budget."""
    entry = next((entry for entry in entries if entry["name"] == name), None)
    if entry is None:
        return None
    fixed, spent = entry["fixed"], entry["fixed_tokens"]
    return {
        "name": f"{entry['title']}, 1 to {len(fixed)} fixed turns",
        "kind": _kind(entry),
        "accuracy": [*fixed.values()],
        "tokens": [*spent.values()],
    }


def _kind(entry: Mapping[str, Any]) -> str:
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


def _seconds(found: Sequence[Seeds], settings: Settings) -> dict[str, dict[str, float]]:
    """How long each command of each cell took, with whatever else ran beside it."""
    taken = {}
    for one in found:
        for seed in one.seeds:
            cell = plan.cell(one.row, seed, settings, ("train", "judge"))
            taken[cell.name] = {c.name: read_record(c).get("seconds", 0.0) for c in cell.commands}
    return taken
