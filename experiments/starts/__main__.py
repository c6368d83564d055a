"""What the self-check is worth from unselected starts, from published outcomes of every problem.

    python -m experiments.starts                  # results/table.json, the table, and the pages
    python -m experiments.starts collect RUNS     # results/outcomes.npz of the runs RUNS/plusN

The numbers of README and docs/results.md and their picture are written anew with the table.
A run is that of ``svr fit --config countdown_tiny --config methods/svr_plus --model.policy.path
RUNS/startN``, whose start is made by ``python -m experiments.warmstart --task countdown --seed N``.
Beside it may lie RUNS/exactN, the same with ``methods/svr_plus_exact``.
"""

import argparse
import re
from pathlib import Path

from experiments.starts import outcomes, pages
from experiments.starts.table import table
from svr_lightning.files import write_json

RESULTS = Path(__file__).with_name("results")


def main() -> None:
    """Collect outcomes, or make the table of the published ones."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("command", nargs="?", choices=["collect"])
    parser.add_argument("runs", nargs="?", type=Path, help="folder of the runs")
    options = parser.parse_args()
    file = RESULTS / "outcomes.npz"
    if options.command == "collect":
        if options.runs is None:
            parser.error("collect needs the folder of the runs")
        outcomes.write(file, outcomes.from_runs(finished(options.runs)))
    found = table(outcomes.read(file))
    write_json(RESULTS / "table.json", found)
    print(pages.headline(found), pages.grid(found), sep="\n\n")
    pages.write(found)


def finished(runs: Path) -> dict[int, Path]:
    """The runs that have their last evaluation, by the seed of their start."""
    found = {}
    for folder in runs.glob("plus*"):
        seed = re.fullmatch(r"plus(\d+)", folder.name)
        if seed and (folder / "eval" / "fresh" / "results.json").is_file():
            found[int(seed[1])] = folder
    return found


if __name__ == "__main__":
    main()
