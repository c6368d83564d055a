"""The miniature experiment of all methods, from the root of a checkout.

    python -m experiments.miniature                              # everything, two runs at once
    python -m experiments.miniature --task arithmetic --list     # what would run, as commands
    python -m experiments.miniature --rows svr grpo --seeds 42   # some of it
    python -m experiments.miniature --report                     # only the tables again

Seeds that are published are not run again. A step that has left its result is skipped, a training
that was interrupted goes on from its checkpoint: start the same command again. The tables are
written to experiments/miniature/results, the figure to docs.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.miniature import figure, rows
from experiments.miniature.claims import claim_entries
from experiments.miniature.recordings import FILE, Seeds, joined, judged_row, read_outcomes
from experiments.miniature.recordings import write_outcomes as write_recordings
from experiments.miniature.results import Judged, budget_entries, row_entries
from experiments.miniature.rows import BY_NAME, Command, Row
from experiments.miniature.tables import table_md
from svr_lightning.errors import ConfigError
from svr_lightning.files import write_file, write_json
from svr_lightning.report.drawing import svg

Cell = tuple[Row, int]
"""A row with one seed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report; 1 if a command failed, 2 for a fault of the user."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m experiments.miniature", description=__doc__, formatter_class=formatter
    )
    every = [*BY_NAME]
    parser.add_argument("--task", choices=rows.BOTH, default="countdown")
    parser.add_argument("--rows", nargs="+", choices=every, default=every, metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*rows.SEEDS])
    parser.add_argument("--out", default="runs/miniature", help="folder (runs/miniature)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (2)")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--report", action="store_true", help="write the tables, run nothing")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except ConfigError as error:
        print(f"experiments.miniature: error: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Run what is not published and not done, then write the tables of all there is."""
    folder = Path(rows.published(options.task))
    known = {one.row.name: one for one in read_outcomes(folder / FILE)}
    tuned = json.loads((folder / "tuned.json").read_text(encoding="utf-8"))
    rates = {name: row["lr"] for name, row in tuned["rates"].items()}
    planned = [
        (row, seed)
        for row in sorted(rows.rows_of(options.task), key=lambda row: bool(row.policy_of))
        for seed in rows.seeds_of(row)
        if row.name in options.rows and seed in options.seeds
    ]
    done = {(name, seed) for name, one in known.items() for seed in one.seeds}
    new = [(row, seed) for row, seed in planned if (row.name, seed) not in done]

    def commands(cell: Cell) -> list[Command]:
        return rows.commands(*cell, options.task, rates, options.out)

    if options.list:
        for cell in planned:
            for command in commands(cell):
                print(shlex.join(["python", "-m", "svr_lightning", *command.arguments]))
        return 0
    failed: list[str] = []
    if not options.report:
        for borrows in (False, True):  # a row that judges another's policies comes after it
            cells = [cell for cell in new if bool(cell[0].policy_of) == borrows]
            with ThreadPoolExecutor(options.jobs) as pool:
                failed += filter(None, pool.map(run_cell, map(commands, cells)))
    judged = [cell for cell in new if all(Path(c.result).is_file() for c in commands(cell))]
    report(options, folder, known, judged)
    for line in failed:
        print(line, file=sys.stderr)
    return int(bool(failed))


def run_cell(commands: Sequence[Command]) -> str | None:
    """Run the commands that are not done; returns a line about the first one that fails."""
    for command in commands:
        if Path(command.result).is_file():
            continue
        root = Path(command.arguments[-1])
        log = root / f"{command.name}.log"
        arguments = list(command.arguments)
        if command.name == "fit" and (root / "checkpoints" / "last.ckpt").is_file():
            arguments += ["--ckpt_path", "last"]
        root.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            line = [sys.executable, "-m", "svr_lightning", *arguments]
            one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
            code = subprocess.call(line, stdout=stream, stderr=stream, env=one_thread)
        print(f"{root}: {command.name} {'done' if not code else f'ended with {code}'}", flush=True)
        if code or not Path(command.result).is_file():
            return f"{root}: {command.name} left no {command.result}, see {log}"
    return None


def report(
    options: argparse.Namespace, folder: Path, known: dict[str, Seeds], done: Sequence[Cell]
) -> None:
    """Add what was judged to what is published, and write the tables and the figure."""
    found = dict(known)
    for row in rows.rows_of(options.task):
        if seeds := [seed for one, seed in done if one is row]:
            here = judged_row(row, seeds, options.task, options.out)
            found[row.name] = joined(found[row.name], here) if row.name in found else here
    if done:
        write_recordings(folder / FILE, [*found.values()])
    ordered = [found[row.name] for row in rows.rows_of(options.task) if row.name in found]
    every = [Judged(one) for one in ordered]
    entries, budgets, claims = row_entries(every), budget_entries(every), claim_entries(every)
    results = {"rows": entries, "budgets": budgets, "claims": claims}
    write_json(folder / "results.json", results)
    write_file(folder / "table.md", [table_md(results)])
    write_file(f"docs/miniature-{options.task}.svg", [svg(figure.budgets, budgets["curves"])])
    print(f"{folder / 'table.md'}: {len(entries)} rows")


if __name__ == "__main__":
    sys.exit(main())
