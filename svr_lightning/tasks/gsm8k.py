r"""GSM8K: grade-school word problems whose answer is one number.

A row of the hub's data set::

    {"question": "Natalia sold clips to 48 of her friends ...", "answer": "... = 72\n#### 72"}
"""

import re
from fractions import Fraction

from svr_lightning.core.parsing import final_part
from svr_lightning.core.prompts import boxed_style
from svr_lightning.core.types import Problem
from svr_lightning.tasks.base import AnswerForm, Row, Task, last_answer
from svr_lightning.tasks.fields import ID_COLUMN, answer_texts, present, row_id, shown, text_field
from svr_lightning.tasks.latex import (
    MAX_ANSWER,
    SCALE,
    gold_answer,
    last_boxed,
    normalise,
    read_number,
    spell,
)

_FALLBACK_CHARACTERS = 500
_MARK = "####"
_SHORT = {"m": "million", "b": "billion"}
_GRAND = r"[gG]rand(?![ ](?!in[ ]|per[ ]|each|an?[ ])\w)"  # 18 grand a year; not 18 grand prizes
_LETTERS = rf"(?:k|K|M|mn|B|bn|{_GRAND})(?![\w&)])"
_SHORT_SCALE = re.compile(
    rf"""
    (?<=[0-9])[ ]?          # 18k, 18 k
    (?:\\text\{{[ ]?)?      # 18\text{{k}}
    (?P<letters>{_LETTERS})
    \}}?
    """,
    re.VERBOSE,
)
_STEM = "twen|thir|fou?r|fif|six|seven|eigh|nine?"
_CARDINAL = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    rf"|(?:{_STEM})(?:teen|ty)"
)
_WORD = rf"""(?:
    {_CARDINAL}
    |halves|thirds|squared|cubed|factorial|mils?|quadrillion|lakhs?|crores?
    |(?:{_STEM}|ten|hundred|thousand|million)(?:teen|ty|ths)
)"""
_CHANGES = rf"""(?:
    {SCALE}                                           # 18 thousand
    |{_LETTERS}                                       # 18k
    |{_WORD}(?:-(?:{_WORD}|{SCALE}))?(?![\w-])        # 18 fourths; not 18 hundred-dollar bills
    |and[ ](?:an?|one|two|three)[ -](?:half|quarter|third|fourth)
    |(?:[abeijnqrtuv]|[xyzXYZ]+|pi)[\s.]*$            # 18x is a term, and 18g a weight
)"""
"""Words and letters after digits that make them another number, or none."""
_UNIT = re.compile(
    rf"""
    (?<=[0-9.%}}\s])
    (?!
        (?:and|or|to)\b
        |(?!(?<=[0-9][ ])(?:{_CARDINAL})(?![\w-]))        # but a unit: 6 one dollar bills
        {_CHANGES}
    )
    [A-Za-z][A-Za-z\s./-]*$
    """,
    re.VERBOSE,
)
_CODE = r"(?:USD?|EUR|GBP|CAD|AUD|INR|Rs\.?)[ ]*(?=[-0-9.$])"
"""A currency before a number."""
_CURRENCY = re.compile(rf"(?P<between>(?<=[0-9])\s*[€£*]+\s*(?=[0-9]))|[€£*]|^\s*{_CODE}")
"""Signs around a number; between two of them one is no decoration: 10*3 is not 103."""
_LINE = re.compile(
    rf"""
    [\s:*_`"'~\u2192\u2248]*                              # decoration, as in "#### **18**"
    (?:{_CODE})?
    (?P<content>.*?)
    (?:$|\n|</?\w+>|<\||\b(?ai:VERDICT|CONFIDENCE)\b)     # a tag or a self-check ends it too
    """,
    re.VERBOSE,
)
"""What follows a mark."""
_HEADING = re.compile(r"[A-Za-z][^=]*$")
"""A line of words is no answer: ``#### Step 2`` is a heading."""
_REMARK = re.compile(
    rf"""
    (?:
        [.,;:]\s
        |[,;](?=[A-Za-z])
        |\s\(
        |\s?(?:(?<=\s)-|[\u2013\u2014])\s?(?=[A-Za-z]{{2}}[A-Za-z\s])(?!(?:{_CARDINAL}|half)\b)
    )
    (?!(?:and|or|to)\b)
    [^0-9=]*$
    """,
    re.VERBOSE,
)
"""Words after a number and its punctuation, as in ``18, in total`` and ``18 - the total``."""
_SEVERAL = re.compile(r"[,;:.]\s|\b(?:and|or|to)\b|[0-9]\s*~\s*[0-9]|[<>!]=")
"""A line with more than one number, of which none is the answer, or with a bound."""
_DECORATION = " \t%$\u20ac\u00a3*_`\"'.,;:?\\"
_BRACKETED = re.compile(r"\([^()]+\)|\[[^\[\]]+\]")


class GSM8K(Task):
    """The last boxed number of the last ``<answer>`` block, or the last one after ``####``."""

    name = "gsm8k"
    mathematical = True
    style = boxed_style(draft_limit=640)
    columns = (("question",), ("answer",), ID_COLUMN)
    max_completion_tokens = 1200

    def from_row(self, row: Row) -> Problem:
        """Read ``question``, and of ``answer`` the box, what follows ``####``, or the number."""
        question = text_field(row, "question")
        texts = answer_texts(row, present(row, "answer"))
        reference = gold_answer(texts[0]) or "" if len(texts) == 1 else ""
        if _value(reference) is None:
            raise ValueError(
                "field 'answer' must be a number, or mark one with #### or \\boxed{...}, not "
                f"{shown(reference or row['answer'])}"
            )
        return Problem(id=row_id(row), task=self.name, question=question, reference=reference)

    def extract_answer(self, completion: str) -> str | None:
        """The number as written in the last block, else in the final 500 characters."""
        answer = _candidate(last_answer(completion) or "")
        return answer or _candidate(final_part(completion)[-_FALLBACK_CHARACTERS:])

    def answer_form(self, answer: str) -> AnswerForm | None:
        """The number, None where there is none; two are the same if less than 1e-5 apart."""
        value = _value(answer)
        return None if value is None else AnswerForm(str(value), value)

    def format_score(self, completion: str) -> float:
        """1.0 if the last block holds a boxed expression or a number after ``####``, else 0.0."""
        return 1.0 if _candidate(last_answer(completion) or "") else 0.0


def _candidate(scope: str) -> str | None:
    """The last box; without one, the number on the line of the last ``####``."""
    boxed = last_boxed(scope)
    if boxed is not None:
        return boxed
    for text in reversed(scope.split(_MARK)[1:]):
        line = _LINE.match(text)
        content = line["content"] if line else ""
        numeric = any(c.isnumeric() and not c.isalpha() for c in content)  # 2, ½, and not 二
        if numeric and not _HEADING.match(content):
            return _marked_number(content)
    return None


def _marked_number(line: str) -> str | None:
    """The number that the line of a mark states, as written; None if it is not exactly one.

    The line is read like the content of a box. Of ``3 + 4 = 7`` the last side counts. A range, an
    alternative, a time and an expression without ``=`` are no number.

    Examples:
        >>> _marked_number("$1,042.50 in all."), _marked_number("10 or 12")
        ('1,042.50', None)
    """
    if len(line) > MAX_ANSWER:
        return None
    statement = _REMARK.sub("", line)
    if _SEVERAL.search(statement):
        return None
    # The point of .5 is no decoration.
    answer = _bare(statement.rpartition("=")[2].rstrip(_DECORATION).lstrip(" \t$*_`\"'"))
    return None if _value(answer) is None else answer


def _bare(text: str) -> str:
    """A number without its unit and without brackets around it: ``(18 eggs)`` is 18."""
    text = _UNIT.sub("", text).strip()
    return _UNIT.sub("", text[1:-1]).strip() if _BRACKETED.fullmatch(text) else text


def _value(answer: str) -> Fraction | None:
    """The number without currency, percent sign, unit, brackets, separators and final period.

    ``18k`` and ``18 thousand dollars`` are 18000; ``a dozen`` and ``percent`` are units.
    """
    if len(answer) > MAX_ANSWER:
        return None
    whole = _SHORT_SCALE.sub(
        lambda short: f" {_SHORT.get(short['letters'][0].lower(), 'thousand')} ", answer
    )
    text = _CURRENCY.sub(lambda sign: ";" if sign["between"] else "", spell(whole)).strip()
    return read_number(normalise(_bare(text)))
