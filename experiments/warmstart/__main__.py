"""``python -m experiments.warmstart``: teach a policy the form of its turns by demonstrations.

With ``--task countdown`` or ``word_problems`` alone it makes a tokenizer and a small policy from
nothing: this builds what ships with the package. With ``--rows FILE --model FOLDER`` it teaches a
language model on questions and answers of your own, of the task ``math``, ``gsm8k`` or a class
path whose rows have an answer that can be written down.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.warmstart import countdown, rows, word_problems
from experiments.warmstart.attempts import Lesson
from experiments.warmstart.embedded import build_tokenizer, new_model
from experiments.warmstart.training import save, train
from svr_lightning.errors import ConfigError

TASKS: dict[str, Any] = {"countdown": countdown, "word_problems": word_problems}
"""Modules with the lessons and with what the policy is made of."""


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train on the lessons and save a checkpoint folder; returns the losses."""
    parser = argparse.ArgumentParser(prog="python -m experiments.warmstart", description=__doc__)
    add = parser.add_argument
    add("--task", default="countdown", help=f"{' or '.join(TASKS)}; with --rows the task of these")
    add("--rows", type=Path, help="file of questions and answers, as a data source has it")
    add("--model", type=Path, help="with --rows: folder of the language model to teach")
    add("--out", type=Path, required=True, help="folder for the checkpoint")
    add("--steps", type=int, help="optimizer steps of each lesson; default: its own, of rows 100")
    add("--rate", type=float, default=2e-5, help="with --rows: peak learning rate")
    add("--seed", type=int, default=0, help="of weights and demonstrations")
    add("--informative", type=float, default=1.0, help="what self-checks know: 0 nothing, 1 all")
    add("--no-trace", action="store_true", help="countdown: answers without their calculation")
    options = parser.parse_args(arguments)
    if options.rows is None and options.task not in TASKS:
        parser.error(f"--task {options.task} needs --rows; without, it is {' or '.join(TASKS)}")
    if (options.rows is None) != (options.model is None):
        parser.error("--rows and --model go together")
    if options.no_trace and options.task != "countdown":
        parser.error("--no-trace is for --task countdown, whose answer is its own calculation")
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    if options.rows is None:
        model, tokenizer, lessons = _from_nothing(options)
    else:
        try:
            taught = rows.demonstrations(options.rows, options.task)
        except ConfigError as error:
            parser.error(str(error))
        options.steps = options.steps or 100
        lessons = (Lesson(demonstrations=taught, steps=0, rate=options.rate, batch=16),)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
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


def _from_nothing(options: argparse.Namespace) -> tuple[Any, Any, tuple[Lesson, ...]]:
    """The model and the tokenizer of a policy that ships, and its lessons."""
    task = TASKS[options.task]
    lessons = task.lessons(options.informative, **({"trace": False} if options.no_trace else {}))
    tokenizer = build_tokenizer(lessons[-1].demonstrations.stream(options.seed), **task.TOKENIZER)
    model = new_model(tokenizer, options.seed, task.LAYERS)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    return model, tokenizer, lessons


if __name__ == "__main__":
    main()
