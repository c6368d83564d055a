"""Countdown: reach a target from given numbers, each used once, with ``+ - * /``.

A row of the hub's data set::

    {"nums": [44, 19, 35], "target": 98}
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from svr_lightning.core.parsing import ANSWER_CLOSE, CLOSE_TAG, OPEN_TAG, THINK_OPEN, without_spans
from svr_lightning.core.prompts import MATH_ROLE, AnswerStyle
from svr_lightning.core.types import Problem
from svr_lightning.tasks.arithmetic import ExpressionError, canonical, evaluate
from svr_lightning.tasks.base import AnswerForm, Row, Task, first_answer
from svr_lightning.tasks.fields import ID_COLUMN, integer, present, row_id, shown, text_field

_QUESTION = (
    "Using the numbers {numbers}, create an equation that equals {target}. You can use basic "
    "arithmetic operations (+, -, *, /) and each number can only be used once."
)
_SHORT_FORM = re.compile(r"\s*[0-9]{1,6}(?:[ ,]{1,3}[0-9]{1,6}){1,7}\s*=\s*[0-9]{1,6}\s*")
_THINK_THEN_ANSWER = re.compile(r"</think>\s*<answer>")


class Countdown(Task):
    """An equation in the first ``<answer>`` block, evaluated exactly."""

    name = "countdown"
    style = AnswerStyle(
        role=MATH_ROLE,
        request="<answer>YOUR_EQUATION</answer>",
        reminder="<answer>...</answer>",
        draft_limit=512,
    )
    columns = (("nums",), ("target",), ("question",), ID_COLUMN)
    max_completion_tokens = 800
    takes_first = True

    def from_row(self, row: Row) -> Problem:
        """Read ``nums`` and ``target``, and ``question`` if the row has one.

        Raises:
            ValueError: naming the missing or malformed field.
        """
        numbers = _numbers(row[present(row, "nums")])
        target = integer(row[present(row, "target")], "target")
        if row.get("question") is None:
            question = _QUESTION.format(numbers=numbers, target=target)
        else:
            question = text_field(row, "question")
        return Problem(
            id=row_id(row),
            task=self.name,
            question=question,
            reference=str(target),
            payload={"nums": numbers},
        )

    def from_question(self, question: str) -> Problem:
        """A question as it stands, or the short form ``3 5 8 = 16``, worded and gradable.

        Examples:
            >>> Countdown().from_question("3, 5, 8 = 16").payload
            {'nums': [3, 5, 8]}
        """
        if not _SHORT_FORM.fullmatch(question):
            return super().from_question(question)
        *numbers, target = map(int, re.findall("[0-9]+", question))
        return self.from_row({"nums": numbers, "target": target})

    def extract_answer(self, completion: str) -> str | None:
        """The content of the first complete ``<answer>`` block, or None if absent or blank."""
        return (first_answer(completion) or "").strip() or None

    def answer_form(self, answer: str) -> AnswerForm | None:
        """The derivation before the first ``=``; see :mod:`svr_lightning.tasks.arithmetic`."""
        try:
            return AnswerForm(canonical(answer.partition("=")[0].strip()))
        except ExpressionError:
            return None

    def grade(self, completion: str, problem: Problem) -> bool:
        """Whether the expression before the first ``=`` uses exactly the numbers and hits target.

        Numbers are compared as integers and as a multiset; the value as an exact fraction.
        """
        answer = self.extract_answer(completion)
        if answer is None:
            return False
        try:
            value, used = evaluate(answer.partition("=")[0].strip())
        except ExpressionError:
            return False
        return str(value) == problem.reference and Counter(used) == Counter(problem.payload["nums"])

    def format_score(self, completion: str) -> float:
        r"""1.0 for reasoning, then an answer, then nothing, self-checks apart; otherwise 0.0.

        What is tested is ``^<think>.*?</think>\s*<answer>.*?</answer>$`` with a dot that matches
        newlines, in one pass: the first ``</think>`` before an ``<answer>`` leaves the most text
        for the rest, so no other needs to be tried.
        """
        text = without_spans(completion, OPEN_TAG, CLOSE_TAG).strip()
        if not text.startswith(THINK_OPEN) or not text.endswith(ANSWER_CLOSE):
            return 0.0
        opened = _THINK_THEN_ANSWER.search(text, len(THINK_OPEN))
        return 1.0 if opened and opened.end() <= len(text) - len(ANSWER_CLOSE) else 0.0


def _numbers(value: Any) -> list[int]:
    if isinstance(value, str) and len(value) < 1000:  # a cell of a table
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise ValueError(f"field 'nums' must be a list of integers, not {shown(value)}")
    numbers = [integer(number, "nums") for number in value]
    if min(numbers) < 0:
        raise ValueError(f"field 'nums' must hold no negative number, not {shown(value)}")
    return numbers
