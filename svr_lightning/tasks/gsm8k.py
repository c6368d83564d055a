r"""GSM8K: grade-school word problems whose answer is one number.

A row of the hub's data set::

    {"question": "Natalia sold clips to 48 of her friends ...", "answer": "... = 72\n#### 72"}
"""

import re
from fractions import Fraction

from svr_lightning.core.parsing import final_part
from svr_lightning.core.prompts import boxed_style
from svr_lightning.core.types import Problem
from svr_lightning.tasks.base import AnswerForm, Column, Row, Task, last_answer
from svr_lightning.tasks.fields import ID_COLUMN, answer_texts, present, row_id, shown, text_field
from svr_lightning.tasks.latex import (
    MAX_ANSWER,
    SCALE,
    close,
    gold_answer,
    last_boxed,
    normalise,
    read_number,
    spell,
)

_FALLBACK_CHARACTERS = 500
_SHORT = {"k": "thousand", "m": "million", "b": "billion"}
_LETTERS = r"(?:k|K|M|mn|B|bn)(?![\w&)])"
_SHORT_SCALE = re.compile(rf"(?<=[0-9]) ?(?:\\text\{{ ?)?({_LETTERS})\}}?")
_STEM = "twen|thir|fou?r|fif|six|seven|eigh|nine?"
_CARDINAL = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    rf"|(?:{_STEM})(?:teen|ty)"
)
_WORD = (
    rf"(?:{_CARDINAL}|halves|thirds|squared|cubed|factorial"
    rf"|(?:{_STEM}|ten|hundred|thousand|million)(?:teen|ty|ths))"
)
_COUNTED = rf"(?<=[0-9] )(?:{_CARDINAL})(?![\w-])"
"""Words of a unit, as in ``6 one dollar bills``."""
_CHANGES = (
    rf"(?:{SCALE}|{_LETTERS}|{_WORD}(?:-(?:{_WORD}|{SCALE}))?(?![\w-])"
    r"|and (?:an?|one|two|three)[ -](?:half|quarter|third|fourth))"
)
"""Words behind digits that make them another number; ``hundred-dollar`` is none."""
_MARKED_NUMBER = re.compile(
    r"####[\s$\\*:(\[=`€£]*([+\u2212-]?[$\\ ]{0,2}"
    r"(?:[0-9]+(?:(?:,|\{,\}|\\,)[0-9]+)*(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:(?: [0-9]+)?/[0-9]+|[eE][+-]?[0-9]+)?"
    rf"(?:(?=(?:[ ~-]|\\[,;:! ]|\\[a-z]+\{{)*{_CHANGES})(?:\\.|[^\\\n.,;:<$#])*)?)"
)
_UNIT = re.compile(
    rf"(?<=[0-9.%}}\s])(?!(?:and|or|to)\b|(?!{_COUNTED}){_CHANGES})[A-Za-z][A-Za-z\s./-]*$"
)
_CURRENCY = re.compile(r"[€£*]")


class GSM8K(Task):
    """The last boxed number of the last ``<answer>`` block, or the last one after ``####``."""

    name = "gsm8k"
    mathematical = True
    style = boxed_style(draft_limit=640)
    columns = (
        Column(("question",), "the question"),
        Column(("answer",), "the solution, its number after the last ####"),
        ID_COLUMN,
    )
    max_completion_tokens = 1200

    def from_row(self, row: Row) -> Problem:
        """Read ``question``, and of ``answer`` the box, what follows ``####``, or the number."""
        question = text_field(row, "question")
        text = ",".join(answer_texts(row, present(row, "answer")))
        reference = gold_answer(text) or ""
        if _value(reference) is None:
            raise ValueError(
                "field 'answer' must be a number, or mark one with #### or \\boxed{...}, not "
                f"{shown(reference or text)}"
            )
        return Problem(id=row_id(row), task=self.name, question=question, reference=reference)

    def extract_answer(self, completion: str) -> str | None:
        """The number as written in the last block, else in the final 500 characters."""
        answer = _candidate(last_answer(completion) or "")
        return answer if answer else _candidate(final_part(completion)[-_FALLBACK_CHARACTERS:])

    def answer_form(self, answer: str) -> AnswerForm | None:
        """The number, None where there is none."""
        value = _value(answer)
        return None if value is None else AnswerForm(str(value), value)

    def grade(self, completion: str, problem: Problem) -> bool:
        """Whether the number differs from the reference by less than 1e-5."""
        return close(_value(self.extract_answer(completion) or ""), _value(problem.reference))

    def format_score(self, completion: str) -> float:
        """1.0 if the last block holds a boxed expression or a number after ``####``, else 0.0."""
        return 1.0 if _candidate(last_answer(completion) or "") else 0.0


def _candidate(scope: str) -> str | None:
    boxed = last_boxed(scope)
    if boxed is not None:
        return boxed
    marked = _MARKED_NUMBER.findall(scope)
    return str(marked[-1]) if marked else None


def _value(answer: str) -> Fraction | None:
    """The number behind currency, percent, unit, separators and a final period.

    ``18k`` and ``18 thousand dollars`` are 18000; ``a dozen`` and ``percent`` are units.
    """
    if len(answer) > MAX_ANSWER:
        return None
    whole = _SHORT_SCALE.sub(lambda short: f" {_SHORT[short[1][0].lower()]} ", answer)
    text = _CURRENCY.sub("", spell(whole)).strip()
    return read_number(normalise(_UNIT.sub("", text)))
