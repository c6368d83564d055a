"""Where answers stand in a completion, and their normal forms: one form, however written."""

from dataclasses import dataclass
from fractions import Fraction

from svr_lightning.tasks.latex import close

OPEN_TAG = "<answer>"
CLOSE_TAG = "</answer>"
"""Around an answer, in lower case, as prompts ask."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """An answer in normal form."""

    text: str
    """The normalised text. Never empty."""
    number: Fraction | None = None
    """Its value, where answers are compared as numbers too."""

    def same(self, other: "AnswerForm") -> bool:
        """Whether the grader takes the two as equal: the same text, or close numbers.

        Not transitive: of three numbers in a row the outer two may be too far apart.
        """
        return self.text == other.text or close(self.number, other.number)


def first_answer(text: str) -> str | None:
    """What stands between the first opening tag and the next closing tag, or None."""
    start = text.find(OPEN_TAG)
    end = text.find(CLOSE_TAG, start + len(OPEN_TAG))
    return None if start < 0 or end < 0 else text[start + len(OPEN_TAG) : end]


def last_answer(text: str) -> str | None:
    """What stands between the last opening tag that is closed and the next closing tag, or None."""
    start = text.rfind(OPEN_TAG, 0, max(text.rfind(CLOSE_TAG), 0))
    return None if start < 0 else text[start + len(OPEN_TAG) : text.find(CLOSE_TAG, start)]
