"""Turns to learn from, made of a policy's own answers, and as token ids.

Pure functions; :mod:`svr_lightning.training.warmstart` samples, and trains on them.

A confidence that tells the label would teach a policy to guess: what it cannot predict it learns as
a distribution, whose likeliest value is the same for most answers. So every written self-check is
drawn, whatever the label. The verdict learns the label, as a probability; the confidence learns
the Brier score of each number.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from svr_lightning.analysis.records import TurnRecord
from svr_lightning.core.credit import stated_confidences, stated_verdicts
from svr_lightning.core.parsing import (
    CLOSE_TAG,
    METHOD_TAGS,
    OPEN_TAG,
    THINK_CLOSE,
    THINK_OPEN,
    SelfCheckFields,
    self_check_start,
)
from svr_lightning.core.types import (
    Choice,
    FinishReason,
    Message,
    Problem,
    RemoteCompletion,
    TokenChoice,
    Turn,
    Verdict,
)
from svr_lightning.recipes.dialogues import PromptRequest, SelfVerifying, turn_of
from svr_lightning.rollout.rendering import Renderer, end_of_turn
from svr_lightning.tasks import Task, get_task
from svr_lightning.tasks.grading import score_turns

LEVELS = 20
"""Steps between the confidences 0 and 1; the outer two are not drawn."""
_CHECK = f"\n{OPEN_TAG}"
_PLACEHOLDER = re.compile(r"YOUR_[A-Z]+")
_TAGS = re.compile("|".join(METHOD_TAGS), re.IGNORECASE)


@dataclass(frozen=True)
class Document:
    """One turn to learn from."""

    messages: list[Message]
    completion: str
    correct: bool | None
    """y_t of the completion's answer; None where it gives none."""
    choices: tuple[Choice, ...] = field(default=(), kw_only=True)
    """Verdict and confidence, as far as they are there, in this order; the score of an alternative
    is the probability of being right that it states. None teaches what was drawn."""


# --- a policy's own answers as turns ------------------------------------------------------------


def written_check(verdict: Verdict, confidence: float, interface: SelfCheckFields) -> str:
    r"""The self-check behind an answer, in the form that prompts ask for.

    Examples:
        >>> written_check(Verdict.CORRECT, 0.9, "joint")
        '\n<self_check>VERDICT: CORRECT; CONFIDENCE: 0.90</self_check>'
    """
    fields = {"verdict": f"VERDICT: {verdict.value}", "confidence": f"CONFIDENCE: {confidence:.2f}"}
    check = "; ".join(fields.values()) if interface == "joint" else fields[interface]
    return f"{_CHECK}{check}{CLOSE_TAG}"


def can_be_written(task: Task) -> bool:
    """Whether the task's prompts show where in its form of an answer the answer stands."""
    return _PLACEHOLDER.search(task.style.request) is not None


def written_solution(task: Task, text: str) -> str | None:
    r"""A plain answer in the form that the task's prompts ask for: its own words, its own answer.

    It stays as it is if it has that form. Else the words are put into ``<think>``, without a last
    line that only states the answer, and the answer into what the task asks for.

    Returns:
        None where the task reads no answer.

    Examples:
        >>> written_solution(get_task("gsm8k"), "2 and 2 is 4.\n#### 4")
        '<think>\n2 and 2 is 4.\n</think>\n<answer>\\boxed{4}</answer>'
    """
    text = text[: self_check_start(text)].strip()
    answer = task.read(text).answer
    if answer is None:
        return None
    if task.format_score(text) == 1.0:
        return text
    lines = _TAGS.sub("", text).strip().splitlines()
    if len(lines) > 1 and answer in lines[-1]:
        lines.pop()
    words = "\n".join(lines).strip()
    request = _PLACEHOLDER.sub(lambda _: answer, task.style.request)
    return f"{THINK_OPEN}\n{words}\n{THINK_CLOSE}\n{request}"


def checked_turns(
    dialogue: SelfVerifying,
    problem: Problem,
    answers: Sequence[TurnRecord],
    rng: random.Random,
    max_turns: int,
) -> list[Document]:
    """A first turn of each readable answer, and one refinement where there are two answers.

    A refinement shows one answer with its self-check, or one that was cut off, and replies with
    another.

    Args:
        dialogue: whose prompts these are.
        problem: what was answered.
        answers: the policy's answers to it, each with its label.
        rng: draws drafts, replies and self-checks.
        max_turns: T_max, the number of the last turn that a refinement may be.
    """
    task = get_task(problem.task)
    turns: list[Turn] = []
    firsts: list[Document] = []
    cut_off: list[Turn] = []
    index = rng.randint(1, max(max_turns - 1, 1))
    for answer in answers:
        if answer.truncated:
            text = f"{THINK_OPEN}\n{_TAGS.sub('', answer.text).strip()}"
            completion = RemoteCompletion(text=text, finish_reason=FinishReason.LENGTH)
            cut_off.append(turn_of(dialogue, problem, index, completion))
            continue
        solution = written_solution(task, answer.text)
        verdict = rng.choice([*Verdict])
        confidence = rng.randrange(1, LEVELS) / LEVELS
        text = f"{solution}{written_check(verdict, confidence, dialogue.interface)}"
        turn = turn_of(dialogue, problem, index, RemoteCompletion(text=text))
        (scored,) = score_turns(problem, [turn], dialogue.formats)
        in_form = scored.task_format == scored.self_check_format == 1.0
        if solution is None or scored.correct != answer.correct or not in_form:
            continue
        start = turn.reading.check
        stated = [stated_verdicts(text, start), stated_confidences(text, start)]
        choices = tuple(one for one in stated if one is not None)
        turns.append(turn)
        firsts.append(Document(dialogue.first(problem), text, scored.correct, choices=choices))
    drafts = [*turns, *cut_off]
    if not turns or len(drafts) < 2 or max_turns == 1:
        return firsts
    draft = rng.choice(drafts)
    replies = [number for number, turn in enumerate(turns) if turn is not draft]
    if not replies:  # the only complete answer was drawn as the draft
        draft, replies = cut_off[0], [0]
    reply = firsts[rng.choice(replies)]
    later = dialogue.later(problem, [draft])
    messages = later.messages if isinstance(later, PromptRequest) else later
    return [*firsts, replace(reply, messages=messages)]


# --- token ids ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A document in token ids."""

    ids: list[int]
    """[L] prompt, completion and end of turn."""
    weights: list[float]
    """[L] of each token's loss: 0 in the prompt."""
    choices: tuple[TokenChoice, ...] = ()
    """By their places in ``ids``."""
    correct: bool = False
    """The label."""


def encode(renderer: Renderer, document: Document, check_weight: float = 1.0) -> Encoded:
    """Render a document as rollouts are rendered, and weigh the tokens to learn.

    Args:
        renderer: of the policy that learns.
        document: to encode.
        check_weight: of the tokens of the self-check; all others to learn weigh 1.
    """
    tokenizer = renderer.tokenizer
    ids = renderer.prompt_ids(document.messages)
    written = document.completion.removeprefix(renderer.text_prefix)
    completion = tokenizer(written, return_offsets_mapping=True, add_special_tokens=False)
    solved = len(written.partition(_CHECK)[0])
    spans = completion["offset_mapping"]
    checked = [check_weight if right > solved else 1.0 for _, right in spans]
    end_token = next(iter(end_of_turn(tokenizer).values()), tokenizer.eos_token_id)
    learned = (*completion["input_ids"], end_token)
    choices = [
        replace(choice, position=len(ids) + choice.position)
        for choice in renderer.token_choices(learned, document.choices)
    ]
    return Encoded(
        ids=[*ids, *learned],
        weights=[*[0.0] * len(ids), *checked, 1.0],
        choices=tuple(choices),
        correct=bool(document.correct),
    )
