"""The miniature experiment of all methods, from the root of a checkout.

    python -m experiments.miniature                              # everything, two runs at once
    python -m experiments.miniature --task arithmetic            # the word problems
    python -m experiments.miniature --rows svr grpo --seeds 42   # some of it
    python -m experiments.miniature --report                     # only the tables again

Seeds that are published are not run again. A step that has left its result is skipped, a training
that was interrupted goes on from its checkpoint: start the same command again. The tables are
written to experiments/miniature/results, the figure to docs.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from experiments.commands import Command
from experiments.miniature import rows, tables
from experiments.miniature.claims import claim_entries
from experiments.miniature.recordings import FILE, joined, judged_row, read_outcomes, write_outcomes
from experiments.miniature.results import budget_entries, row_entries
from experiments.miniature.rows import Row
from experiments.miniature.summary import Judged
from svr_lightning.errors import ConfigError
from svr_lightning.files import write_file, write_json
from svr_lightning.report.drawing import svg


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not published and not done, then write the tables; 1 if a command failed."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m experiments.miniature", description=__doc__, formatter_class=formatter
    )
    every = [*rows.BY_NAME]
    parser.add_argument("--task", choices=rows.BOTH, default="countdown")
    parser.add_argument("--rows", nargs="+", choices=every, default=every, metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*rows.SEEDS])
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (2)")
    parser.add_argument("--report", action="store_true", help="write the tables, run nothing")
    options = parser.parse_args(arguments)
    tuned = json.loads((rows.RESULTS / options.task / "tuned.json").read_text(encoding="utf-8"))
    rates = {name: row["lr"] for name, row in tuned["rates"].items()}
    failed: list[str] = []
    try:
        published = read_outcomes(rows.RESULTS / options.task / FILE)
        done = {(one.row.name, seed) for one in published for seed in one.seeds}
        new = {
            (row, seed): rows.commands(row, seed, options.task, rates)
            for row in rows.rows_of(options.task)
            for seed in rows.seeds_of(row)
            if row.name in options.rows and seed in options.seeds and (row.name, seed) not in done
        }
        for borrows in () if options.report else (False, True):
            # A row that judges another's policies comes after it.
            chosen = [steps for (row, _), steps in new.items() if bool(row.policy_of) == borrows]
            with ThreadPoolExecutor(options.jobs) as pool:
                failed += filter(None, pool.map(run, chosen))
        judged = [cell for cell, steps in new.items() if all(one.done for one in steps)]
        report(options.task, published, judged)
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


def report(task: rows.Task, published: Sequence[Judged], new: Sequence[tuple[Row, int]]) -> None:
    """Add the row of each new seed to what is published, and write the tables and the figure."""
    folder = rows.RESULTS / task
    found = {one.row.name: one for one in published}
    for row in dict.fromkeys(row for row, _ in new):
        here = judged_row(row, [seed for one, seed in new if one is row], task)
        found[row.name] = joined(found[row.name], here) if row.name in found else here
    if new:
        write_outcomes(folder / FILE, [*found.values()])
    every = [found[row.name] for row in rows.rows_of(task) if row.name in found]
    entries, budgets, claims = row_entries(every), budget_entries(every), claim_entries(every)
    results = {"rows": entries, "budgets": budgets, "claims": claims}
    write_json(folder / "results.json", results)
    write_file(folder / "table.md", [tables.table_md(results)])
    write_file(f"docs/miniature-{task}.svg", [svg(tables.budgets, budgets["curves"])])
    print(f"{folder / 'table.md'}: {len(entries)} rows")


if __name__ == "__main__":
    sys.exit(main())
