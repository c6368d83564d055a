r"""Math-Verify's own test cases: how often do the library and the grader "symbolic" agree?

    python -m tools.bench math_verify_cases --tests PATH/Math-Verify --out FILE

PATH/Math-Verify is a checkout of github.com/huggingface/Math-Verify; its tests are imported from
there. Counted are the parametrized cases with a gold answer, a predicted one, and whether they are
equal. Many predictions are prose. The library finds the answer in it with patterns, our tasks read
the last box: so each text's answer is cut out by the library's patterns, which evaluate nothing,
and is boxed for our grader. The library runs twice, as its tests run it and with LaTeX extraction
alone; it is given the options of a case (precision, strictness, sets against relations), which the
grader does not have.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2sympy2_extended.math_normalization import extract_boxed_content
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from math_verify.parser import get_extraction_regexes

from svr_lightning.core.types import Problem
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import GradingError
from svr_lightning.tasks.grading import get_grader

MODULES = ("all", "boxed", "numina_cases", "open_thoughts", "strict", "yujianll")
OPTIONS = {"precision": "float_rounding", "strict": "strict"}
SETS = "allow_set_relation_comp"
LATEX = LatexExtractionConfig(boxed_match_priority=0)
BOTH = [LATEX, ExprExtractionConfig()]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the cases are."""
    parser.add_argument("--tests", type=Path, required=True, help="a checkout of Math-Verify")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Count for each judge."""
    found = list(cases(options.tests))
    judges = {
        "library": lambda case: by_library(case, BOTH),
        "library, LaTeX extraction alone": lambda case: by_library(case, [LATEX]),
        "symbolic": by_grader,
    }
    figures: dict[str, Any] = {"cases": len(found)}
    for name, judge in judges.items():
        wrong = [case for case in found if judge(case) != bool(case["expected"])]
        figures[name] = {
            "agrees": len(found) - len(wrong),
            "differs": [{k: str(v)[-80:] for k, v in case.items()} for case in wrong],
        }
    print(json.dumps(figures, indent=1))
    return figures


def cases(checkout: Path) -> Iterator[dict[str, Any]]:
    """Every parametrized case with ``gold``, ``pred`` and ``expected``, and its options."""
    sys.path.insert(0, str(checkout))
    for name in MODULES:
        module = importlib.import_module(f"tests.test_{name}")
        for test in vars(module).values():
            if getattr(test, "__module__", "") != module.__name__:
                continue
            for mark in getattr(test, "pytestmark", []):
                names = [part.strip() for part in mark.args[0].split(",")]
                for values in mark.args[1]:
                    case = dict(zip(names, values, strict=True))
                    yield {"expected": case.pop("result", None)} | case


def by_library(case: dict[str, Any], extraction: list[Any]) -> bool:
    """What the library says, given the options of the case."""
    options = {OPTIONS[name]: case[name] for name in OPTIONS if name in case}
    options[SETS] = case.get(SETS, False)
    gold, found = (parse(case[name], extraction) for name in ("gold", "pred"))
    return bool(verify(gold, found, **options))


def by_grader(case: dict[str, Any]) -> bool:
    """What our grader says of the same two answers."""
    problem = Problem(id="", task="math", question="", reference=answer(case["gold"]))
    try:
        return get_grader("symbolic").grade(
            get_task("math"), rf"\boxed{{{answer(case['pred'])}}}", problem
        )
    except GradingError:
        return False


def answer(text: str) -> str:
    """The answer within a text, by the library's patterns in the library's order."""
    patterns = [
        (priority, pattern)
        for of_target, _ in get_extraction_regexes(BOTH)
        for pattern, priority in of_target
    ]
    for wanted in sorted({priority for priority, _ in patterns}):
        matches = [
            match for priority, p in patterns if priority == wanted for match in p.finditer(text)
        ]
        for match in sorted(matches, key=lambda m: (m.end(), -m.start()), reverse=True):
            if written := _written(match.groupdict()):
                return written
    return text


def _written(groups: dict[str, str | None]) -> str:
    """A match as LaTeX: a number, an expression, or formulas joined by "and"."""
    percent = r"\%" if any(v for k, v in groups.items() if k.endswith("percent")) else ""
    if groups.get("expr"):
        return str(groups["expr"])
    whole = "".join(v for k, v in groups.items() if k.startswith("integer") and v)
    places = "".join(v for k, v in groups.items() if k.startswith("decimal") and v)
    if whole or places:
        number = whole.replace(",", "").replace(" ", "") + places.replace(",", ".")
        return number + percent
    formulas = [
        extract_boxed_content(v, "last" if k.endswith("Boxed") else "all")
        for k, v in groups.items()
        if "_latex" in k and v
    ]
    return " and ".join(formulas) + percent if formulas else ""
