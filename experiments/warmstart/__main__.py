"""``python -m experiments.warmstart --task countdown --out FOLDER``: teach by demonstrations.

Without ``--policy`` a tokenizer and a small policy are made from nothing: this builds what ships
with the package. With ``--policy FOLDER`` the policy in that folder is trained on.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.warmstart import countdown, word_problems
from experiments.warmstart.attempts import Lesson
from experiments.warmstart.embedded import build_tokenizer, new_model
from experiments.warmstart.training import save, train
from svr_lightning.tiny.word_problems import NAMES


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a task's warm start consists of."""

    lessons: Callable[[float], tuple[Lesson, ...]]
    """By how much self-checks know of correctness."""
    layers: int
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    """Options of :func:`~experiments.warmstart.embedded.build_tokenizer`."""


TASKS = {
    "countdown": Task(
        lessons=countdown.lessons,
        layers=4,
        tokenizer={"vocabulary": 1200, "largest_number": 200},
    ),
    "word_problems": Task(
        lessons=word_problems.lessons,
        layers=3,
        tokenizer={"vocabulary": 1700, "largest_number": 99, "words": NAMES},
    ),
}

POLICY_STEPS, POLICY_RATE = 600, 1e-4
"""Defaults where a pretrained policy is trained on: it has to learn a format, not a language."""


def build(task: Task, policy: Path | None, out: Path, options: argparse.Namespace) -> list[float]:
    """Train on the task's demonstrations and save a checkpoint folder; returns the losses.

    A new policy takes all lessons, one that can write already the last one.
    """
    torch.manual_seed(options.seed)
    lessons = task.lessons(options.informative)
    last = lessons[-1]
    if policy is None:
        tokenizer = build_tokenizer(last.demonstrations.stream(options.seed), **task.tokenizer)
        model = new_model(tokenizer, options.seed, layers=task.layers)
    else:
        lessons = (replace(last, steps=POLICY_STEPS, rate=POLICY_RATE),)
        tokenizer = AutoTokenizer.from_pretrained(policy)
        model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    model.to(options.device)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    losses: list[float] = []
    for number, lesson in enumerate(lessons):
        losses += train(
            model,
            tokenizer,
            lesson.demonstrations.stream(options.seed + number),
            steps=options.steps or lesson.steps,
            rate=options.rate or lesson.rate,
            batch=options.batch or lesson.batch,
            check_weight=lesson.check_weight,
        )
    save(model, tokenizer, out)
    return losses


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.warmstart", description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="countdown")
    parser.add_argument("--policy", type=Path, help="folder of the policy to train; default: new")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument(
        "--steps", type=int, help="optimizer steps of a lesson; default: its own, or 600"
    )
    parser.add_argument("--rate", type=float, help="peak; default: the lesson's, or 1e-4")
    parser.add_argument("--batch", type=int, help="demonstrations per step; default: the lesson's")
    parser.add_argument("--seed", type=int, default=0, help="of weights and demonstrations")
    parser.add_argument(
        "--informative",
        type=float,
        default=1.0,
        help="how much the demonstrated self-checks know: 0 nothing, 1 the task's default",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.policy is not None and not (options.policy / "config.json").is_file():
        parser.error(f"--policy {options.policy}: there is no config.json, so it is no checkpoint")
    return build(TASKS[options.task], options.policy, options.out, options)


if __name__ == "__main__":
    main()
