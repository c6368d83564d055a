"""Normal forms of answers: two ways of writing one answer have the same form."""

from dataclasses import dataclass
from fractions import Fraction

from svr_lightning.tasks.latex import close


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
