"""Run a benchmark: ``python -m tools.bench NAME [options]``; ``--out FILE`` keeps its figures.

Each is a module with ``measure(options)``, which returns its figures; they are printed as JSON,
what sums them up at the end:

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


def main(arguments: list[str]) -> None:
    """Run the benchmark that the first argument names."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tools.bench", description=__doc__, formatter_class=form)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    engines = ("vllm", "transformers")
    parser.add_argument("--engine", choices=engines, default="vllm", help="of rollout (vllm)")
    parser.add_argument("--seconds", type=float, default=120, help="of serve (120)")
    parser.add_argument("--pairs", type=int, default=3, help="of step: processes per side (3)")
    parser.add_argument("--steps", type=int, default=10, help="of step: measured per process (10)")
    parser.add_argument("--trl-python", default=sys.executable, help="of step: has TRL (this one)")
    parser.add_argument("--side", help="of step: one side alone, in this process")
    options = parser.parse_args(arguments)
    benchmark = import_module(f"tools.bench.{options.name}")
    figures = {**this_machine(), **benchmark.measure(options)}
    print(to_json(figures, indent=1))
    if options.out:
        write_json(options.out, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
