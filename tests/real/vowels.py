"""A task that pays different texts differently, so that groups of untaught answers differ."""

from svr_lightning.core.prompts import AnswerStyle
from svr_lightning.core.types import Problem
from svr_lightning.tasks.base import Row, Task, last_answer
from svr_lightning.tasks.gsm8k import GSM8K


class Vowels(Task):
    """Nothing is right; the format's score is the share of vowels."""

    style = GSM8K.style

    def from_row(self, row: Row) -> Problem:
        return Problem(id=row["id"], task=self.name, question=row["question"], reference="none")

    def extract_answer(self, completion: str) -> str | None:
        return completion.strip() or None

    def grade(self, completion: str, problem: Problem) -> bool:
        return False

    def format_score(self, completion: str) -> float:
        return sum(letter in "aeiou" for letter in completion) / max(len(completion), 1)


class LastWord(Vowels):
    """The answer is the last word; it is right if its letters are even in number."""

    style = AnswerStyle(
        role="You name things.",
        request="<answer>YOUR_ANSWER</answer>",
        reminder="<answer></answer>",
        draft_limit=200,
    )

    def extract_answer(self, completion: str) -> str | None:
        words = (last_answer(completion) or completion).split()
        return words[-1] if words else None

    def grade(self, completion: str, problem: Problem) -> bool:
        return len(self.extract_answer(completion) or "x") % 2 == 0

    def format_score(self, completion: str) -> float:
        return float("<answer>" in completion)
