r"""Prompts of the methods that SVR is compared with.

None of them asks for a self-check: the system message is SVR's without those sentences. Later turns
show the question and a shortened draft, as SVR's do, and differ in what they say about the draft.
Only :func:`scored` and :func:`wrong_draft` know a label, and take it in their arguments.
"""

from svr_lightning.core.prompts import (
    AnswerStyle,
    chat,
    refinement_text,
    shorten_draft,
    solve_instruction,
)
from svr_lightning.core.types import DraftState, Message, OracleState

ANALYSIS_OPEN, ANALYSIS_CLOSE = "<analysis>", "</analysis>"

_CUT_OFF = (
    "Your previous response was CUT OFF before completion (it hit the length budget mid-stream). "
    "The draft above is incomplete and should not be trusted. Discard it, and produce a fresh, "
    "COMPLETE solution this time. Keep your <think>...</think> reasoning concise so the entire "
    "answer including <answer>...</answer> fits within the budget."
)
_TUTOR = (
    "You are an expert mathematics tutor. You read a problem and a student's attempt and help the "
    "student to do better. You never solve the problem and never state its final answer."
)


def system_prompt(style: AnswerStyle) -> str:
    """SVR's system message without its sentences on self-verification."""
    solve = solve_instruction(style)
    return f"{solve}\n{style.closing}" if style.closing else solve


def first_turn(style: AnswerStyle, question: str) -> list[Message]:
    """The system message and the raw question."""
    return chat(system_prompt(style), question)


def neutral(style: AnswerStyle, question: str, state: DraftState, turn: int) -> list[Message]:
    """Refinement that claims nothing about the draft; turn ``turn`` >= 2."""
    review = (
        "Review your previous solution step by step. If you find an error, correct it; otherwise "
        "keep the same final answer. Give a complete solution with the final answer in "
        f"{style.reminder}."
    )
    return _later(style, question, state.draft, turn, "", _CUT_OFF if state.truncated else review)


def scored(style: AnswerStyle, question: str, state: OracleState, turn: int) -> list[Message]:
    """The oracle-guided prompt: the label as a score, and an instruction that follows from it."""
    if state.truncated:
        return _later(style, question, state.draft, turn, " Score: TRUNCATED", _CUT_OFF)
    heading = f" Score: {float(state.correct):.3f}"
    instruction = (
        "Your previous answer is CORRECT. Briefly verify the reasoning, then output the SAME "
        f"final answer again inside {style.reminder}."
        if state.correct
        else "Your previous answer is INCORRECT. Carefully review the previous solution, identify "
        "the logical or arithmetic errors, and provide a correct step-by-step solution."
    )
    return _later(style, question, state.draft, turn, heading, instruction)


def doubtful_draft(
    style: AnswerStyle, question: str, state: DraftState, turn: int
) -> list[Message]:
    """Analysis, then solution, of a draft that may be wrong."""
    claim = "Your previous answer may be wrong."
    found = "what went wrong in it, if anything did"
    instruction = _analyse(style, state.truncated, claim, found)
    return _later(style, question, state.draft, turn, "", instruction)


def wrong_draft(style: AnswerStyle, question: str, state: OracleState, turn: int) -> list[Message]:
    """Analysis, then solution, of a draft that the evaluator found wrong.

    Raises:
        ValueError: if the draft is right.
    """
    if state.correct:
        raise ValueError("a draft that is right must not be called wrong")
    claim = "Your previous answer was wrong."
    found = "what went wrong in it"
    instruction = _analyse(style, state.truncated, claim, found)
    return _later(style, question, state.draft, turn, "", instruction)


def feedback(style: AnswerStyle, question: str, attempt: str) -> list[Message]:
    """Ask the policy, in a tutor's role, for hints on an attempt."""
    user = (
        f"Problem: {question}\n\n"
        f"The student's attempt:\n{shorten_draft(attempt, style.draft_limit)}\n\n"
        "List the likely mistakes and pitfalls, and hints on how to go on. Do NOT solve the "
        "problem. Be brief."
    )
    return chat(_TUTOR, user)


def guided(style: AnswerStyle, question: str, attempt: str, hints: str, turn: int) -> list[Message]:
    """Solve again with a tutor's hints, all of them, on the attempt at hand."""
    user = refinement_text(
        style,
        question,
        attempt,
        turn,
        heading="",
        instruction=(
            f"A tutor's feedback on it:\n{hints}\n\n"
            "Think about the feedback, then give a complete solution with the final answer in "
            f"{style.reminder}."
        ),
    )
    return chat(system_prompt(style), user)


def _later(
    style: AnswerStyle, question: str, draft: str, turn: int, heading: str, instruction: str
) -> list[Message]:
    text = refinement_text(style, question, draft, turn, heading=heading, instruction=instruction)
    return chat(system_prompt(style), text)


def _analyse(style: AnswerStyle, truncated: bool, claim: str, found: str) -> str:
    lead = _CUT_OFF if truncated else claim
    return (
        f"{lead} First explain inside {ANALYSIS_OPEN}...{ANALYSIS_CLOSE} {found}. Then give the "
        f"corrected, complete solution with the final answer in {style.reminder}."
    )
