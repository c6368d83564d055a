"""What the self-check is worth from unselected starts, from published outcomes of every problem.

    python -m experiments.starts                  # results/TASK.json, the tables, and the pages
    python -m experiments.starts --collect RUNS --task TASK   # RUNS/plusN into results/TASK.npz

The numbers of README and docs/results.md and their picture are written anew with the tables.
A run is that of ``svr fit --config countdown_tiny --config methods/svr_plus --model.policy.path
RUNS/startN``, whose start is made by ``python -m experiments.warmstart --task countdown --seed N``.
Beside it may lie RUNS/exactN, the same with ``methods/svr_plus_exact``. The starts of ``untraced``
show no working; for word problems the configuration is ``arithmetic_tiny``. A collected start
replaces the published one of its seed.
"""

import argparse
from pathlib import Path

from experiments.starts import outcomes, pages
from experiments.starts.table import table
from svr_lightning.files import write_json

RESULTS = Path(__file__).with_name("results")


def main() -> None:
    """Collect outcomes, or make the tables of the published ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collect", type=Path, metavar="RUNS", help="publish these runs first")
    parser.add_argument("--task", choices=pages.TASKS, default="countdown", help="of the runs")
    options = parser.parse_args()
    if options.collect:
        runs = {
            int(file.parents[2].name.removeprefix("plus")): file.parents[2]
            for file in options.collect.glob("plus[0-9]*/eval/fresh/results.json")
        }
        dataset, _ = pages.TASKS[options.task]
        file = RESULTS / f"{options.task}.npz"
        new = outcomes.from_runs(dataset, runs)
        outcomes.write(file, outcomes.joined(outcomes.read(file), new))
    tables = {}
    for task in pages.TASKS:
        tables[task] = table(outcomes.read(RESULTS / f"{task}.npz"))
        write_json(RESULTS / f"{task}.json", tables[task])
    print(f"{pages.headline(tables)}\n\n{pages.grid(tables)}")
    pages.write(tables)


if __name__ == "__main__":
    main()
