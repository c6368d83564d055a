"""An answer as an evaluator reads it, so that two ways of writing one answer count as one."""

from dataclasses import dataclass
from fractions import Fraction

from svr_lightning.tasks.latex import close


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What is left of an answer when its way of being written is gone."""

    text: str
    """A spelling that equal answers share. Never empty."""
    number: Fraction | None = None
    """Its value, where answers are compared as numbers too."""

    def same(self, other: "AnswerForm") -> bool:
        """Whether the evaluator would take one for the other: equal spellings or close numbers.

        Not transitive: of three numbers in a row the outer two may be too far apart.
        """
        return self.text == other.text or close(self.number, other.number)
