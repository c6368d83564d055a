"""``python -m experiments.warmstart --task countdown --out FOLDER``: teach by demonstrations.

A tokenizer and a small policy are made from nothing: this builds what ships with the package.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.warmstart import countdown, word_problems
from experiments.warmstart.attempts import Lesson
from experiments.warmstart.embedded import build_tokenizer, new_model
from experiments.warmstart.training import save, train
from svr_lightning.tiny.word_problems import NAMES


class Task(NamedTuple):
    """What a task's warm start consists of."""

    lessons: Callable[[float], tuple[Lesson, ...]]
    """By how much self-checks know of correctness."""
    layers: int
    tokenizer: dict[str, Any]
    """Options of :func:`~experiments.warmstart.embedded.build_tokenizer`."""


TASKS = {
    "countdown": Task(countdown.lessons, 4, {"vocabulary": 1200, "largest_number": 200}),
    "word_problems": Task(
        word_problems.lessons, 3, {"vocabulary": 1700, "largest_number": 99, "words": NAMES}
    ),
}


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train on the task's lessons and save a checkpoint folder; returns the losses."""
    parser = argparse.ArgumentParser(prog="python -m experiments.warmstart", description=__doc__)
    add = parser.add_argument
    add("--task", choices=TASKS, default="countdown")
    add("--out", type=Path, required=True, help="folder for the checkpoint")
    add("--steps", type=int, help="optimizer steps of each lesson; default: its own")
    add("--seed", type=int, default=0, help="of weights and demonstrations")
    add("--informative", type=float, default=1.0, help="what self-checks know: 0 nothing, 1 all")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    task = TASKS[options.task]
    lessons = task.lessons(options.informative)
    torch.manual_seed(options.seed)
    last = lessons[-1].demonstrations
    tokenizer = build_tokenizer(last.stream(options.seed), **task.tokenizer)
    model = new_model(tokenizer, options.seed, layers=task.layers)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    losses: list[float] = []
    for number, lesson in enumerate(lessons):
        losses += train(
            model,
            tokenizer,
            lesson.demonstrations.stream(options.seed + number),
            steps=options.steps or lesson.steps,
            rate=lesson.rate,
            batch=lesson.batch,
            check_weight=lesson.check_weight,
        )
    save(model, tokenizer, options.out)
    return losses


if __name__ == "__main__":
    main()
