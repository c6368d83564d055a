"""``python -m experiments.real plan|run|report``: see README.md beside this file."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.real import plan
from experiments.real.report import report
from svr_lightning.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """0 is success, 1 a command that failed or cannot start."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real", description=__doc__)
    parser.add_argument("what", choices=("plan", "run", "report"))
    parser.add_argument("--out", type=Path, default=Path("runs/real"), help="folder of all runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="*", choices=plan.ARMS, default=["svr", "control"])
    options, further = parser.parse_known_args(arguments)
    try:
        if options.what == "report":
            print(report(plan.RESULTS))
            return 0
        plan.prepare(options.out)
        for seed in options.seeds:
            for command in plan.commands(options.out, seed, options.arms, further):
                print(f"{command.name}: {'done' if command.done else 'to do'}", flush=True)
                if options.what == "run" and not command.done:
                    command.run()
                    if command.result.name == "samples.jsonl":
                        plan.publish(command)
    except ConfigError as error:
        print(f"experiments.real: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
