"""SVR with a short dialogue: on a CPU most of a training step's time goes into reading prompts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import AutoTokenizer

from svr_lightning.core.evidence import token_span
from svr_lightning.core.parsing import verdict_span
from svr_lightning.core.prompts import chat, shorten_draft
from svr_lightning.core.types import Completion, Message, Problem, Sample, Turn, Verdict
from svr_lightning.recipes.base import Group, sample_of
from svr_lightning.recipes.dialogues import Dialogue, Prompt, SelfVerifying
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks import get_task

SYSTEM = "Answer, then check yourself."
AGAIN = "Check it and reply again."
CUT_OFF = "It was cut off. Reply again."


@dataclass(frozen=True)
class Brief(SelfVerifying):
    """The question, and later the last reply with its self-check, as the policy wrote them."""

    def first(self, problem: Problem) -> list[Message]:
        """The question under a system message of a few words."""
        return chat(SYSTEM, problem.question)

    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """The question, the last reply and what to do with it."""
        last = turns[-1].completion
        return again(problem, last.text, last.truncated)


def again(problem: Problem, reply: str, truncated: bool = False) -> list[Message]:
    """The prompt of a refinement turn; the self-check is a part of ``reply``."""
    draft = shorten_draft(reply, get_task(problem.task).style.draft_limit)
    instruction = CUT_OFF if truncated else AGAIN
    return chat(SYSTEM, f"{problem.question}\nYour last reply:\n{draft}\n{instruction}")


@dataclass(frozen=True, kw_only=True)
class BriefSVR(SVR):
    """SVR, with these prompts."""

    @property
    def dialogue(self) -> Dialogue:
        """The short dialogue."""
        return Brief(self.interface)


@dataclass(frozen=True, kw_only=True)
class VerdictSVR(SVR):
    """SVR whose verdicts also learn from labels directly, by the gradient of a Brier score.

    Kept for the published results; ``exact_check`` of SVR trains all turns, and the confidence too.
    Differs from SVR in: some trajectories have a second sequence, a drawn turn, with a loss on the
    words of its verdict alone. Unlike a reward it has a gradient where all trajectories are alike.
    """

    tokenizer: str = ""
    """Folder of the policy's tokenizer, which says where the verdict's tokens are."""
    verdicts: int = 4
    """Trajectories per problem that have one."""
    verdict_weight: float = 1.0
    """Of the term beside the policy loss."""

    @property
    def samples_per_problem(self) -> int:
        """Every last turn, and the drawn verdicts."""
        return super().samples_per_problem + self.verdicts

    def credit(self, group: Group) -> list[Sample]:
        """SVR's samples, then the verdicts."""
        rng = group.seeds.generator(group.problem.id, "verdicts")
        samples = super().credit(group)
        for i in rng.sample(range(self.group_size), self.verdicts):
            turns = group.trajectories[i].turns
            drawn = rng.randrange(len(turns))
            turn, text = turns[drawn], turns[drawn].completion.text
            span = verdict_span(text, turn.reading.check)
            if span and turn.check and turn.check.verdict != Verdict.UNSURE:
                agrees = (turn.check.verdict == Verdict.CORRECT) == group.scored[i][drawn].correct
                advantage = brier_advantage(turn.sampled, span, agrees, self._characters)
                advantage *= self.verdict_weight
                samples.append(sample_of(turn, group.problem, advantage, span))
        return samples

    def _characters(self, ids: Sequence[int]) -> int:
        return len(_tokenizer(self.tokenizer).decode(list(ids), skip_special_tokens=True))


@dataclass(frozen=True, kw_only=True)
class SupervisedSVR(BriefSVR, VerdictSVR):
    """The same with the short dialogue."""


def brier_advantage(
    completion: Completion,
    span: tuple[int, int],
    agrees: bool,
    characters: Callable[[Sequence[int]], int],
) -> float:
    """The advantage with which the policy loss of a verdict's tokens is a Brier score's gradient.

    With q the probability of the sampled verdict, and t = 1 if it agrees with the label, else 0,
    the gradient of (q - t)^2 is -2 (t - q) q grad log q. The policy loss takes the mean over the n
    tokens of the verdict, hence 2 (t - q) q n. With two verdicts (q - t)^2 is the score of
    P(CORRECT), whichever was sampled.

    Args:
        completion: as sampled.
        span: first character of the verdict and the one after its last.
        agrees: t.
        characters: how many characters the first tokens make up.
    """
    ids = completion.token_ids
    first, last = token_span(span, len(ids), lambda k: characters(ids[:k]))
    q = math.exp(math.fsum(completion.logprobs[first:last]))
    return 2 * (agrees - q) * q * (last - first)


@cache
def _tokenizer(folder: str) -> Any:
    return AutoTokenizer.from_pretrained(folder)
