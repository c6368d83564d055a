"""A prompt of your own: SVR behind two worked examples, for a model that does not know its form."""

from dataclasses import dataclass

from svr_lightning.core.types import Message, Problem
from svr_lightning.recipes.dialogues import Dialogue, SelfVerifying
from svr_lightning.recipes.svr import SVR

EXAMPLES: list[Message] = [
    {
        "role": "user",
        "content": "A baker sells loaves at $4 and rolls at $1.50. On Monday she sold 12 "
        "loaves and 20 rolls, and paid $9 for flour. How many dollars were left?",
    },
    {
        "role": "assistant",
        "content": "<think>Loaves: 12 * 4 = 48. Rolls: 20 * 1.5 = 30. Together 48 + 30 = 78. "
        "Minus flour: 78 - 9 = 69.</think>\n"
        "<answer>\\boxed{69}</answer>\n"
        "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>",
    },
    {
        "role": "user",
        "content": "Tom reads 30 pages a day. After 4 days he has read 40 % of his book. How many "
        "more days does he need if he then reads 15 pages more a day?",
    },
    {
        "role": "assistant",
        "content": "<think>In 4 days: 30 * 4 = 120 pages. The book has 120 / 0.4 = 300 pages. "
        "Left: 300 - 120 = 180. Days: 180 / 15 = 12.</think>\n"
        "<answer>\\boxed{12}</answer>\n"
        "<self_check>VERDICT: INCORRECT; CONFIDENCE: 0.1</self_check>",
    },
]
"""One answer is right, one wrong (he then reads 45 pages a day, so 4 days), and each check says
so: with right ones alone a model checks nothing."""


@dataclass(frozen=True)
class Shown(SelfVerifying):
    """The examples stand between the system message and the question."""

    def first(self, problem: Problem) -> list[Message]:
        """The paper's first prompt, and the examples."""
        system, question = super().first(problem)
        return [system, *EXAMPLES, question]


@dataclass(frozen=True, kw_only=True)
class ShownSVR(SVR):
    """SVR with this first prompt, which fresh turns repeat."""

    @property
    def dialogue(self) -> Dialogue:
        """The dialogue with the examples."""
        return Shown(self.interface)
