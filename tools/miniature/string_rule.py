"""A control without training: the warm start stops where its reasoning ends in "yes"."""

import re
from dataclasses import dataclass

from svr_lightning.core.types import SelfCheck, Verdict
from svr_lightning.recipes.dialogues import Dialogue, SelfVerifying
from svr_lightning.recipes.svr import SVR

FOUND = SelfCheck(verdict=Verdict.CORRECT, confidence=1.0)
NOT_FOUND = SelfCheck(verdict=Verdict.INCORRECT, confidence=0.2)
_LAST_WORD_YES = re.compile(r"\byes\s*</think>")


class LastWord(SelfVerifying):
    """SVR's prompts; what the policy says of itself is not read."""

    def read(self, text: str) -> SelfCheck:
        """CORRECT with confidence 1 if the reasoning's last word is "yes", else INCORRECT, 0.20.

        Example:
            >>> LastWord().read("<think>try 1+2=3,3+3=6 yes</think>").verdict.value
            'CORRECT'
            >>> LastWord().read("<think>try 1+2=3,3+3=6 yes; try 1+2=3,3*3=9 no</think>").confidence
            0.2
        """
        return FOUND if _LAST_WORD_YES.search(text) else NOT_FOUND


@dataclass(frozen=True, kw_only=True)
class StringRule(SVR):
    """SVR's dialogue with the rule's self-check in place of the policy's."""

    def method_dialogue(self) -> Dialogue:
        """SVR's prompts and the rule."""
        return LastWord()
