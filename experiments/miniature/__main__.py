"""The miniature experiment of all methods, from the root of a checkout.

    python -m experiments.miniature                              # everything, two runs at once
    python -m experiments.miniature --task arithmetic            # the word problems
    python -m experiments.miniature --rows svr grpo --seeds 42   # some of it
    python -m experiments.miniature --report                     # the published tables again

A step that has left its result is skipped, a training that was interrupted goes on from its
checkpoint: start the same command again. Tables and figure of all that has been run are in
runs/miniature; ``--report`` makes the published ones again.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.commands import Command
from experiments.miniature import rows, tables
from experiments.miniature.claims import claim_entries
from experiments.miniature.recordings import FILE, from_runs, read_outcomes, write_outcomes
from experiments.miniature.results import budget_entries, row_entries
from experiments.miniature.rows import Row
from svr_lightning.errors import ConfigError
from svr_lightning.files import write_file, write_json
from svr_lightning.report.drawing import svg


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done and write the tables; 1 if a command failed."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m experiments.miniature", description=__doc__, formatter_class=formatter
    )
    every = [*rows.BY_NAME]
    parser.add_argument("--task", choices=rows.BOTH, default="countdown")
    parser.add_argument("--rows", nargs="+", choices=every, default=every, metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*rows.SEEDS])
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (2)")
    parser.add_argument("--report", action="store_true", help="the published tables, run nothing")
    options = parser.parse_args(arguments)
    if options.report:
        report(rows.RESULTS / options.task, Path(f"docs/miniature-{options.task}.svg"))
        return 0
    folder = rows.RUNS / options.task
    tuned = json.loads((rows.RESULTS / options.task / "tuned.json").read_text(encoding="utf-8"))
    rates = {name: row["lr"] for name, row in tuned["rates"].items()}
    plan = {
        (row, seed): rows.commands(row, seed, options.task, rates)
        for row in rows.rows_of(options.task)
        for seed in rows.seeds_of(row)
    }
    failed: list[str] = []
    for borrows in (False, True):
        # A row that judges another's policies comes after it.
        chosen = [
            steps
            for (row, seed), steps in plan.items()
            if row.name in options.rows and seed in options.seeds and bool(row.policy_of) == borrows
        ]
        with ThreadPoolExecutor(options.jobs) as pool:
            failed += filter(None, pool.map(run, chosen))
    done: dict[Row, list[int]] = {}
    for (row, seed), steps in plan.items():
        if all(step.done for step in steps):
            done.setdefault(row, []).append(seed)
    try:
        write_outcomes(folder / FILE, from_runs(done, options.task))
        report(folder, folder / "budgets.svg")
    except ConfigError as error:
        failed.append(f"experiments.miniature: error: {error}")
    for line in failed:
        print(line, file=sys.stderr)
    return int(bool(failed))


def run(steps: Sequence[Command]) -> str | None:
    """Run the steps that are not done; returns why the first one failed that did."""
    for step in steps:
        if not step.done:
            try:
                step.run()
            except ConfigError as error:
                return str(error)
            print(f"{step.name}: done", flush=True)
    return None


def report(folder: Path, figure: Path) -> None:
    """Write the tables and the figure of the outcomes in a folder."""
    every = sorted(read_outcomes(folder / FILE), key=lambda one: rows.ROWS.index(one.row))
    entries, budgets, claims = row_entries(every), budget_entries(every), claim_entries(every)
    results = {"rows": entries, "budgets": budgets, "claims": claims}
    write_json(folder / "results.json", results)
    write_file(folder / "table.md", [tables.table_md(results)])
    write_file(figure, [svg(tables.budgets, budgets["curves"])])
    print(f"{folder / 'table.md'}: {len(entries)} rows")


if __name__ == "__main__":
    sys.exit(main())
