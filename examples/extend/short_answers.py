"""A reward of your own: correctness, and a term for brevity. You choose the names of the terms."""

from collections.abc import Sequence

from svr_lightning import Reward, ScoredTurn

FREE_TOKENS = 200


def short_answers(scored: Sequence[ScoredTurn]) -> list[Reward]:
    """[T] one reward per turn; every token above the free ones costs a thousandth."""
    return [
        Reward.of(
            correct=1.0 if turn.correct else 0.0,
            brevity=-0.001 * max(0, turn.completion_tokens - FREE_TOKENS),
        )
        for turn in scored
    ]
