"""``python -m experiments.warmstart``: the policies that ship with the package, from nothing.

Makes a tokenizer and a small policy, and teaches it the form of its turns by demonstrations. A
language model of your own starts with ``svr warmstart``.
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.warmstart import countdown, word_problems
from experiments.warmstart.attempts import encoded
from experiments.warmstart.embedded import build_tokenizer, new_model
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.supervised import train

TASKS: dict[str, Any] = {
    "countdown": (countdown, {}),
    "untraced": (countdown, {"trace": False}),
    "word_problems": (word_problems, {}),
}
"""Modules with the lessons and with what the policy is made of, and options of the lessons."""


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train on the lessons and save a checkpoint folder; returns the losses."""
    parser = argparse.ArgumentParser(prog="python -m experiments.warmstart", description=__doc__)
    add = parser.add_argument
    add("--task", choices=[*TASKS], default="countdown")
    add("--out", type=Path, required=True, help="folder for the checkpoint")
    add("--steps", type=int, help="optimizer steps of each lesson; default: its own")
    add("--seed", type=int, default=0, help="of weights and demonstrations")
    add("--informative", type=float, default=1.0, help="what self-checks know: 0 nothing, 1 all")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    task, own = TASKS[options.task]
    lessons = task.lessons(options.informative, **own)
    tokenizer = build_tokenizer(lessons[-1].demonstrations.stream(options.seed), **task.TOKENIZER)
    model: Any = new_model(tokenizer, options.seed, task.LAYERS)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    renderer = Renderer(tokenizer)
    losses: list[float] = []
    for number, lesson in enumerate(lessons):
        demonstrations = lesson.demonstrations.stream(options.seed + number)
        losses += train(
            model,
            (encoded(renderer, document, lesson.check_weight) for document in demonstrations),
            steps=options.steps or lesson.steps,
            rate=lesson.rate,
            batch=lesson.batch,
        )
    model.save_pretrained(options.out)
    for weights in options.out.glob("*.safetensors"):  # which safetensors lets only the owner read
        shutil.copymode(options.out / "config.json", weights)
    tokenizer.save_pretrained(options.out)
    return losses


if __name__ == "__main__":
    main()
