r"""The wording of every prompt (appendix "Prompt Templates and Output Parsing").

Every prompt is ``[system, user]``, and the first user message is the question alone. Later ones are
built only from the question and from what the policy wrote: no label, reference, score or reward.
Two prompts of other methods may show a label, which they take as an argument of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import ClassVar, Protocol

from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.types import Message, Problem, Turn, Verdict

TRUNCATION_MARK = "[...truncated]"

EVEN = 0.5
"""If the self-check has no verdict, this confidence or more counts as CORRECT in the choice of a
refinement instruction."""

MATH_ROLE = "You are a careful math assistant who audits your own work."
"""The role of the paper's three tasks."""
_STEPS = "First reason step-by-step inside <think>...</think>. Then give the final answer inside "
_FIELDS: dict[SelfCheckFields, str] = {
    "joint": "VERDICT: CORRECT, INCORRECT, or UNSURE; CONFIDENCE: a number in [0,1]",
    "verdict": "VERDICT: CORRECT, INCORRECT, or UNSURE",
    "confidence": "CONFIDENCE: a number in [0,1]",
}
_SELF_CHECK = (
    "Finally, on a new line, output a self-verification in EXACTLY this form: "
    "<self_check>{fields} </self_check>"
)
_HONESTY: dict[SelfCheckFields, str] = {
    "joint": "Be honest and well-calibrated: only report CORRECT with high confidence after "
    "verifying every step.",
    "verdict": "Be honest: only report CORRECT after verifying every step.",
    "confidence": "Be honest and well-calibrated: only report high confidence after verifying "
    "every step.",
}


@dataclass(frozen=True, kw_only=True)
class AnswerStyle:
    """A task's part of the prompts: its role, the form of an answer, the length of a draft."""

    role: str
    """First sentence of the system message: what the policy is."""
    request: str
    r"""In the system message: ``<answer>\boxed{YOUR_ANSWER}</answer>``."""
    reminder: str
    r"""In refinement instructions: ``<answer>\boxed{}</answer>``."""
    closing: str = ""
    """Last sentence of the system message, or empty."""
    draft_limit: int
    """N, the number of characters of the previous completion that a prompt keeps."""


def boxed_style(draft_limit: int) -> AnswerStyle:
    r"""The style of tasks whose answer is in a box, in ``<answer>`` tags."""
    return AnswerStyle(
        role=MATH_ROLE,
        request=r"<answer>\boxed{YOUR_ANSWER}</answer>",
        reminder=r"<answer>\boxed{}</answer>",
        closing=r"Always use \boxed{} for the final answer.",
        draft_limit=draft_limit,
    )


class Styled(Protocol):
    """What prompts read of a task."""

    style: ClassVar[AnswerStyle]


def system_prompt(style: AnswerStyle, interface: SelfCheckFields | None = "joint") -> str:
    """The system message for a task; without an ``interface`` it asks for no self-check."""
    solve = f"{style.role}\n{_STEPS}{style.request}."
    if interface is None:
        return f"{solve}\n{style.closing}" if style.closing else solve
    honesty = _HONESTY[interface]
    check = _SELF_CHECK.format(fields=_FIELDS[interface])
    closing = f"{honesty} {style.closing}" if style.closing else honesty
    return "\n".join([solve, check, closing])


def first_turn_messages(
    task: Styled, problem: Problem, interface: SelfCheckFields | None = "joint"
) -> list[Message]:
    """P_0 (equation initial-prompt): the system message and the question as it is."""
    return chat(system_prompt(task.style, interface), problem.question)


def refinement_messages(
    task: Styled,
    problem: Problem,
    *,
    previous: str,
    verdict: Verdict,
    confidence: float,
    truncated: bool,
    turn: int,
    interface: SelfCheckFields = "joint",
) -> list[Message]:
    """P_ref (equation refinement-prompt): the messages of turn ``turn`` >= 2.

    They follow from the question, and from the policy's ``previous`` completion and self-check.
    With an ``interface`` of one field, header and instruction mention only that field.

    Raises:
        ValueError: if ``turn`` < 2, since the first turn has no past.
    """
    verdict = Verdict(verdict)
    answer = task.style.reminder
    header = "TRUNCATED"
    instruction = (
        "Your previous response was CUT OFF before completion. Discard it and produce a fresh, "
        "COMPLETE solution. Keep <think>...</think> concise so the entire answer (including "
        f"{answer} and the <self_check> block) fits within the budget."
    )
    if not truncated:
        header = {
            "joint": f"{verdict} (conf {confidence:.2f})",
            "verdict": verdict.value,
            "confidence": f"conf {confidence:.2f}",
        }[interface]
        instruction = _instruction(answer, verdict, confidence, interface)
    heading = f" Your self-verification last turn: {header}"
    return _refinement(task, problem, previous, turn, instruction, heading, interface)


def _refinement(
    task: Styled,
    problem: Problem,
    draft: str,
    turn: int,
    instruction: str,
    heading: str = "",
    interface: SelfCheckFields | None = None,
) -> list[Message]:
    """The heading, the question, the shortened draft and what to do, for ``turn`` >= 2."""
    if turn < 2:
        raise ValueError(f"turn={turn}: a refinement prompt belongs to turn 2 or later")
    text = (
        f"[T={turn}]{heading}\n"
        f"Question: {problem.question}\n\n"
        f"Your previous solution:\n{shorten_draft(draft, task.style.draft_limit)}\n\n"
        f"{instruction}"
    )
    return chat(system_prompt(task.style, interface), text)


def shorten_draft(completion: str, limit: int) -> str:
    """d_t: the first ``limit`` characters, marked if and only if there were more.

    Examples:
        >>> shorten_draft("abcdef", 3)
        'abc[...truncated]'
    """
    return completion if len(completion) <= limit else completion[:limit] + TRUNCATION_MARK


def chat(system: str, user: str) -> list[Message]:
    """A prompt of two messages."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def in_context(prompt: Sequence[Message], context: Sequence[Message]) -> list[Message]:
    r"""A prompt after the messages of a conversation.

    System messages are joined into one, which comes first, and so are successive messages of one
    role: many chat templates take no others.

    Examples:
        >>> before = [{"role": "user", "content": "I am Ann."}, {"role": "system", "content": "Hi"}]
        >>> [message["content"] for message in in_context(chat("Think.", "Who am I?"), before)]
        ['Think.\n\nHi', 'I am Ann.\n\nWho am I?']
    """
    if not context:
        return list(prompt)
    head = [message for message in (*prompt[:-1], *context) if message["role"] == "system"]
    talk = [message for message in (*context, *prompt) if message["role"] != "system"]
    joined: list[Message] = []
    for role, group in groupby([*head, *talk], key=itemgetter("role")):
        content = "\n\n".join(message["content"] for message in group)
        joined.append({"role": role, "content": content})
    return joined


def _instruction(
    answer: str, verdict: Verdict, confidence: float, interface: SelfCheckFields
) -> str:
    """What to do after CORRECT, or otherwise, with the reminder ``answer``."""
    if interface == "confidence":
        is_sure = confidence >= EVEN
        judgement = f"you gave your answer a confidence of {confidence:.2f}"
        report = "a high CONFIDENCE"
        field = "confidence"
    else:
        is_sure = verdict == Verdict.CORRECT
        judgement = "you judged the answer likely WRONG or were unsure"
        if is_sure:
            judgement = "you judged the answer CORRECT"
        if interface == "joint":
            judgement += f" (self-confidence {confidence:.2f})"
        report = "VERDICT: CORRECT"
        field = "verdict"
    if is_sure:
        return (
            f"In your previous attempt {judgement}, with NO external confirmation. Independently "
            "re-derive the single most error-prone step. If it still holds, restate the SAME final "
            f"answer in {answer} and report {report}. If you now find a mistake, fix it and report "
            f"your updated {field} honestly."
        )
    return (
        f"In your previous attempt {judgement}. Locate the specific logical or arithmetic error, "
        "then produce a corrected, complete step-by-step solution with the final answer in "
        f"{answer} and an honest <self_check> block."
    )


# --- without a self-check ---------------------------------------------------------------------

_CUT_OFF = (
    "Your previous response was CUT OFF before completion (it hit the length budget mid-stream). "
    "The draft above is incomplete and should not be trusted. Discard it, and produce a fresh, "
    "COMPLETE solution this time. Keep your <think>...</think> reasoning concise so the entire "
    "answer including <answer>...</answer> fits within the budget."
)


def neutral(task: Styled, problem: Problem, previous: Turn) -> list[Message]:
    """Refinement without a judgement of the draft."""
    review = (
        "Review your previous solution step by step. If you find an error, correct it; otherwise "
        "keep the same final answer. Give a complete solution with the final answer in "
        f"{task.style.reminder}."
    )
    draft = previous.completion
    instruction = _CUT_OFF if draft.truncated else review
    return _refinement(task, problem, draft.text, previous.index + 1, instruction)


def scored(task: Styled, problem: Problem, previous: Turn, correct: bool) -> list[Message]:
    """The oracle-guided reference's refinement: the label as a score."""
    draft = previous.completion
    score = f"{float(correct):.3f}"
    instruction = (
        "Your previous answer is CORRECT. Briefly verify the reasoning, then output the SAME "
        f"final answer again inside {task.style.reminder}."
        if correct
        else "Your previous answer is INCORRECT. Carefully review the previous solution, identify "
        "the logical or arithmetic errors, and provide a correct step-by-step solution."
    )
    if draft.truncated:
        score = "TRUNCATED"
        instruction = _CUT_OFF
    heading = f" Score: {score}"
    return _refinement(task, problem, draft.text, previous.index + 1, instruction, heading)


_TUTOR = (
    "You are an expert mathematics tutor. You read a problem and a student's attempt and help the "
    "student to do better. You never solve the problem and never state its final answer."
)


def feedback(task: Styled, problem: Problem, attempt: Turn) -> list[Message]:
    """Ask the policy, in a tutor's role, for hints on an attempt."""
    draft = shorten_draft(attempt.completion.text, task.style.draft_limit)
    user = (
        f"Problem: {problem.question}\n\n"
        f"The student's attempt:\n{draft}\n\n"
        "List the likely mistakes and pitfalls, and hints on how to go on. Do NOT solve the "
        "problem. Be brief."
    )
    return chat(_TUTOR, user)


def guided(task: Styled, problem: Problem, attempt: Turn, hints: Turn) -> list[Message]:
    """Solve again with all hints of a tutor on the attempt."""
    instruction = (
        f"A tutor's feedback on it:\n{hints.completion.text}\n\n"
        "Think about the feedback, then give a complete solution with the final answer in "
        f"{task.style.reminder}."
    )
    return _refinement(task, problem, attempt.completion.text, hints.index + 1, instruction)


def analysis(
    task: Styled, problem: Problem, previous: Turn, *, is_wrong: bool = False
) -> list[Message]:
    """Analysis, then solution, of a draft that may be wrong or that the evaluator found wrong."""
    draft = previous.completion
    claim = "Your previous answer was wrong." if is_wrong else "Your previous answer may be wrong."
    instruction = (
        f"{_CUT_OFF if draft.truncated else claim} First explain inside <analysis>...</analysis> "
        f"what went wrong in it{'' if is_wrong else ', if anything did'}. Then give the corrected, "
        f"complete solution with the final answer in {task.style.reminder}."
    )
    return _refinement(task, problem, draft.text, previous.index + 1, instruction)
