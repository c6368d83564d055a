"""Kill a small training at random points again and again; its end state must not notice.

    python -m tools.bench kill_resume --kills 20

Each run is killed once, resumed with ``--ckpt_path last`` and compared with an uninterrupted
one: weights, optimizer, reference, loop state, rollouts, metrics and validation files, to the bit.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.runs import differences, resume, run_to_end, start


def main() -> int:
    """Print one line per kill; exit 1 if any end state differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        began = time.monotonic()
        run_to_end(root / "whole")
        seconds = time.monotonic() - began
        print(f"uninterrupted: {seconds:.1f} s")
        for kill in range(options.kills):
            folder = root / f"kill{kill}"
            moment = rng.uniform(0.0, seconds)
            process = start(folder)
            time.sleep(moment)
            finished = process.poll() is not None
            process.send_signal(signal.SIGKILL)
            process.wait()
            if not finished:
                code = resume(folder).wait()
            found = (
                ["resume failed"] if not finished and code else differences(root / "whole", folder)
            )
            state = "had finished" if finished else "killed"
            print(f"{kill + 1:2d}. {state} after {moment:5.1f} s: {found or 'equal'}", flush=True)
            bad += bool(found)
    print(f"{options.kills - bad} of {options.kills} end states equal the uninterrupted run's")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
