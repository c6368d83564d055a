"""``python -m experiments.real.start``: the policy that a seed's trainings begin with."""

import argparse
from pathlib import Path

from experiments.real.demonstrations import demonstrations
from experiments.real.supervised import supervise


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real.start", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the language model")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, required=True, help="of the demonstrations")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32, help="demonstrations per step")
    options = parser.parse_args()
    supervise(
        options.model,
        options.out,
        demonstrations(options.seed),
        seed=options.seed,
        steps=options.steps,
        batch=options.batch,
        rate=5e-4,
    )


if __name__ == "__main__":
    main()
