"""Unfinished work that a rollout passes to the next one, as plain values.

A step's rollout ends with its longest trajectory, and the engine slots of those that ended before
are free. With carry-over they begin the next step's trajectories. When the rollout ends, these are
suspended, even within a completion; the next rollout continues from the same tokens, which
it reads as part of the prompt. So every token has the log-probability under the weights that drew
it, and no cached state of other weights is ever used.

What a step trains on does not depend on which trajectories end first: it is always all trajectories
of the step's problems.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from svr_lightning.core.types import FinishReason, Problem, Sample
from svr_lightning.engines.base import Output
from svr_lightning.rollout.driver import Rounds

Begun = dict[tuple[str, int], Rounds]
"""By problem id and sample, the tokens sampled for a trajectory. The driver adds to it."""


@dataclass(frozen=True, kw_only=True)
class CarryOver:
    """Work that a rollout continues, and work that it may begin."""

    begun: Begun = field(default_factory=dict)
    """Of this step's problems."""
    problems: Sequence[Problem] = ()
    """Of the next step."""
    ahead: Begun = field(default_factory=dict)
    """Work begun on the next step's problems."""


def check_versions(samples: Sequence[Sample], version: int, staleness: int) -> None:
    """Refuse tokens of weights that are newer than ``version``, or too old.

    Raises:
        RuntimeError: naming the version.
    """
    sampled = {v for sample in samples for v in (sample.policy_version, *sample.earlier)}
    odd = sampled - set(range(version - staleness, version + 1))
    if odd:
        why = "it was not synced after the last update"
        if staleness:
            why = f"model.carry_over={staleness} allows no more than that many steps between"
        raise RuntimeError(
            f"the engine sampled with weights of step {min(odd)} at step {version}; {why}"
        )


def to_plain(begun: Begun) -> list[Any]:
    """Only lists, strings and numbers, for a checkpoint."""
    return [
        [problem, sample, [[[_plain(part) for part in p] for p in prompts] for prompts in rounds]]
        for (problem, sample), rounds in begun.items()
        if rounds
    ]


def from_plain(plain: Sequence[Any]) -> Begun:
    """The inverse of :func:`to_plain`."""
    return {
        (problem, sample): [[[_part(part) for part in p] for p in prompts] for prompts in rounds]
        for problem, sample, rounds in plain
    }


def _plain(part: Output) -> list[Any]:
    reason = None if part.finish_reason is None else part.finish_reason.value
    return [list(part.token_ids), list(part.logprobs), reason, part.version]


def _part(plain: Sequence[Any]) -> Output:
    token_ids, logprobs, reason, version = plain
    return Output(
        id=0,
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        finish_reason=None if reason is None else FinishReason(reason),
        version=version,
    )
