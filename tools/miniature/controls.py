"""The controls alone: greedy answers of the untrained rows, which take minutes."""

from collections.abc import Sequence
from pathlib import Path

from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.results import package_versions
from svr_lightning.files import write_file, write_json
from svr_lightning.report.runs import Run, read_methods
from tools.miniature import plan, summary
from tools.miniature.cells import is_done
from tools.miniature.plan import Cell, Settings
from tools.miniature.reading import Seeds
from tools.miniature.results import Entry, control_entry, greedy_entry
from tools.miniature.tables import controls_md

FILES = ("controls.json", "controls.md")
COMMAND = "python -m tools.miniature --stage controls --publish tools/miniature/results"


def untrained_cells(settings: Settings) -> list[Cell]:
    """The greedy evaluation of each control that needs no training."""
    rows = [plan.BY_NAME[name] for name in plan.CONTROLS]
    cells = [plan.cell(row, plan.SEEDS[0], settings, ("judge",)) for row in rows if not row.trained]
    return [Cell(name=cell.name, commands=cell.commands[:1]) for cell in cells]


def write_controls(settings: Settings, seeds: Sequence[int]) -> list[str]:
    """Leave controls.json and controls.md; returns lines for the terminal.

    Raises:
        ConfigError: if no control was judged.
    """
    entries: list[Entry] = []
    missing: list[str] = []
    for name in plan.CONTROLS:
        found = read_greedy(name, seeds, settings)
        if found is None:
            missing.append(plan.BY_NAME[name].title)
            continue
        cluster = summary.clusters(found.tables[0].ids)
        drawn = summary.draws(cluster, len(found.seeds))
        entries.append({**greedy_entry(found, drawn), **control_entry(found.tables, drawn)})
    if not entries:
        raise ConfigError(f"{settings.out}: no control is judged; run --stage controls")
    out = Path(settings.out)
    record = {"command": COMMAND, "rows": entries, "missing": missing}
    write_json(out / FILES[0], {**record, "versions": package_versions()})
    write_file(out / FILES[1], [controls_md(entries, missing, COMMAND)])
    return [f"{out / FILES[1]}: {len(entries)} rows", *(f"not measured: {m}" for m in missing)]


def read_greedy(name: str, seeds: Sequence[int], settings: Settings) -> Seeds | None:
    """The greedy evaluations of a row's seeds that are done; None where there is none."""
    row = plan.BY_NAME[name]
    runs: list[Run] = []
    done: list[int] = []
    for seed in plan.seeds_of(row, tuple(seeds)):
        (greedy, *_) = plan.cell(row, seed, settings, ("judge",)).commands
        if is_done(greedy):
            folder = f"{plan.folder_of(settings.out, row, seed)}/eval/test"
            runs += read_methods([f"{row.name}={folder}"])[0].runs
            done.append(seed)
    if not done:
        return None
    return Seeds(row=row, seeds=tuple(done), greedy=tuple(runs), sampled=(), votes={})
