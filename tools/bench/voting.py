"""How long voting takes on pools the size of a benchmark, and how fast answers are put in classes.

    python -m tools.bench voting --out voting.json

Random pools of GSM8K's size; processor time of one thread, best of three.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from svr_lightning.evaluation.voting import measure_votes, pools_of
from svr_lightning.tasks import get_task

KS = [3, 5, 10]


def random_pools(problems: int, samples: int) -> list[dict[str, Any]]:
    """Answers are right with a chance of the problem's own, and otherwise one of thirty."""
    rng = random.Random(0)
    records = []
    for name in range(problems):
        chance = rng.random()
        labels = [rng.random() < chance for _ in range(samples)]
        pool = [
            {
                "answer": "7" if right else str(rng.randrange(8, 38)),
                "correct": right,
                "prompt_tokens": 100,
                "completion_tokens": 200,
            }
            for right in labels
        ]
        records.append({"dataset": "gsm8k", "id": str(name), "task": "gsm8k", "samples": pool})
    return records


def seconds(action: Callable[[], Any]) -> float:
    """Processor time of the fastest of three runs."""
    times = []
    for _ in range(3):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Measure and print; write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--problems", type=int, default=1319)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    records = random_pools(options.problems, options.samples)
    (pools,) = pools_of(records)
    countdown = get_task("countdown")
    measured = {
        "problems": options.problems,
        "samples": options.samples,
        "resamples": options.resamples,
        "k": KS,
        "classes_seconds": seconds(lambda: list(pools_of(records))),
        "votes_seconds": seconds(lambda: measure_votes(pools, KS, options.resamples, seed=0)),
        "countdown_forms_per_second": 2000
        / seconds(lambda: [countdown.answer_form("(3 + 5) * 2 + 44 = 60") for _ in range(2000)]),
    }
    text = json.dumps(measured, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
