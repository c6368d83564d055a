r"""How often, and where, the graders "paper" and "symbolic" differ on real benchmark problems.

    python -m tools.bench graders --data DATA --out tools/bench/results/graders.json

DATA is a folder that holds each data set as NAME.jsonl.

Two questions, each asked of both graders:

- solutions: is the box of a problem's given solution equal to its gold answer?
- others: is the gold answer of another problem accepted? The paper's rule takes two golds for one
  where they are the same number; what only "symbolic" takes for one is listed, to be judged by eye.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from svr_lightning.core.types import Problem
from svr_lightning.tasks import get_task
from svr_lightning.tasks.grading import get_grader, label
from svr_lightning.tasks.latex import boxed_gold

DATASETS = {
    "gsm8k_test": "gsm8k",
    **dict.fromkeys(
        ("math500", "math_train", "aime26", "amc23", "olympiadbench", "minerva_math"), "math"
    ),
}
OTHERS = 5
"""Golds of other problems that each problem is graded against."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which problems."""
    parser.add_argument("--data", type=Path, required=True, help="folder of benchmark problems")
    parser.add_argument("--limit", type=int, help="only the first problems of each data set")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both questions on every data set."""
    figures: dict[str, Any] = {}
    for name, task in DATASETS.items():
        rows = [json.loads(x) for x in (options.data / f"{name}.jsonl").open(encoding="utf-8")]
        rows = [row for row in rows if row["answer"]][: options.limit]
        problems = [get_task(task).from_row(row) for row in rows]
        boxes = [boxed_gold(row["solution"] or "") for row in rows]
        golds = [
            (problems[(index + 7 * step) % len(problems)].reference, problem)
            for index, problem in enumerate(problems)
            for step in range(1, OTHERS + 1)
        ]
        figures[name] = {
            "problems": len(problems),
            "solutions": judged((b, p) for b, p in zip(boxes, problems, strict=True) if b),
            "others": judged(golds),
        }
        print(name, json.dumps(figures[name], indent=1), flush=True)
    return figures


def judged(cases: Iterable[tuple[str, Problem]]) -> dict[str, Any]:
    """How many answers there were, how many each grader took, how many "symbolic" gave up."""
    found: dict[str, Any] = {"answers": 0, "paper": 0, "symbolic": 0, "undecided": 0}
    only_symbolic: list[tuple[str, str]] = []
    for answer, problem in cases:
        completion, task = f"\\boxed{{{answer}}}", get_task(problem.task)
        paper = task.grade(completion, problem)
        symbolic = label(task, completion, problem, get_grader("symbolic"))
        found["answers"] += 1
        found["paper"] += paper
        found["symbolic"] += symbolic.correct
        found["undecided"] += symbolic.error is not None
        if symbolic.correct and not paper:
            only_symbolic.append((answer, problem.reference))
    return {**found, "only_symbolic": only_symbolic}
