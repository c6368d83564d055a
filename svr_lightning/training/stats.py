"""What is logged of a rollout: plain numbers under the keys of docs/metrics.md."""

from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import fmean

from svr_lightning.core.rewards import Reward
from svr_lightning.core.types import ScoredTurn, Verdict
from svr_lightning.recipes.base import Group


def rollout_stats(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, correctness, self-verification and lengths of one rollout, averaged over turns."""
    turns = [turn for group in groups for trajectory in group.scored for turn in trajectory]
    rewards = [reward for group in groups for rewards in group.rewards for reward in rewards]
    returns = list(chain.from_iterable(group.returns for group in groups))
    stats = {
        "train/reward/mean": fmean(returns),
        "train/zero_std_groups": _share(group.degenerate for group in groups),
        "train/resampled_groups": _share(group.attempt > 0 for group in groups),
        "train/generations": len(turns) / len(groups),
        "train/accuracy": _share(turn.correct for turn in turns),
        "train/truncated": _share(turn.truncated for turn in turns),
        "train/completion_tokens": fmean(turn.completion_tokens for turn in turns),
    }
    return {**stats, **_reward_terms(rewards), **_per_turn(groups), **_self_checks(turns)}


def _reward_terms(rewards: Sequence[Reward]) -> dict[str, float]:
    """Means of every term and subtotal; 0 stands for a term that a turn's reward does not have."""
    named = [{**reward.subtotals, **reward.terms} for reward in rewards]
    names = dict.fromkeys(name for terms in named for name in terms)
    return {
        f"train/reward/{name}": fmean(terms.get(name, 0.0) for terms in named) for name in names
    }


def _per_turn(groups: Sequence[Group]) -> dict[str, float]:
    correct: dict[int, list[bool]] = {}
    for group in groups:
        for trajectory, scored in zip(group.trajectories, group.scored, strict=True):
            for turn, label in zip(trajectory.turns, scored, strict=True):
                correct.setdefault(turn.index, []).append(label.correct)
    return {f"train/turn{index}/accuracy": _share(correct[index]) for index in sorted(correct)}


def _self_checks(turns: Sequence[ScoredTurn]) -> dict[str, float]:
    """What turns with a self-check say of themselves; nothing where no turn has one."""
    checked = [
        (turn.verdict, turn.confidence, turn.correct)
        for turn in turns
        if turn.verdict is not None and turn.confidence is not None
    ]
    if not checked:
        return {}
    stats = {
        "train/brier": fmean((stated - correct) ** 2 for _, stated, correct in checked),
        "train/overconfidence": _share(
            verdict == Verdict.CORRECT and not correct for verdict, _, correct in checked
        ),
    }
    for word in Verdict:
        share = _share(verdict == word for verdict, _, _ in checked)
        stats[f"train/verdict/{word.value.lower()}"] = share
    for name, label in (("right", True), ("wrong", False)):
        values = [stated for _, stated, correct in checked if correct == label]
        if values:
            stats[f"train/confidence/{name}"] = fmean(values)
    return stats


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values)
