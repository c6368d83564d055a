"""Run a benchmark: ``python -m tools.bench NAME [options]``; without a name, list them.

Each is a module with ``add_options(parser)`` and ``measure(options)``, which prints and returns its
figures. ``--out FILE`` keeps them as JSON.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from svr_lightning.files import write_json

BENCHMARKS = {
    "rollout": "pipelined turns against turns in lock-step",
    "serve": "the server under load, every answer checked, and what a turn costs in it",
    "step": "one whole optimizer step against TRL's GRPOTrainer",
    "update": "memory and time of blockwise log-probabilities",
}


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names; 1 if its figures miss its own limits."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{__doc__}\n")
        for name, what in BENCHMARKS.items():
            print(f"  {name:<9} {what}")
        return 0
    name, *rest = arguments
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        print(f"tools.bench: error: no benchmark {name!r}; known: {known}", file=sys.stderr)
        return 2
    benchmark = import_module(f"tools.bench.{name}")
    parser = argparse.ArgumentParser(
        prog=f"tools.bench {name}",
        description=benchmark.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmark.add_options(parser)
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args(rest)
    figures = benchmark.measure(options)
    if options.out:
        write_json(options.out, figures)
    return int(not figures.get("within_limits", True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
