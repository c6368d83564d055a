"""What is logged of a rollout: plain numbers under the keys of docs/metrics.md."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import chain
from statistics import fmean

from svr_lightning.core.rewards import TurnReward
from svr_lightning.core.types import ScoredTurn, Verdict
from svr_lightning.training.experience import Group


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
        "train/brier": fmean((turn.confidence - turn.correct) ** 2 for turn in turns),
        "train/overconfidence": _share(
            turn.verdict == Verdict.CORRECT and not turn.correct for turn in turns
        ),
    }
    for name in ("solve", "verify", "format", *(field.name for field in fields(TurnReward))):
        stats[f"train/reward/{name}"] = fmean(getattr(reward, name) for reward in rewards)
    for verdict in Verdict:
        share = _share(turn.verdict == verdict for turn in turns)
        stats[f"train/verdict/{verdict.value.lower()}"] = share
    stats |= _per_turn(groups)
    stats |= _confidence(turns)
    return stats


def _per_turn(groups: Sequence[Group]) -> dict[str, float]:
    correct: dict[int, list[bool]] = {}
    for group in groups:
        for trajectory, scored in zip(group.trajectories, group.scored, strict=True):
            for turn, label in zip(trajectory.turns, scored, strict=True):
                correct.setdefault(turn.index, []).append(label.correct)
    return {f"train/turn{index}/accuracy": _share(correct[index]) for index in sorted(correct)}


def _confidence(turns: Sequence[ScoredTurn]) -> dict[str, float]:
    stats = {}
    for name, correct in (("right", True), ("wrong", False)):
        values = [turn.confidence for turn in turns if turn.correct == correct]
        if values:
            stats[f"train/confidence/{name}"] = fmean(values)
    return stats


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values)
