r"""MATH and the benchmarks graded like it: MATH500, AIME, AMC, OlympiadBench, MinervaMath.

A row of the hub's data set::

    {"problem": "What is $\\frac{1}{2}$ of 7?", "solution": "... so $\\boxed{\\frac{7}{2}}$."}
"""

from svr_lightning.core.parsing import final_part
from svr_lightning.core.prompts import boxed_style
from svr_lightning.core.types import Problem
from svr_lightning.tasks.base import AnswerForm, Row, Task, last_answer
from svr_lightning.tasks.fields import ID_COLUMN, answer_texts, present, row_id, shown, text_field
from svr_lightning.tasks.latex import (
    MAX_ANSWER,
    gold_answer,
    last_boxed,
    normalise,
    read_number,
)


class Math(Task):
    """The last boxed expression of the last ``<answer>`` block, or of the whole response."""

    name = "math"
    mathematical = True
    style = boxed_style(draft_limit=900)
    columns = (
        ("problem", "question"),
        ("answer", "final_answer", "solution"),
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
        return last_boxed(last_answer(completion) or "") or last_boxed(final_part(completion))

    def answer_form(self, answer: str) -> AnswerForm | None:
        """Normalised, with its number if it is one; None for one that is too long."""
        text = normalise(answer) if len(answer) <= MAX_ANSWER else ""
        return AnswerForm(text.replace(" ", ""), read_number(text)) if text else None

    def format_score(self, completion: str) -> float:
        """1.0 for a last block with a box that is not blank, 0.3 without, 0.0 without a block."""
        block = last_answer(completion)
        if block is None:
            return 0.0
        return 0.3 if last_boxed(block) is None else 1.0


def _gold(row: Row) -> str:
    """The answer of the first field that is not blank; a solution has to mark it."""
    names = ("answer", "final_answer", "solution")
    present(row, *names)
    name = next((name for name in names if any(answer_texts(row, name))), "answer")
    texts = answer_texts(row, name)
    golds = [gold_answer(text) for text in texts]
    marked = name != "solution" or all("\\boxed" in t or "####" in t for t in texts)
    if None in golds or not (golds and marked):
        raise ValueError(
            f"field {name!r} states no answer: {shown(row.get(name))}; it must be one alone, or "
            "mark it with \\boxed{...} or ####"
        )
    return ", ".join(filter(None, golds))  # without a space 1 and 234 would be 1,234
