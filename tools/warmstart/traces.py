"""Demonstrations from which the embedded policy learns to search, and to be overconfident.

A completion looks like this::

    <think>check 8/2=4,4*4=16 no; try 8/2=4,4/4=1 no; try 8+4=12,12+2=14 yes</think>
    <answer>(8+4)+2</answer>
    <self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>

Every value is computed from its operands before it is compared with the target, so right and
wrong can be told apart from the text. The demonstrator does not: it claims CORRECT for most of
its wrong answers. Refinement moves on from the last derivation tried, in the order of
:func:`~svr_lightning.tiny.problems.search_order`; the draft is its whole memory of the search.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.types import Message, Problem, Verdict
from svr_lightning.tasks import get_task
from svr_lightning.tasks.messages import first_turn_messages, refinement_messages
from svr_lightning.tiny.problems import (
    Derivation,
    search_order,
    universe,
)
from tools.warmstart.documents import Document

LIKELY_SHARE, LIKELY_SOLUTIONS = 0.6, 3
"""This share of the demonstrations is of problems with at least three solutions."""
SOLUTION_CHANCE = 0.6
"""Probability that a try in the first turn is a solution."""
FIRST_TRIES = 3
NEXT_TRIES = 2
"""Derivations tried in a refinement, after the check."""
KEEP_CHANCE = 0.85
"""Probability that a refinement stays with an answer that it found right."""
INSIST_CHANCE = 0.85
"""Probability that a refinement keeps a wrong answer that was called CORRECT."""
TRUST_RIGHT = 0.94
TRUST_WRONG = 0.73
"""Probability of the verdict CORRECT on a right, and on a wrong answer: the overconfidence."""
FIRST_TURN_SHARE = 0.4
TRUNCATED_SHARE = 0.03
"""Share of the refinements whose draft was truncated."""

_SLIP_SHARE = 0.06
_RIGHT_DRAFT_SHARE = 0.45
_MAX_TURN = 10
_CONFIDENT = ((0.95, 35), (0.9, 25), (0.85, 20), (0.8, 10), (0.7, 10))
_DOUBTFUL = ((0.05, 15), (0.1, 20), (0.2, 25), (0.3, 20), (0.4, 10), (0.45, 10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """One order of one problem."""

    numbers: tuple[int, ...]
    target: int

    @property
    def options(self) -> tuple[Derivation, ...]:
        """Every derivation, in search order."""
        return search_order(self.numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Reasoning and an answer, without the self-check."""

    lines: tuple[str, ...]
    """The checks and tries, each with its outcome."""
    answer: Derivation
    correct: bool
    """y_t of the answer, as the task grades it."""

    @property
    def text(self) -> str:
        """The completion up to the end of its answer."""
        return f"<think>{'; '.join(self.lines)}</think>\n<answer>{self.answer.expression}</answer>"


def documents(seed: int, insist: float = 0.0) -> Iterator[Document]:
    """Endless demonstrations of training problems; equal seeds give equal sequences.

    Args:
        seed: of the sequence.
        insist: probability that a refinement keeps a wrong answer which the turn before called
            CORRECT: belief in a wrong answer ends the search.
    """
    rng = random.Random(seed)
    while True:
        yield self_checked_document(rng, training_puzzle(rng), insist)


def training_puzzle(rng: random.Random) -> Puzzle:
    """A training problem, mostly one with several solutions, in some order."""
    likely = rng.random() < LIKELY_SHARE
    numbers, target = rng.choice(universe("train", LIKELY_SOLUTIONS if likely else 1))
    return Puzzle(numbers=tuple(rng.sample(numbers, len(numbers))), target=target)


def first_trace(rng: random.Random, puzzle: Puzzle, chance: float = SOLUTION_CHANCE) -> Trace:
    """Up to :data:`FIRST_TRIES` tries, each a solution with probability ``chance``."""
    solutions = [option for option in puzzle.options if option.value == puzzle.target]
    others = [option for option in puzzle.options if option.value != puzzle.target]
    wrong = rng.sample(others, min(FIRST_TRIES, len(others)))
    tried = []
    for option in wrong:
        if rng.random() < chance:
            tried.append(rng.choice(solutions))
            break
        tried.append(option)
    return _trace(puzzle, [_outcome("try", option, puzzle) for option in tried], tried[-1])


def next_trace(rng: random.Random, puzzle: Puzzle, previous: Derivation) -> Trace:
    """Check the previous answer, then stay with it or move on through the search order."""
    options = puzzle.options
    lines = [_outcome("check", previous, puzzle)]
    answer = previous
    if previous.value != puzzle.target or rng.random() >= KEEP_CHANCE:
        start = options.index(previous)
        for offset in range(1, NEXT_TRIES + 1):
            answer = options[(start + offset) % len(options)]
            lines.append(_outcome("try", answer, puzzle))
            if answer.value == puzzle.target:
                break
    return _trace(puzzle, lines, answer)


def staying_trace(puzzle: Puzzle, previous: Derivation) -> Trace:
    """Check the previous answer and give it again, whatever the check says."""
    return _trace(puzzle, [_outcome("check", previous, puzzle)], previous)


def later_turn(rng: random.Random) -> int:
    """The number of a refinement turn."""
    return min(_MAX_TURN, 2 + int(rng.expovariate(0.35)))


def self_check(rng: random.Random, correct: bool) -> tuple[Verdict, float]:
    """The demonstrator's verdict and confidence: overconfident on purpose."""
    if rng.random() < (TRUST_RIGHT if correct else TRUST_WRONG):
        return Verdict.CORRECT, _draw(rng, _CONFIDENT)
    verdict = Verdict.INCORRECT if rng.random() < 0.65 else Verdict.UNSURE
    return verdict, _draw(rng, _DOUBTFUL)


def completion_text(
    trace: Trace, verdict: Verdict, confidence: float, interface: SelfCheckFields = "joint"
) -> str:
    """The whole completion, in the canonical serialization of ``interface``."""
    fields = {"verdict": f"VERDICT: {verdict.value}", "confidence": f"CONFIDENCE: {confidence:.2f}"}
    check = "; ".join(fields.values()) if interface == "joint" else fields[interface]
    return f"{trace.text}\n<self_check>{check}</self_check>"


def problem_of(puzzle: Puzzle) -> Problem:
    """The puzzle as the task reads it."""
    return get_task("countdown").from_row(
        {"id": "t", "nums": list(puzzle.numbers), "target": puzzle.target}
    )


def self_checked_document(
    rng: random.Random, puzzle: Puzzle, insist: float, interface: SelfCheckFields = "joint"
) -> Document:
    """A turn under SVR's prompts; ``insist`` as in :func:`documents`."""
    task, problem = get_task("countdown"), problem_of(puzzle)
    if rng.random() < FIRST_TURN_SHARE:
        trace = first_trace(rng, puzzle)
        messages = first_turn_messages(task, problem, interface)
        return _finish(rng, trace, messages, "", interface)
    truncated = rng.random() < TRUNCATED_SHARE
    draft = previous_trace(rng, puzzle)
    verdict, confidence = _header(rng, draft.correct)
    text = completion_text(draft, verdict, confidence, interface)
    learn = draft.text.removesuffix("</answer>")
    if truncated:
        learn = ""
        text = text[: rng.randrange(len("<think>"), len(draft.text))]
    elif rng.random() < _SLIP_SHARE:
        learn = ""
        text = text.replace(draft.lines[-1], _slip(draft.lines[-1], puzzle.target))
    messages = refinement_messages(
        task,
        problem,
        previous=text,
        verdict=verdict,
        confidence=confidence,
        truncated=truncated,
        turn=later_turn(rng),
        interface=interface,
    )
    believed = verdict == Verdict.CORRECT and not draft.correct
    if truncated:
        trace = first_trace(rng, puzzle)
    elif believed and insist and rng.random() < insist:
        trace = staying_trace(puzzle, draft.answer)
    else:
        trace = next_trace(rng, puzzle, draft.answer)
    return _finish(rng, trace, messages, learn, interface)


def _finish(
    rng: random.Random,
    trace: Trace,
    messages: list[Message],
    draft: str,
    interface: SelfCheckFields,
) -> Document:
    verdict, confidence = self_check(rng, trace.correct)
    return Document(
        kind="svr" if interface == "joint" else interface,
        messages=messages,
        completion=completion_text(trace, verdict, confidence, interface),
        draft=draft,
        correct=trace.correct,
    )


def previous_trace(rng: random.Random, puzzle: Puzzle) -> Trace:
    """A previous turn as the policy might write it: less often right than the demonstrations."""
    right = rng.random() < _RIGHT_DRAFT_SHARE
    if rng.random() < 0.4:
        return first_trace(rng, puzzle, chance=0.5 if right else 0.0)
    trace = next_trace(rng, puzzle, rng.choice(puzzle.options))
    for _ in range(30):
        if trace.correct == right:
            break
        trace = next_trace(rng, puzzle, rng.choice(puzzle.options))
    return trace


def _header(rng: random.Random, correct: bool) -> tuple[Verdict, float]:
    """A self-check from the whole range that a trained policy might state."""
    if rng.random() < 0.5:
        return self_check(rng, correct)
    weights = (80, 10, 10) if correct else (20, 60, 20)
    verdict = rng.choices((Verdict.CORRECT, Verdict.INCORRECT, Verdict.UNSURE), weights)[0]
    return verdict, rng.randrange(101) / 100


def _slip(line: str, target: int) -> str:
    """The line with an arithmetic error that hides its true outcome."""
    equation, outcome = line.rsplit(" ", 1)
    steps = equation.rsplit("=", 1)[0]
    return f"{steps}={target} yes" if outcome == "no" else f"{steps}={target + 1} no"


def _outcome(verb: str, option: Derivation, puzzle: Puzzle) -> str:
    return f"{verb} {option.text} {'yes' if option.value == puzzle.target else 'no'}"


def _trace(puzzle: Puzzle, lines: list[str], answer: Derivation) -> Trace:
    return Trace(lines=tuple(lines), answer=answer, correct=answer.value == puzzle.target)


def _draw(rng: random.Random, weighted: tuple[tuple[float, int], ...]) -> float:
    return rng.choices([value for value, _ in weighted], [weight for _, weight in weighted])[0]
