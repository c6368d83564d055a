r"""How often, and where, the graders "paper" and "symbolic" differ on real benchmark problems.

    python -m tools.bench graders --data ../shared/data --out tools/bench/results/graders.json

Three questions, each asked of both graders:

- solutions: is the box of a problem's given solution equal to its gold answer?
- rewritings: is a gold answer, rewritten without changing its meaning, still accepted? sympy's
  printer writes the expanded and factored forms; the rest is done on the text.
- others: is the gold answer of another problem accepted? The paper's rule takes two golds for one
  where they are the same number; what only "symbolic" takes for one is listed, to be judged by eye.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import sympy

from svr_lightning.core.types import Problem
from svr_lightning.tasks import get_task
from svr_lightning.tasks.graders import get_grader
from svr_lightning.tasks.grading import label
from svr_lightning.tasks.latex import boxed_gold, normalise, read_number
from svr_lightning.tasks.worker import read

DATASETS = {
    "gsm8k_test": "gsm8k",
    **dict.fromkeys(
        ("math500", "math_train", "aime26", "amc23", "olympiadbench", "minerva_math"), "math"
    ),
}
OTHERS = 5
"""Golds of other problems that each problem is graded against."""
_INTEGER_FRACTION = re.compile(r"\\frac\{(\d{1,6})\}\{(\d{1,6})\}")
_ROOT = re.compile(r"(?<![\d}.])(\d{1,4})\\sqrt\{(\d{1,4})\}")


def main() -> None:
    """Grade, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of benchmark problems")
    parser.add_argument("--limit", type=int, help="only the first problems of each data set")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    rewritten: dict[str, Tally] = {}
    for name, task in DATASETS.items():
        rows = [json.loads(x) for x in (options.data / f"{name}.jsonl").open(encoding="utf-8")]
        rows = [row for row in rows if row["answer"]][: options.limit]
        problems = [get_task(task).from_row(row) for row in rows]
        solutions, others, datasets = Tally(), Tally(), Tally()
        for row, problem in zip(rows, problems, strict=True):
            box = boxed_gold(row["solution"] or "")
            if box:
                solutions.add(box, problem)
            for kind, answer in rewritings(problem.reference):
                rewritten.setdefault(kind, Tally()).add(answer, problem)
                datasets.add(answer, problem)
        for index, problem in enumerate(problems):
            for step in range(1, OTHERS + 1):
                others.add(problems[(index + 7 * step) % len(problems)].reference, problem)
        figures[name] = {
            "problems": len(problems),
            "solutions": solutions.figures(),
            "rewritings": datasets.counts(),
            "others": others.counts() | {"only_symbolic": others.only_symbolic},
        }
        print(name, json.dumps(figures[name], indent=1), flush=True)
    result = {
        "datasets": figures,
        "rewritings": {kind: tally.figures() for kind, tally in sorted(rewritten.items())},
    }
    print(json.dumps(result["rewritings"], indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


class Tally:
    """What two graders said of the same answers."""

    def __init__(self) -> None:
        self.total = self.paper = self.symbolic = self.undecided = 0
        self.only_symbolic: list[tuple[str, str]] = []
        self.neither: list[tuple[str, str]] = []

    def add(self, answer: str, problem: Problem) -> None:
        """Grade one answer twice."""
        completion, task = f"\\boxed{{{answer}}}", get_task(problem.task)
        paper, (symbolic, error) = (
            task.grade(completion, problem),
            astuple(label(task, completion, problem, get_grader("symbolic"))),
        )
        self.undecided += error is not None
        self.total += 1
        self.paper += paper
        self.symbolic += symbolic
        if symbolic and not paper:
            self.only_symbolic.append((answer, problem.reference))
        elif not symbolic:
            self.neither.append((answer, problem.reference))

    def counts(self) -> dict[str, int]:
        """How many answers there were, how many each grader took, how many "symbolic" gave up."""
        return {
            "answers": self.total,
            "paper": self.paper,
            "symbolic": self.symbolic,
            "undecided": self.undecided,
        }

    def figures(self) -> dict[str, Any]:
        """The counts with some pairs of answer and gold."""
        return {
            **self.counts(),
            "only_symbolic": self.only_symbolic[:6],
            "neither": [pair for pair in self.neither if len(pair[0]) < 100][:12],
        }


def rewritings(gold: str) -> Iterator[tuple[str, str]]:
    """What the gold answer can also be written as: kind, text."""
    for kind, rewrite in _TEXTUAL.items():
        changed = rewrite(gold)
        if changed is not None and changed != gold:
            yield kind, changed
    (expression,) = read(gold) or (None,)
    if isinstance(expression, sympy.Expr):
        expression = expression.doit()
        forms = {"printed by sympy": expression, "expanded": sympy.expand(expression)}
        forms["factored"] = sympy.factor(expression)
        written = {gold, sympy.latex(expression)}
        for kind, form in forms.items():
            text = sympy.latex(form, ln_notation=True)
            if kind == "printed by sympy" or text not in written:
                yield kind, text
        if expression.is_real and not expression.free_symbols and not expression.is_Rational:
            yield "eight decimals", str(expression.evalf(30).round(8))


def _scaled(gold: str) -> str:
    return _INTEGER_FRACTION.sub(
        lambda found: rf"\frac{{{3 * int(found[1])}}}{{{3 * int(found[2])}}}", gold
    )


def _under_the_root(gold: str) -> str:
    return _ROOT.sub(lambda found: rf"\sqrt{{{int(found[1]) ** 2 * int(found[2])}}}", gold)


def _reordered(gold: str) -> str | None:
    parts = [part.strip() for part in gold.strip("$").split(",")]
    plain = not re.search(r"[()\[\]{}]", gold.replace("\\frac{", "")) and len(parts) > 1
    if not plain or read_number(normalise(gold)) is not None:
        return None
    return ", ".join(reversed(parts))


def _is_one_value(gold: str) -> bool:
    return not re.search(r"[=,<>]|\\in|\\[lg]eq?|\\cup|text|\\pm", gold)


def _inequality(gold: str) -> str | None:
    (value,) = read(gold) or (None,)
    if not isinstance(value, sympy.Interval) or value.left_open == value.right_open:
        return None  # (a, b) may be a point, and [a, b] a row
    low, high = sympy.latex(value.start), sympy.latex(value.end)
    left = "" if low == r"-\infty" else low + (" < " if value.left_open else r" \le ")
    right = "" if high == r"\infty" else (" < " if value.right_open else r" \le ") + high
    return f"{left}x{right}"


_TEXTUAL: dict[str, Callable[[str], str | None]] = {
    "dfrac": lambda gold: gold.replace("\\frac", "\\dfrac"),
    "tfrac": lambda gold: gold.replace("\\frac", "\\tfrac"),
    "fraction not reduced": _scaled,
    "factor under the root": _under_the_root,
    "list reversed": _reordered,
    "list joined with and": lambda gold: (
        None if _reordered(gold) is None else " and ".join(gold.strip("$").rsplit(",", 1))
    ),
    "in dollars": lambda gold: None if "$" in gold else f"${gold}$",
    "with a name": lambda gold: f"x = {gold}" if _is_one_value(gold) else None,
    "with a unit": lambda gold: (
        f"{gold}\\text{{ cm}}" if read_number(normalise(gold)) is not None else None
    ),
    "interval as inequality": _inequality,
    "in brackets": lambda gold: f"({gold})" if _is_one_value(gold) and len(gold) > 1 else None,
    "times one": lambda gold: (
        f"1 \\cdot {gold}" if read_number(normalise(gold)) is not None and gold[0] != "-" else None
    ),
}
