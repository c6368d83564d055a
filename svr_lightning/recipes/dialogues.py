"""Dialogues: every prompt of a method, how completions are read, and the shared turn loop.

A rollout is a generator that yields prompts and receives their completions. It knows nothing of
engines, so a test can drive it with a list of texts. :func:`ask` is the only place where a prompt
is asked for, and :func:`turn_of` where a completion becomes a turn; :func:`chain` and :func:`tree`
repeat them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, ClassVar, NamedTuple

from svr_lightning.core.parsing import (
    SelfCheckFields,
    parse_self_check,
    plain_fields,
    self_check_format_score,
)
from svr_lightning.core.prompts import first_turn_messages, neutral, refinement_messages
from svr_lightning.core.stopping import Confident, StopRule, ending
from svr_lightning.core.types import (
    NO_SCORES,
    AnyCompletion,
    Message,
    Problem,
    Reading,
    RemoteCompletion,
    SelfCheck,
    TokenScores,
    Trajectory,
    Turn,
)
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import AnswerNumbers, Task


class PromptRequest(NamedTuple):
    """A prompt with a completion limit of its own, in tokens; the lower of two limits counts."""

    messages: list[Message]
    max_completion_tokens: int


Prompt = list[Message] | PromptRequest
PromptRequests = Sequence[Prompt]
"""Prompts that a rollout needs completed before it continues."""

RolloutGenerator = Generator[PromptRequests, Sequence[AnyCompletion], Any]
"""A running rollout: yields prompts, receives their completions in order, and returns a
:class:`Trajectory` or a list of them."""

ScoresOf = Callable[[AnyCompletion, Reading], TokenScores]
"""Takes a completion and what is read of it; returns the policy's probabilities of both."""


def limited(prompt: Prompt, limit: int) -> PromptRequest:
    """A prompt with the lower of ``limit`` and its own completion limit."""
    if isinstance(prompt, PromptRequest):
        return prompt._replace(max_completion_tokens=min(limit, prompt.max_completion_tokens))
    return PromptRequest(prompt, limit)


class Dialogue(ABC):
    """The prompts of a method, how its completions are read, and what can end a trajectory.

    To change a method's wording, subclass its dialogue, and its recipe to return that one.
    """

    uses_labels: ClassVar[bool] = False
    """Whether a prompt shows whether an answer is correct. Logs and results then say so."""

    def __repr__(self) -> str:
        """A text that is equal in every process, since journals compare it."""
        return f"{type(self).__module__}.{type(self).__qualname__}()"

    @abstractmethod
    def first(self, problem: Problem) -> list[Message]:
        """The prompt of turn 1."""

    @abstractmethod
    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """The prompt that follows ``turns``, of which there is at least one."""

    def read(self, text: str) -> SelfCheck | None:
        """The self-check in the part of a completion that counts; None if none is asked for."""
        return None

    def formats(self, task: Task, turn: Turn) -> tuple[float, float]:
        """r_taskfmt and r_scfmt of a completion; the second is 0 without a self-check."""
        return task.format_score(turn.completion.text), 0.0

    def answers(self, turn: int) -> bool:
        """Whether a turn (from 1) answers the problem, so that its correctness counts."""
        return True

    def applied_rule(self, rule: StopRule) -> StopRule | None:
        """The form in which a stopping rule applies; None for one that needs a self-check."""
        return None if rule.needs_self_check else rule


@dataclass(frozen=True)
class SelfVerifying(Dialogue):
    """SVR: solve with a self-check, refine from draft and self-check, stop when confident.

    Its later prompts are built only from the policy's draft, verdict, confidence and truncation:
    :func:`~svr_lightning.core.prompts.refinement_messages` takes nothing else.
    """

    interface: SelfCheckFields = "joint"
    """What a self-check consists of."""

    def first(self, problem: Problem) -> list[Message]:
        """The question, under a system message that asks for a self-check."""
        return first_turn_messages(get_task(problem.task), problem, self.interface)

    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """The question, the draft, its self-check and an instruction."""
        completion, check = turns[-1].completion, turns[-1].check
        assert check is not None, "this dialogue reads a self-check of every turn"
        return refinement_messages(
            get_task(problem.task),
            problem,
            previous=completion.text,
            verdict=check.verdict,
            confidence=check.confidence,
            truncated=completion.truncated,
            turn=turns[-1].index + 1,
            interface=self.interface,
        )

    def read(self, text: str) -> SelfCheck:
        """The verdict and the confidence; a field that is not asked for has its default."""
        return parse_self_check(text, self.interface)

    def formats(self, task: Task, turn: Turn) -> tuple[float, float]:
        """The format scores of the answer and of the self-check for this ``interface``."""
        text = turn.completion.text
        check = turn.reading.checked_part(text)
        return task.format_score(text), self_check_format_score(check, self.interface)

    def applied_rule(self, rule: StopRule) -> StopRule | None:
        """Every rule; with one field, that field alone stops."""
        if isinstance(rule, Confident):
            if self.interface == "verdict" and rule.score == "confidence":
                return replace(rule, threshold=0.0, needs_correct=True)
            if self.interface == "confidence":
                return replace(rule, needs_correct=False)
        return rule


class PlainRefinement(Dialogue):
    """No self-check; later prompts ask for a review and do not judge the draft."""

    def first(self, problem: Problem) -> list[Message]:
        """The question, under a system message that asks for no self-check."""
        return first_turn_messages(get_task(problem.task), problem, None)

    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """The question and the draft."""
        return neutral(get_task(problem.task), problem, turns[-1])


@dataclass(frozen=True)
class FreshTurns(Dialogue):
    """Independent attempts: every turn gets the first prompt of another dialogue."""

    of: Dialogue
    """Its first prompt is that of every turn, and it reads the self-checks."""

    def first(self, problem: Problem) -> list[Message]:
        """The first prompt of ``of``."""
        return self.of.first(problem)

    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """The first prompt of ``of`` again; no draft is shown."""
        return self.of.first(problem)

    def read(self, text: str) -> SelfCheck | None:
        """The self-check, as ``of`` reads it."""
        return self.of.read(text)

    def formats(self, task: Task, turn: Turn) -> tuple[float, float]:
        """The format scores of ``of``."""
        return self.of.formats(task, turn)

    def applied_rule(self, rule: StopRule) -> StopRule | None:
        """As it applies to ``of``."""
        return self.of.applied_rule(rule)


# --- the turn loop ----------------------------------------------------------------------------


def ask(
    dialogue: Dialogue,
    problem: Problem,
    pasts: Sequence[Sequence[Turn]],
    scores_of: ScoresOf | None = None,
) -> Generator[PromptRequests, Sequence[AnyCompletion], list[Turn]]:
    """[P] the turns after [P] pasts, requested together; a first turn's past is empty.

    ``scores_of`` fills in :attr:`Turn.scores`, which training does not need.
    """
    completions = yield [
        dialogue.later(problem, past) if past else dialogue.first(problem) for past in pasts
    ]
    return [
        turn_of(dialogue, problem, past[-1].index + 1 if past else 1, completion, scores_of)
        for past, completion in zip(pasts, completions, strict=True)
    ]


def turn_of(
    dialogue: Dialogue,
    problem: Problem,
    index: int,
    completion: AnyCompletion,
    scores_of: ScoresOf | None = None,
) -> Turn:
    """A completion with what is read of it; ``index`` counts from 1.

    A chat server's model may adorn its self-check, the policy never does.
    """
    text = completion.text
    plain = plain_fields(text) if isinstance(completion, RemoteCompletion) else text
    reading = get_task(problem.task).read(text, truncated=completion.truncated, plain=plain)
    return Turn(
        index=index,
        completion=completion,
        check=dialogue.read(reading.checked_part(plain)),
        reading=reading,
        scores=scores_of(completion, reading) if scores_of else NO_SCORES,
    )


def chain(
    dialogue: Dialogue,
    problem: Problem,
    sample: int,
    max_turns: int,
    rule: StopRule | None = None,
    on_turn: Callable[[Turn], None] | None = None,
    scores_of: ScoresOf | None = None,
    *,
    every_turn: bool = False,
) -> Generator[PromptRequests, Sequence[AnyCompletion], Trajectory]:
    """One trajectory, turn by turn, as used in SVR's training and in every evaluation.

    Args:
        dialogue: writes the prompts and reads the completions.
        problem: what to solve.
        sample: number of the trajectory within its group.
        max_turns: the horizon in training (T_tr), the budget at inference (T_max).
        rule: ends the trajectory; None runs every turn, as training does.
        on_turn: called with each turn as it ends.
        scores_of: see :func:`ask`.
        every_turn: go on after the ending, so that other rules can be replayed.
    """
    numbers = AnswerNumbers(get_task(problem.task).answer_form)
    turns: list[Turn] = []
    end = None
    while end is None or (every_turn and len(turns) < max_turns):
        (turn,) = yield from ask(dialogue, problem, [turns], scores_of)
        if rule is not None:  # it may compare answers
            turn = replace(turn, answer_group=numbers.number(turn.answer))
        turns.append(turn)
        if on_turn is not None:
            on_turn(turns[-1])
        end = end or ending(rule, [turn.signals for turn in turns], max_turns)
    return Trajectory(problem=problem, sample=sample, turns=tuple(turns), ending=end)


def tree(
    dialogue: Dialogue, problem: Problem, width: int, horizon: int, expands: Callable[[Turn], bool]
) -> Generator[PromptRequests, Sequence[AnyCompletion], list[Trajectory]]:
    """``width`` attempts per turn, distributed over those of the previous turn that ``expands``.

    Ends early if none does. Returns the tree's nodes, parents before their children: trajectories
    of one turn each.
    """
    nodes: list[Trajectory] = []
    parents: list[tuple[Trajectory | None, list[Turn]]] = [(None, [])] * width
    while parents:
        turns = yield from ask(dialogue, problem, [past for _, past in parents])
        paths = []
        for (parent, past), turn in zip(parents, turns, strict=True):
            nodes.append(node(problem, len(nodes), turn, parent))
            paths.append((nodes[-1], [*past, turn]))
        more = len(nodes) < width * horizon
        open_ends = [(leaf, path) for leaf, path in paths if more and expands(path[-1])]
        parents = list(islice(cycle(open_ends), width))
    return nodes


def node(problem: Problem, sample: int, turn: Turn, parent: Trajectory | None = None) -> Trajectory:
    """A tree's node: a trajectory of one turn that continues ``parent``."""
    number = None if parent is None else parent.sample
    return Trajectory(problem=problem, sample=sample, turns=(turn,), parent=number)
