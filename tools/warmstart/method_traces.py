"""Demonstrations under the prompts of the methods that SVR is compared with.

The demonstrator is that of :mod:`~tools.warmstart.traces`, and searches as well under each
prompt: only what it is asked for differs. Where nobody asks for a self-check it stays with a wrong
answer as often as it would have called it CORRECT and stayed.
"""

import random
from collections.abc import Callable, Iterator

from svr_lightning.core.types import DraftState, Message, OracleState
from svr_lightning.recipes.dialogues import first_turn, neutral
from svr_lightning.recipes.labels import scored
from svr_lightning.recipes.mlmt_rl import feedback, guided
from svr_lightning.recipes.scrpo import (
    ANALYSIS_CLOSE,
    ANALYSIS_OPEN,
    doubtful_draft,
    wrong_draft,
)
from svr_lightning.tasks import get_task
from tools.warmstart.documents import Document
from tools.warmstart.traces import (
    INSIST_CHANCE,
    TRUNCATED_SHARE,
    TRUST_WRONG,
    Puzzle,
    Trace,
    first_trace,
    later_turn,
    next_trace,
    previous_trace,
    problem_of,
    self_checked_document,
    staying_trace,
    training_puzzle,
)

STAY_CHANCE = INSIST_CHANCE * TRUST_WRONG
"""Probability of keeping a wrong answer when there is no self-check."""
KEEP_HINT, CHANGE_HINT = "Keep this answer.", "Try something else."
"""A tutor's advice."""

Demonstrate = Callable[[random.Random, Puzzle], Document]


def method_documents(seed: int) -> Iterator[Document]:
    """Endless demonstrations of all prompts; equal seeds, equal sequences."""
    rng = random.Random(seed)
    kinds, weights = zip(*_KINDS, strict=True)
    while True:
        demonstrate: Demonstrate = rng.choices(kinds, weights)[0]
        yield demonstrate(rng, training_puzzle(rng))


def _joint(rng: random.Random, puzzle: Puzzle) -> Document:
    return self_checked_document(rng, puzzle, INSIST_CHANCE)


def _verdict(rng: random.Random, puzzle: Puzzle) -> Document:
    return self_checked_document(rng, puzzle, INSIST_CHANCE, "verdict")


def _confidence(rng: random.Random, puzzle: Puzzle) -> Document:
    return self_checked_document(rng, puzzle, INSIST_CHANCE, "confidence")


def _first(rng: random.Random, puzzle: Puzzle) -> Document:
    trace = first_trace(rng, puzzle)
    messages = first_turn(_STYLE, problem_of(puzzle).question)
    return Document(kind="first", messages=messages, completion=trace.text, correct=trace.correct)


def _neutral(rng: random.Random, puzzle: Puzzle) -> Document:
    draft, truncated = _draft(rng, puzzle)
    state = DraftState(draft=_shown(rng, draft.text, truncated), truncated=truncated)
    trace = _go_on(rng, puzzle, draft, truncated, _stays(rng, draft))
    messages = neutral(_STYLE, problem_of(puzzle).question, state, later_turn(rng))
    return _document("neutral", messages, trace.text, draft.text, truncated, trace.correct)


def _scored(rng: random.Random, puzzle: Puzzle) -> Document:
    """A demonstrator that is told the score believes it."""
    draft, truncated = _draft(rng, puzzle)
    state = OracleState(
        draft=_shown(rng, draft.text, truncated), truncated=truncated, correct=draft.correct
    )
    trace = _go_on(rng, puzzle, draft, truncated, draft.correct)
    messages = scored(_STYLE, problem_of(puzzle).question, state, later_turn(rng))
    return _document("scored", messages, trace.text, draft.text, truncated, trace.correct)


def _analysed(rng: random.Random, puzzle: Puzzle) -> Document:
    """The check is in the analysis; some prompts say that the draft is wrong."""
    draft, truncated = _draft(rng, puzzle)
    text = analysis_text(draft) if draft.lines[0].startswith("check") else draft.text
    told = not draft.correct and rng.random() < _TOLD_SHARE
    shown = _shown(rng, text, truncated, ANALYSIS_OPEN)
    trace = _go_on(rng, puzzle, draft, truncated, not told and _stays(rng, draft))
    question, turn = problem_of(puzzle).question, later_turn(rng)
    if told:
        known = OracleState(draft=shown, truncated=truncated, correct=False)
        messages = wrong_draft(_STYLE, question, known, turn)
    else:
        state = DraftState(draft=shown, truncated=truncated)
        messages = doubtful_draft(_STYLE, question, state, turn)
    return _document("analysis", messages, analysis_text(trace), text, truncated, trace.correct)


def _feedback(rng: random.Random, puzzle: Puzzle) -> Document:
    draft, _ = _draft(rng, puzzle)
    messages = feedback(_STYLE, problem_of(puzzle).question, draft.text)
    hints = hints_text(puzzle, draft, _stays(rng, draft))
    return _document("feedback", messages, hints, draft.text, False, False)


def _guided(rng: random.Random, puzzle: Puzzle) -> Document:
    """The tutor's advice is followed."""
    draft, _ = _draft(rng, puzzle)
    stay = _stays(rng, draft)
    trace = _go_on(rng, puzzle, draft, False, stay)
    messages = guided(
        _STYLE,
        problem_of(puzzle).question,
        draft.text,
        hints_text(puzzle, draft, stay),
        later_turn(rng),
    )
    return _document("guided", messages, trace.text, draft.text, False, trace.correct)


def analysis_text(trace: Trace) -> str:
    """A trace whose first line is the analysis; a single line is repeated in the reasoning."""
    rest = trace.lines[1:] or trace.lines
    return (
        f"{ANALYSIS_OPEN}{trace.lines[0]}{ANALYSIS_CLOSE}\n"
        f"<think>{'; '.join(rest)}</think>\n<answer>{trace.answer.expression}</answer>"
    )


def hints_text(puzzle: Puzzle, attempt: Trace, stay: bool) -> str:
    """A tutor's check of an attempt, with advice."""
    (check,) = staying_trace(puzzle, attempt.answer).lines
    return f"<think>{check}</think>\n{KEEP_HINT if stay else CHANGE_HINT}"


def _draft(rng: random.Random, puzzle: Puzzle) -> tuple[Trace, bool]:
    """A previous turn, and whether it was cut off."""
    return previous_trace(rng, puzzle), rng.random() < TRUNCATED_SHARE


def _shown(rng: random.Random, text: str, truncated: bool, opening: str = "<think>") -> str:
    """The previous turn as the prompt shows it; a truncated one keeps at least its opening tag."""
    return text[: rng.randrange(len(opening), len(text))] if truncated else text


def _stays(rng: random.Random, draft: Trace) -> bool:
    return draft.correct or rng.random() < STAY_CHANCE


def _go_on(rng: random.Random, puzzle: Puzzle, draft: Trace, truncated: bool, stay: bool) -> Trace:
    if truncated:
        return first_trace(rng, puzzle)
    if stay and not draft.correct:
        return staying_trace(puzzle, draft.answer)
    return next_trace(rng, puzzle, draft.answer)


def _document(
    kind: str,
    messages: list[Message],
    completion: str,
    draft: str,
    truncated: bool,
    correct: bool,
) -> Document:
    learn = "" if truncated else draft.removesuffix("</answer>")
    return Document(
        kind=kind, messages=messages, completion=completion, draft=learn, correct=correct
    )


_STYLE = get_task("countdown").style
_TOLD_SHARE = 0.2
_KINDS: tuple[tuple[Demonstrate, int], ...] = (
    (_joint, 34),
    (_verdict, 8),
    (_confidence, 8),
    (_first, 16),
    (_neutral, 12),
    (_analysed, 8),
    (_scored, 6),
    (_feedback, 4),
    (_guided, 4),
)
"""The prompts, and how often each is demonstrated."""
