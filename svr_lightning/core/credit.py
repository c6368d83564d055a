"""Who is credited: group-relative advantages (equation group-advantage), and exact choices."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from svr_lightning.core.parsing import decimals_span, verdict_span
from svr_lightning.core.rewards import RewardWeights, verification_rewards
from svr_lightning.core.types import Choice, ScoredTurn, Verdict

ADVANTAGE_EPSILON = 1e-4
_ROUNDING = 1e-9
"""Rewards are sums of a few terms near 1; their order changes them by 1e-15."""
RewardScale = Literal["group", "none"]


def group_advantages(returns: Sequence[float], scale: RewardScale = "group") -> list[float]:
    """[G] A_i = (R_i - mean) / (std + 1e-4) over the [G] trajectories of one problem.

    ``group`` divides by the sample standard deviation (ddof 1), the paper's equation; ``none`` only
    subtracts the mean, the other reading of "rewards are not rescaled". All are exactly 0 for a
    degenerate group or a group of one.

    Examples:
        >>> [round(a, 3) for a in group_advantages([1.0, 2.0, 3.0])]
        [-1.0, 0.0, 1.0]
    """
    if is_degenerate(returns):
        return [0.0] * len(returns)
    mean = fmean(returns)
    centred = [value - mean for value in returns]
    if scale == "none":
        return centred
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(returns) - 1))
    return [c / (std + ADVANTAGE_EPSILON) for c in centred]


def sibling_advantages(
    values: Sequence[float],
    families: Sequence[Hashable],
    turns: Sequence[int],
    scale: RewardScale = "group",
) -> list[float]:
    """[N] advantages of nodes among their siblings, the nodes of equal ``families``.

    Nodes without siblings are compared with each other, per turn.

    Examples:
        >>> sibling_advantages([1.0, 0.0, 4.0, 2.0], "aabc", [2, 2, 2, 2], "none")
        [0.5, -0.5, 1.0, -1.0]
    """
    sizes = Counter(families)
    groups: dict[Hashable, list[int]] = {}
    for node, family in enumerate(families):
        key = ("family", family) if sizes[family] > 1 else ("turn", turns[node])
        groups.setdefault(key, []).append(node)
    advantages = [0.0] * len(values)
    for members in groups.values():
        among = group_advantages([values[node] for node in members], scale)
        for node, advantage in zip(members, among, strict=True):
            advantages[node] = advantage
    return advantages


def is_degenerate(returns: Sequence[float]) -> bool:
    """Whether all returns are equal but for rounding, so that the group has no learning signal.

    Examples:
        >>> is_degenerate([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1]), is_degenerate([0.0, 1e-6])
        (True, False)
    """
    return all(
        math.isclose(value, returns[0], rel_tol=_ROUNDING, abs_tol=_ROUNDING) for value in returns
    )


def turn_advantages(
    rewards: Sequence[Sequence[float]], scale: RewardScale = "group", *, to_go: bool = True
) -> list[list[float]]:
    """[G, T] advantages from the [G, T] rewards of the turns of one problem's trajectories.

    Each turn is compared with the same turn of the other trajectories, by what it earned: the mean
    reward of it and all later turns (a sum would give turns other scales), or without ``to_go`` its
    own reward. All trajectories need the same number of turns: then neither the turns that a return
    covers nor those in its baseline depend on what a trajectory does, and the policy gradient is
    unbiased (docs/trainers.md).

    Raises:
        ValueError: if the numbers of turns differ.

    Examples:
        >>> turn_advantages([[0.0, 1.0], [0.0, 0.0]], "none")   # earned: .5 and 1; 0 and 0
        [[0.25, 0.5], [-0.25, -0.5]]
    """
    counts = {len(turns) for turns in rewards}
    if len(counts) > 1:
        raise ValueError(
            f"trajectories of one problem have {min(counts)} to {max(counts)} turns, and credit "
            "per turn needs as many in each: do not let the policy end a training trajectory"
        )
    earned = [[float(reward) for reward in turns] for turns in rewards]
    if to_go:
        earned = [[fmean(turns[t:]) for t in range(len(turns))] for turns in earned]
    columns = [group_advantages(column, scale) for column in zip(*earned, strict=True)]
    return [list(turns) for turns in zip(*columns, strict=True)]


def max_to_go(rewards: Sequence[float], parents: Sequence[int | None]) -> list[float]:
    """[N] Murphy's MaRS: R_n = max(r_n, max over children of R_c); parents come before children.

    Examples:
        >>> max_to_go([0.0, 1.0, 0.5], [None, 0, None])
        [1.0, 1.0, 0.5]
    """
    credited = list(rewards)
    for node in reversed(range(len(credited))):
        parent = parents[node]
        if parent is not None:
            credited[parent] = max(credited[parent], credited[node])
    return credited


def check_choices(
    turn: ScoredTurn, start: int, weights: RewardWeights, weight: float = 1.0
) -> tuple[Choice, ...]:
    """The choices that a turn's self-check consists of, with the proper score of each alternative.

    At the verdict these are the three words, each scored with the stated confidence; at the
    confidence its first decimals, 10 or 100 numbers, each scored with the stated verdict. Further
    decimals stay as they are. A turn that is cut off, or whose self-check is not in form, earns
    nothing here; neither does a verdict in other words, nor a confidence like ``1.0`` or ``70%``.

    Args:
        turn: with its text and its label.
        start: where the part of the text begins from which the self-check was read.
        weights: coefficients of the score.
        weight: a factor of every score.
    """
    if turn.truncated or turn.self_check_format != 1.0:
        return ()
    assert turn.verdict is not None
    assert turn.confidence is not None

    def scored(choice: Choice, verdicts: Sequence[str], confidences: Sequence[float]) -> Choice:
        labels = [turn.correct] * len(choice.scores)
        scores = verification_rewards(verdicts, confidences, labels, weights, proper=True)
        return replace(choice, scores=tuple(weight * score for score in scores))

    choices = []
    words = stated_verdicts(turn.text, start)
    if words is not None and turn.text[slice(*words.span)] == turn.verdict.value:
        choices.append(scored(words, words.alternatives, [turn.confidence] * len(words.scores)))
    numbers = stated_confidences(turn.text, start)
    if numbers is not None:
        choices.append(scored(numbers, [turn.verdict] * len(numbers.scores), numbers.scores))
    return tuple(choices)


STATES = {Verdict.CORRECT: 1.0, Verdict.INCORRECT: 0.0, Verdict.UNSURE: 0.5}
"""The probability of being right that a verdict states."""


def stated_verdicts(text: str, start: int) -> Choice | None:
    """The word of a self-check's verdict; each alternative's score is what it states.

    Args:
        text: a completion.
        start: where the part of it begins from which the self-check was read.

    Returns:
        None where no valid word was found.
    """
    span = verdict_span(text, start)
    if span is None:
        return None
    words = tuple(verdict.value for verdict in STATES)
    return Choice(span=span, alternatives=words, scores=tuple(STATES.values()))


def stated_confidences(text: str, start: int) -> Choice | None:
    """The first decimals of a self-check's confidence; each alternative's score is what it states.

    Args:
        text: a completion.
        start: where the part of it begins from which the self-check was read.

    Returns:
        None for a confidence without decimals that can vary, such as ``1.0`` or ``70%``.
    """
    span = decimals_span(text, start)
    if span is None:
        return None
    count = span[1] - span[0]
    numbers = tuple(f"{number:0{count}d}" for number in range(10**count))
    rest = re.split("[^0-9]", text[span[1] :], maxsplit=1)[0]
    stated = tuple(float(f"0.{number}{rest}") for number in numbers)
    return Choice(span=span, alternatives=numbers, scores=stated)
