"""The data types of the method: problems, completions, turns, trajectories, scored turns.

Only :class:`ScoredTurn` carries a correctness label. It is made after a rollout, and no function
that builds a prompt takes one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from svr_lightning.core.ranges import Checked, Count, NotNegative, WholeNumber

LEAST_TEMPERATURE = 0.01
"""Above 0. vLLM raises lower ones to it, and scores divided by a tiny number overflow."""
Message = dict[str, str]
"""One chat message, ``{"role": ..., "content": ...}``."""


class Verdict(StrEnum):
    """The policy's judgement of its own answer (v_t)."""

    CORRECT = "CORRECT"
    INCORRECT = "INCORRECT"
    UNSURE = "UNSURE"


class FinishReason(StrEnum):
    """Why an engine stopped generating (f_t)."""

    STOP = "stop"
    """The policy ended its completion itself."""
    LENGTH = "length"
    """The completion reached its token limit and is truncated (q_t = 1)."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One row of a data set, after validation."""

    id: str
    """Unique within its data set."""
    task: str
    """Name of the task that grades it: what :func:`svr_lightning.get_task` takes."""
    question: str
    """The text the policy sees."""
    reference: Any = field(hash=False)
    """The reference answer, any JSON value, read only by graders; ``""`` or None if none."""
    payload: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further data for the task's grader, as JSON; Countdown keeps its numbers in ``nums``."""
    cluster: str | None = None
    """Variants of one problem share it, and count as one in intervals, tests and splits. None: the
    problem is a cluster of its own."""

    @property
    def has_reference(self) -> bool:
        """Whether an answer can be graded."""
        return self.reference is not None and self.reference != ""


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """A parsed self-verification (v_t, c_t)."""

    verdict: Verdict
    confidence: float
    """In [0, 1]; the verdict-dependent prior where the text gave none."""


@dataclass(frozen=True, kw_only=True)
class Decoding(Checked):
    """How completions are drawn. The defaults are those of training rollouts."""

    max_completion_tokens: Count = 1200
    """L_gen, per turn; reaching it means finish reason ``length``."""
    temperature: NotNegative = 0.9
    """0 is greedy decoding. The loss takes log-probabilities at this temperature too."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus mass; below 1 an engine's log-probabilities no longer describe what was drawn."""
    top_k: WholeNumber = 0
    """Candidates per token; 0 keeps the whole vocabulary."""

    @property
    def restricted(self) -> bool:
        """Whether tokens are drawn from a part of the distribution only."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """An engine's completion of one prompt, as the token ids that it read and sampled."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """[L] sampled ids, the end-of-sequence token included where it was sampled."""
    logprobs: tuple[float, ...]
    """[L] log-probabilities of the sampled ids, in nats, after temperature."""
    text: str
    """Decoded without special tokens; begins with ``<think>`` where the prompt left one open."""
    finish_reason: FinishReason
    policy_version: int
    """Number of optimizer steps that made the weights that sampled it."""

    @property
    def truncated(self) -> bool:
        """q_t: the completion reached its token limit."""
        return self.finish_reason is FinishReason.LENGTH

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, in tokens."""
        return len(self.prompt_ids)

    @property
    def completion_tokens(self) -> int:
        """L, the end-of-sequence token included."""
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True)
class RemoteCompletion:
    """A server's completion: text and counts. It has no token ids and cannot be trained on."""

    text: str
    finish_reason: FinishReason = FinishReason.STOP
    prompt_tokens: int = 0
    """As counted by the server, with the tokens of its chat template; 0 if it is not known."""
    completion_tokens: int = 0
    """As counted by the server; 0 if it is not known."""
    tokens: tuple[tuple[str, float], ...] = ()
    """Text and log-probability of each sampled token; empty if the server gave none."""

    @property
    def truncated(self) -> bool:
        """q_t: the completion reached its token limit."""
        return self.finish_reason is FinishReason.LENGTH


AnyCompletion = Completion | RemoteCompletion
"""A completion from either source: enough to parse, grade and count."""


class TokenScores(NamedTuple):
    """The policy's probabilities of its own text; None if not known."""

    verdict_probability: float | None = None
    """Probability of the words of its verdict, in [0, 1]."""
    answer_logprob: float | None = None
    """Mean log-probability of the answer's tokens, in nats."""
    completion_logprob: float | None = None
    """Mean log-probability of all sampled tokens, in nats, those of the self-check included."""
    solution_logprob: float | None = None
    """Mean log-probability of the tokens before the self-check, in nats."""


NO_SCORES = TokenScores()


class StopSignals(NamedTuple):
    """What a stopping rule may read of one turn. It has no label."""

    verdict: Verdict | None
    """None for a method without a self-check, like ``confidence``."""
    confidence: float | None
    truncated: bool
    answer: int | None = None
    """Equal numbers for answers of one trajectory that the task considers equal; 0: no answer can
    be read; None: not known, as in logs of other programs."""
    verdict_probability: float | None = None
    """The four scores of :class:`TokenScores`, where they are known."""
    answer_logprob: float | None = None
    completion_logprob: float | None = None
    solution_logprob: float | None = None

    @property
    def has_answer(self) -> bool:
        """Whether an answer can be read; without one, no rule accepts the turn."""
        return self.answer != 0


class Ending(NamedTuple):
    """How a trajectory ended."""

    observed: int
    """Number of generated turns, the one that stopped included; the tokens of all of them count."""
    returned: int
    """The turn (from 1) whose answer is returned."""
    stopped_early: bool
    """Whether a turn before T_max ended the trajectory."""
    accepted: bool = False
    """Whether the stopping rule accepts the last turn, at T_max too."""


class Reading(NamedTuple):
    """The answer of a completion, and which of its text decides."""

    answer: str | None
    start: int = 0
    """Where the final part begins: after the reasoning."""
    end: int | None = None
    """Where it ends; None at the end of the text."""
    check: int = 0
    """Where the part begins from which the self-check is read."""

    def final_part(self, text: str) -> str:
        """The part of the completion ``text`` that has the answer."""
        return text[self.start : self.end]

    def checked_part(self, text: str) -> str:
        """The part of ``text`` from which the self-check is read; empty if none counts."""
        return text[self.check : self.end]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One generation of a trajectory and what is read from it. It has no label."""

    index: int
    """t, counted from 1."""
    completion: AnyCompletion
    check: SelfCheck | None
    """None for a method whose prompts ask for no self-check."""
    reading: Reading = Reading(None)  # noqa: RUF009 (it is immutable)
    """Its answer, and which of its text decides."""
    answer_group: int = 0
    """Equal numbers for equal answers of a chain, from 1; 0: no answer, or no rule to read it."""
    scores: TokenScores = NO_SCORES
    """Not computed in training; not known if a server gives no log-probabilities."""

    @property
    def answer(self) -> str | None:
        """As the task extracts it; None if there is none."""
        return self.reading.answer

    @property
    def signals(self) -> StopSignals:
        """What stopping rules may read."""
        return StopSignals(
            None if self.check is None else self.check.verdict,
            None if self.check is None else self.check.confidence,
            self.completion.truncated,
            self.answer_group,
            *self.scores,
        )

    @property
    def sampled(self) -> Completion:
        """The completion with its token ids, which training needs.

        Raises:
            TypeError: if a server wrote it.
        """
        if isinstance(self.completion, Completion):
            return self.completion
        raise TypeError("a server's completion has no token ids to train on")


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """The turns that one sample of one problem went through."""

    problem: Problem
    sample: int
    """Number of this trajectory within its group, from 0."""
    turns: tuple[Turn, ...]
    ending: Ending | None = None
    """None for a node of a tree."""
    parent: int | None = None
    """In a tree, the number of the trajectory that this one continues."""


@dataclass(frozen=True, kw_only=True)
class ScoredTurn:
    """A turn as rewards and metrics see it: the only record with a correctness label."""

    correct: bool
    """y_t."""
    truncated: bool
    """q_t."""
    verdict: Verdict | None = None
    """v_t; None for a method without a self-check."""
    confidence: float | None = None
    """c_t in [0, 1]; None for a method without a self-check."""
    completion_tokens: int
    """l_t, the end-of-sequence token included."""
    task_format: float
    """r_taskfmt, in [0, 1]."""
    self_check_format: float = 0.0
    """r_scfmt, one of 1, 0, -1; 0 for a method without a self-check."""
    has_answer: bool = True
    """Whether an answer can be read."""
    text: str = field(default="", compare=False, repr=False)
    """The completion."""
    problem: Problem | None = field(default=None, compare=False, repr=False)
    """The problem that it answers."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A place in a completion where the policy chose among some texts, and what each would earn."""

    span: tuple[int, int]
    """Characters of the completion's text, first and past the last, that it chose."""
    alternatives: tuple[str, ...]
    """[A] the texts that could be there, the chosen one included."""
    scores: tuple[float, ...]
    """[A] what each would earn."""


@dataclass(frozen=True, kw_only=True)
class TokenChoice:
    """A :class:`Choice` in tokens."""

    position: int
    """The place of the chosen token in the completion, from 0."""
    token_ids: tuple[int, ...]
    """[A] the alternatives' tokens at this place."""
    scores: tuple[float, ...]
    """[A] what each would earn."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One optimised sequence: the loss covers only ``completion_ids``, or a part of them."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[L] log-probabilities under the policy that sampled the completion."""
    advantage: float
    group_id: str
    """The problem whose trajectories were compared."""
    policy_version: int
    text_span: tuple[int, int] | None = None
    """Characters of the completion's text, first and past the last, that the loss is limited to:
    all tokens that overlap it. None: all of the completion."""
    choices: tuple[Choice, ...] | None = None
    """If given, the sequence has no policy loss; its loss is minus the expected score of each of
    these choices, under the policy's own distribution over their alternatives. It may be empty."""
