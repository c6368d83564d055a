"""Run a benchmark: ``python -m tools.bench NAME [options]``; ``--out FILE`` keeps its figures.

Each is a module with ``add_options(parser)`` and ``measure(options)``, which returns its figures;
they are printed as JSON, what sums them up at the end:

- rollout: pipelined turns against turns in lock-step
- serve: the server under load, every answer checked, and what a turn costs in it
- step: one whole optimizer step against TRL's GRPOTrainer
- update: memory and time of blockwise log-probabilities
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from svr_lightning.files import to_json, write_json
from tools.bench.workloads import this_machine

BENCHMARKS = ("rollout", "serve", "step", "update")


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names; 1 if its figures miss its own limits."""
    form = argparse.RawDescriptionHelpFormatter
    first = argparse.ArgumentParser("tools.bench", description=__doc__, formatter_class=form)
    first.add_argument("name", choices=BENCHMARKS)
    name = first.parse_args(arguments[:1]).name
    benchmark = import_module(f"tools.bench.{name}")
    parser = argparse.ArgumentParser(
        prog=f"tools.bench {name}", description=benchmark.__doc__, formatter_class=form
    )
    benchmark.add_options(parser)
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args(arguments[1:])
    figures = {**this_machine(), **benchmark.measure(options)}
    print(to_json(figures, indent=1))
    if options.out:
        write_json(options.out, figures)
    return int(not figures.get("within_limits", True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
