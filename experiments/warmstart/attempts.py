"""Demonstrations under every prompt that a recipe uses, for any task.

A task brings a :class:`Solver`, which writes attempts. What is asked for differs from prompt to
prompt, the solver does not. It never says how an attempt ended: what it writes before the
self-check reads the same for right and wrong answers, and its self-check is overconfident.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from svr_lightning.core import prompts
from svr_lightning.core.types import FinishReason, Problem, RemoteCompletion, Turn, Verdict
from svr_lightning.recipes.scrpo import ANALYSIS_CLOSE, ANALYSIS_OPEN
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks import get_task
from svr_lightning.training.documents import Document, Encoded, encode, written_check

Weighted = tuple[tuple[float, int], ...]
Chances = Mapping[bool, float]

KINDS = (
    "svr",
    "verdict",
    "confidence",
    "first",
    "neutral",
    "analysis",
    "scored",
    "tutor",
    "guided",
)
"""All prompts of all recipes; the first three ask for a self-check, or for one of its fields."""
TRUNCATED_SHARE = 0.03
"""Share of the refinements whose draft was truncated."""
TOLD_SHARE = 0.3
"""Share of wrong drafts which the prompt of an analysis says are wrong."""
KEEP_BELIEVED = {True: 0.9, False: 0.8}
"""Probability that a refinement keeps a right, and a wrong answer that was called CORRECT."""
KEEP_DOUBTED = {True: 0.3, False: 0.1}
"""The same for an answer that was not called CORRECT, if the task says nothing else."""
KEEP_UNCHECKED = {True: 0.8, False: 0.65}
"""The same where there is no self-check."""

CONFIDENT = {
    True: ((0.95, 40), (0.9, 34), (0.85, 18), (0.8, 5), (0.7, 3)),
    False: ((0.95, 28), (0.9, 34), (0.85, 23), (0.8, 9), (0.7, 6)),
}
_DOUBTFUL = ((0.05, 10), (0.1, 15), (0.2, 25), (0.3, 25), (0.4, 15), (0.45, 10))
_MAX_TURN = 10


@dataclass(frozen=True, slots=True)
class Demonstration(Document):
    """A document under one of the prompts of :data:`KINDS`."""

    kind: str
    draft: str = ""
    """The part of the prompt to learn as well, such as the previous turn, or empty."""


def encoded(renderer: Renderer, document: Demonstration, check_weight: float) -> Encoded:
    """The document in token ids; the draft in its prompt has weights as well."""
    whole = encode(renderer, document, check_weight)
    rendered = renderer.text(document.messages)
    start = rendered.index(document.draft)
    prompt = renderer.tokenizer(rendered, return_offsets_mapping=True, add_special_tokens=False)
    for token, (left, right) in enumerate(prompt["offset_mapping"]):
        whole.weights[token] = float(start <= left < right <= start + len(document.draft))
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Reasoning and an answer, without the self-check."""

    reasoning: str
    answer: str
    plan: str
    """How the reasoning begins: what an analysis or a tutor proposes."""
    correct: bool
    """y_t of the answer, as the task grades it."""
    analysis: str = field(default="", compare=False)
    """What stands before the reasoning."""
    truncated: bool = field(default=False, compare=False)
    """Whether a prompt shows only its beginning."""

    @property
    def text(self) -> str:
        """The completion up to the end of its answer."""
        thought = f"<think>{self.reasoning}</think>\n" if self.reasoning else ""
        return f"{self.analysis}{thought}<answer>{self.answer}</answer>"

    @property
    def learned(self) -> str:
        """What to learn of it as a draft; its last tag may share a token with what follows."""
        return "" if self.truncated else self.text.removesuffix("</answer>")


class Solver(Protocol):
    """Writes attempts on the problems of a task."""

    def problem(self, rng: random.Random) -> Problem:
        """A problem to demonstrate."""

    def attempt(self, rng: random.Random, problem: Problem, *, draft: bool = False) -> Attempt:
        """From nothing. A draft, a turn as the policy might write it, is less often right."""

    def another(self, rng: random.Random, problem: Problem, draft: Attempt) -> Attempt:
        """A different attempt, after ``draft``."""


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Endless documents; iterate over :meth:`stream`."""

    solver: Solver
    kinds: Sequence[str] = KINDS
    """The prompts to demonstrate, all equally often."""
    first_turns: float = 0.4
    """Share of first turns among the demonstrations with a self-check."""
    informative: float = 1.0
    """How much self-checks and refinements know of correctness: 0 makes them independent of it, 1
    gives the probabilities above."""
    trust: Chances
    """Probability of the verdict CORRECT on right and on wrong answers."""
    confident: Mapping[bool, Weighted] = field(default_factory=lambda: CONFIDENT)
    """Confidences that go with CORRECT, with their weights, on right and on wrong answers."""
    keep_doubted: Chances = field(default_factory=lambda: KEEP_DOUBTED)
    """Probability that a refinement keeps a doubted answer, by whether it is right."""

    def stream(self, seed: int) -> Iterator[Demonstration]:
        """Demonstrations of the prompts of ``kinds``; equal seeds, equal sequences."""
        rng = random.Random(seed)
        makers = {
            "first": self._first,
            "neutral": self._revised,
            "scored": self._revised,
            "analysis": self._analysis,
            "tutor": self._tutored,
            "guided": self._tutored,
        }
        while True:
            kind, problem = rng.choice(self.kinds), self.solver.problem(rng)
            yield makers.get(kind, self._checked)(rng, problem, kind)

    def self_check(self, rng: random.Random, correct: bool) -> tuple[Verdict, float]:
        """The demonstrator's verdict and confidence: overconfident on purpose."""
        correct = self._seems(rng, correct)
        if rng.random() < self.trust[correct]:
            return Verdict.CORRECT, _draw(rng, self.confident[correct])
        verdict = Verdict.INCORRECT if rng.random() < 0.65 else Verdict.UNSURE
        return verdict, _draw(rng, _DOUBTFUL)

    def _checked(self, rng: random.Random, problem: Problem, kind: str) -> Demonstration:
        """A turn under SVR's prompts, with one or both fields of the self-check."""
        task = get_task(problem.task)
        interface: Any = "joint" if kind == "svr" else kind
        if rng.random() < self.first_turns:
            attempt, learned = self.solver.attempt(rng, problem), ""
            messages = prompts.first_turn_messages(task, problem, interface)
        else:
            draft = self._draft(rng, problem)
            verdict, confidence = self._header(rng, draft.correct)
            messages = prompts.refinement_messages(
                task,
                problem,
                previous=_shown(rng, draft, written_check(verdict, confidence, interface)),
                verdict=verdict,
                confidence=confidence,
                truncated=draft.truncated,
                turn=_later_turn(rng),
                interface=interface,
            )
            believed = confidence >= 0.5 if kind == "confidence" else verdict == Verdict.CORRECT
            keep = KEEP_BELIEVED if believed else self.keep_doubted
            attempt, learned = self._refined(rng, problem, draft, keep), draft.learned
        check = written_check(*self.self_check(rng, attempt.correct), interface)
        return Demonstration(messages, attempt.text + check, attempt.correct, kind, learned)

    def _first(self, rng: random.Random, problem: Problem, kind: str) -> Demonstration:
        attempt = self.solver.attempt(rng, problem)
        messages = prompts.first_turn_messages(get_task(problem.task), problem, None)
        return Demonstration(messages, attempt.text, attempt.correct, kind)

    def _revised(self, rng: random.Random, problem: Problem, kind: str) -> Demonstration:
        """A turn after a draft; where it is told the draft's score it believes it."""
        draft = self._draft(rng, problem)
        if kind == "scored" and not draft.truncated:
            attempt = draft if draft.correct else self.solver.another(rng, problem, draft)
        else:
            attempt = self._refined(rng, problem, draft)
        shown = _shown(rng, draft)
        previous = _turn_before(_later_turn(rng), shown, draft.truncated)
        task = get_task(problem.task)
        if kind == "scored":
            messages = prompts.scored(task, problem, previous, draft.correct)
        else:
            messages = prompts.neutral(task, problem, previous)
        return Demonstration(messages, attempt.text, attempt.correct, kind, draft.learned)

    def _analysis(self, rng: random.Random, problem: Problem, kind: str) -> Demonstration:
        """The analysis repeats the draft and proposes how to begin."""
        turn = _later_turn(rng)
        draft = self._draft(rng, problem)
        if rng.random() < 0.5:
            draft = _analysed(self.solver.attempt(rng, problem, draft=True), draft)
        previous = _turn_before(turn, _shown(rng, draft), draft.truncated)
        told = not draft.truncated and not draft.correct and rng.random() < TOLD_SHARE
        if told:
            attempt = self.solver.another(rng, problem, draft)
        else:
            attempt = self._refined(rng, problem, draft)
        messages = prompts.analysis(get_task(problem.task), problem, previous, is_wrong=told)
        completion = _analysed(draft, attempt).text
        return Demonstration(messages, completion, attempt.correct, kind, draft.learned)

    def _tutored(self, rng: random.Random, problem: Problem, kind: str) -> Demonstration:
        """A tutor's advice, or the attempt that follows it."""
        draft, task = self.solver.attempt(rng, problem, draft=True), get_task(problem.task)
        attempt = self._refined(rng, problem, draft)
        hints = f"<think>{draft.reasoning}</think>\nTry {attempt.plan} first."
        if kind == "tutor":
            messages = prompts.feedback(task, problem, _turn_before(2, draft.text))
            return Demonstration(messages, hints, None, kind, draft.learned)
        told = _turn_before(_later_turn(rng), hints)
        messages = prompts.guided(task, problem, _turn_before(2, draft.text), told)
        return Demonstration(messages, attempt.text, attempt.correct, kind, draft.learned)

    def _draft(self, rng: random.Random, problem: Problem) -> Attempt:
        """A previous turn, which may be cut off."""
        draft = self.solver.attempt(rng, problem, draft=True)
        return replace(draft, truncated=rng.random() < TRUNCATED_SHARE)

    def _refined(
        self, rng: random.Random, problem: Problem, draft: Attempt, keep: Chances = KEEP_UNCHECKED
    ) -> Attempt:
        """The draft again or another attempt; from nothing after a draft that was cut off."""
        if draft.truncated:
            return self.solver.attempt(rng, problem)
        if rng.random() < keep[self._seems(rng, draft.correct)]:
            return draft
        return self.solver.another(rng, problem, draft)

    def _header(self, rng: random.Random, correct: bool) -> tuple[Verdict, float]:
        """A self-check from the whole range that a trained policy might state."""
        if rng.random() < 0.5:
            return self.self_check(rng, correct)
        verdict = rng.choices((Verdict.CORRECT, Verdict.INCORRECT, Verdict.UNSURE), (4, 4, 2))[0]
        return verdict, rng.randrange(101) / 100

    def _seems(self, rng: random.Random, correct: bool) -> bool:
        """Whether an answer seems right; a coin flip where nothing is known."""
        return correct if rng.random() < self.informative else rng.random() < 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A part of a warm start."""

    demonstrations: Demonstrations
    steps: int
    rate: float
    """Peak learning rate."""
    batch: int
    """Demonstrations per step."""
    check_weight: float
    """Weight of the self-check's tokens in the loss; all others weigh 1."""


def _analysed(draft: Attempt, attempt: Attempt) -> Attempt:
    """The attempt, after what the draft did and how to begin now."""
    said = f"{ANALYSIS_OPEN}{draft.reasoning}; try {attempt.plan}{ANALYSIS_CLOSE}\n"
    return replace(attempt, analysis=said)


def _shown(rng: random.Random, draft: Attempt, check: str = "") -> str:
    """A draft; a truncated one is cut off in its text, with at least some characters left."""
    if draft.truncated:
        return draft.text[: rng.randrange(len(ANALYSIS_OPEN), len(draft.text))]
    return draft.text + check


def _later_turn(rng: random.Random) -> int:
    """The number of a refinement turn."""
    return min(_MAX_TURN, 2 + int(rng.expovariate(0.35)))


def _turn_before(turn: int, text: str, truncated: bool = False) -> Turn:
    """The turn before turn ``turn``."""
    reason = FinishReason.LENGTH if truncated else FinishReason.STOP
    said = RemoteCompletion(text=text, finish_reason=reason)
    return Turn(index=turn - 1, completion=said, check=None)


def _draw(rng: random.Random, weighted: Weighted) -> float:
    return rng.choices([value for value, _ in weighted], [weight for _, weight in weighted])[0]
