"""The memory of one training step on each GPU, by what it holds, and the cards that it fits.

    python -m tools.memory --config configs/math.yaml --config configs/hardware/1gpu.yaml
    python -m tools.memory --config configs/math.yaml --model.micro_batch_size 4
    python -m tools.memory --docs                    # writes the tables of docs/scaling.md

Takes what ``python -m svr_lightning fit`` takes, runs the step at its true shape on tensors without
data, and needs neither a GPU nor the checkpoint. Every sequence is taken as long as the
configuration allows: an upper bound, real micro-batches are smaller.
"""

import sys

from svr_lightning.errors import ConfigError
from tools.memory.cards import DOCS, report, with_tables
from tools.memory.plan import plan_of, resolve


def main(arguments: list[str]) -> int:
    """Print the report, or write the tables; 2 for a fault of the configuration."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    try:
        if arguments == ["--docs"]:
            DOCS.write_text(with_tables(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            print(report(plan_of(resolve(arguments))))
    except ConfigError as error:
        print(f"tools.memory: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
