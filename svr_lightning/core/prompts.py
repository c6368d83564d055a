r"""The policy's prompts (appendix "SVR Prompt Templates").

Every prompt is ``[system, user]``. The first user message is the question alone; later ones are
built from the question and a :class:`PolicyState`, and from nothing else: no label, reference,
score or reward has a way in.
"""

from collections.abc import Callable
from dataclasses import dataclass

from svr_lightning.core.types import Message, PolicyState, Verdict

TRUNCATION_MARK = "[...truncated]"

_ROLE = "You are a careful math assistant who audits your own work."
_STEPS = "First reason step-by-step inside <think>...</think>. Then give the final answer inside "
_SELF_CHECK = (
    "Finally, on a new line, output a self-verification in EXACTLY this form: "
    "<self_check>VERDICT: CORRECT, INCORRECT, or UNSURE; CONFIDENCE: a number in [0,1] "
    "</self_check>"
)
_HONESTY = (
    "Be honest and well-calibrated: only report CORRECT with high confidence after verifying "
    "every step."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStyle:
    """How a task wants its answer written, and how much of a draft its prompts keep."""

    request: str
    r"""In the system message: ``<answer>\boxed{YOUR_ANSWER}</answer>``."""
    reminder: str
    r"""In refinement instructions: ``<answer>\boxed{}</answer>``."""
    closing: str
    """Last sentence of the system message, or empty."""
    draft_limit: int
    """N, the number of characters of the previous completion that a prompt keeps."""


def system_prompt(style: AnswerStyle) -> str:
    """SVR's system message for a task."""
    honesty = f"{_HONESTY} {style.closing}" if style.closing else _HONESTY
    return "\n".join([_ROLE, f"{_STEPS}{style.request}.", _SELF_CHECK, honesty])


def first_turn(style: AnswerStyle, question: str) -> list[Message]:
    """P_0 (equation initial-prompt): the system message and the raw question."""
    return _messages(style, question)


def refine(style: AnswerStyle, question: str, state: PolicyState, turn: int) -> list[Message]:
    """P_ref (equation refinement-prompt): the message of turn ``turn`` >= 2.

    Raises:
        ValueError: if ``turn`` < 2, since the first turn has no past.
    """
    if turn < 2:
        raise ValueError(f"turn={turn}: a refinement prompt belongs to turn 2 or later")
    user = (
        f"[T={turn}] Your self-verification last turn: {_header(state)}\n"
        f"Question: {question}\n\n"
        f"Your previous solution:\n{shorten_draft(state.draft, style.draft_limit)}\n\n"
        f"{_instruction(style, state)}"
    )
    return _messages(style, user)


def shorten_draft(completion: str, limit: int) -> str:
    """d_t: the first ``limit`` characters, marked if and only if there were more.

    Example:
        >>> shorten_draft("abcdef", 3)
        'abc[...truncated]'
    """
    return completion if len(completion) <= limit else completion[:limit] + TRUNCATION_MARK


def _messages(style: AnswerStyle, user: str) -> list[Message]:
    return [
        {"role": "system", "content": system_prompt(style)},
        {"role": "user", "content": user},
    ]


def _header(state: PolicyState) -> str:
    if state.truncated:
        return "TRUNCATED"
    return f"{state.verdict.value} (conf {state.confidence:.2f})"


def _instruction(style: AnswerStyle, state: PolicyState) -> str:
    """The branch in priority order: generation truncation, verdict CORRECT, otherwise."""
    branch: Callable[[str, str], str]
    if state.truncated:
        branch = _regenerate
    elif state.verdict == Verdict.CORRECT:
        branch = _reexamine
    else:
        branch = _correct
    return branch(style.reminder, f"{state.confidence:.2f}")


def _regenerate(answer: str, _confidence: str) -> str:
    return (
        "Your previous response was CUT OFF before completion. Discard it and produce a fresh, "
        "COMPLETE solution. Keep <think>...</think> concise so the entire answer (including "
        f"{answer} and the <self_check> block) fits within the budget."
    )


def _reexamine(answer: str, confidence: str) -> str:
    return (
        "In your previous attempt you judged the answer CORRECT (self-confidence "
        f"{confidence}), with NO external confirmation. Independently re-derive the single most "
        f"error-prone step. If it still holds, restate the SAME final answer in {answer} and "
        "report VERDICT: CORRECT. If you now find a mistake, fix it and report your updated "
        "verdict honestly."
    )


def _correct(answer: str, confidence: str) -> str:
    return (
        "In your previous attempt you judged the answer likely WRONG or were unsure "
        f"(self-confidence {confidence}). Locate the specific logical or arithmetic error, then "
        "produce a corrected, complete step-by-step solution with the final answer in "
        f"{answer} and an honest <self_check> block."
    )
