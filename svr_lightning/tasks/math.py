r"""MATH and the benchmarks graded like it: MATH500, AIME, AMC, OlympiadBench, MinervaMath.

A row of the hub's data set::

    {"problem": "What is $\\frac{1}{2}$ of 7?", "solution": "... so $\\boxed{\\frac{7}{2}}$."}
"""

from svr_lightning.core.prompts import MATH_ROLE, AnswerStyle
from svr_lightning.core.types import Problem
from svr_lightning.tasks.base import AnswerForm, Column, Row, Task, last_answer
from svr_lightning.tasks.fields import ID_COLUMN, answer_text, present, row_id, text_field
from svr_lightning.tasks.latex import (
    MAX_ANSWER,
    boxed_gold,
    equivalent,
    last_boxed,
    normalise,
    read_number,
)


class Math(Task):
    """The last boxed expression of the last ``<answer>`` block, or of the whole response."""

    name = "math"
    mathematical = True
    style = AnswerStyle(
        role=MATH_ROLE,
        request=r"<answer>\boxed{YOUR_ANSWER}</answer>",
        reminder=r"<answer>\boxed{}</answer>",
        closing=r"Always use \boxed{} for the final answer.",
        draft_limit=900,
    )
    columns = (
        Column(("problem", "question"), "the question"),
        Column(("answer", "final_answer", "solution"), "the gold answer, boxed in a solution"),
        ID_COLUMN,
    )
    max_completion_tokens = 2048

    def from_row(self, row: Row) -> Problem:
        """Read ``problem`` or ``question``, and ``answer``, ``final_answer`` or ``solution``."""
        return Problem(
            id=row_id(row),
            task=self.name,
            question=text_field(row, "problem", "question"),
            reference=_gold(row),
        )

    def extract_answer(self, completion: str) -> str | None:
        """The content of the box as written, or None."""
        return last_boxed(last_answer(completion) or "") or last_boxed(completion)

    def answer_form(self, answer: str) -> AnswerForm | None:
        """Normalised, with its number if it is one: two are the same if :func:`equivalent`."""
        text = normalise(answer) if len(answer) <= MAX_ANSWER else ""
        return AnswerForm(text, read_number(text)) if text else None

    def grade(self, completion: str, problem: Problem) -> bool:
        """Whether the answer equals the reference by :func:`latex.equivalent`."""
        answer = self.extract_answer(completion)
        return answer is not None and equivalent(answer, problem.reference)

    def format_score(self, completion: str) -> float:
        """1.0 for a last block with a box that is not blank, 0.3 without, 0.0 without a block."""
        block = last_answer(completion)
        if block is None:
            return 0.0
        return 0.3 if last_boxed(block) is None else 1.0


def _gold(row: Row) -> str:
    present(row, "answer", "final_answer", "solution")
    gold = answer_text(row, "answer") or answer_text(row, "final_answer")
    gold = gold or boxed_gold(answer_text(row, "solution")) or ""
    if not gold:
        raise ValueError("the gold answer is empty: no 'answer', and no boxed text in 'solution'")
    return gold
