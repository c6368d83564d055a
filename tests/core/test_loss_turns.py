"""Which completions of a trajectory are optimised, where a source does not say."""

import pytest

from svr_lightning.recipes.base import Baseline
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.recipes.murphy import Murphy
from svr_lightning.recipes.scrpo import ScRPO
from tests.recipes import RIGHT, WRONG, play, scripts

CHAINS = ("WWR", "WWW", "RWW")
FREE = {"group_size": 3, "reward_kind": "binary", "loss_turns": "final"}
"""Of the last turn one is right, so that advantages are 2/3 and -1/3 of a deviation of 0.577."""


def of_last_turn(recipe: Baseline) -> list[tuple[str, float]]:
    ((group,), _) = play(recipe, scripts(*CHAINS))
    assert recipe.samples_per_problem == 3
    samples = recipe.credit(group)
    return [("".join(map(chr, s.completion_ids)), s.advantage) for s in samples]


@pytest.mark.parametrize("recipe", [GRPOMT(**FREE), MLMTRL(**FREE)], ids=["grpo_mt", "mlmt_rl"])
def test_the_final_turn_of_each_trajectory(recipe: Baseline) -> None:
    found = of_last_turn(recipe)
    assert [text for text, _ in found] == [RIGHT, WRONG, WRONG]
    assert [a for _, a in found] == pytest.approx([1.1547, -0.5773, -0.5773], abs=3e-4)


def test_murphys_final_turns_that_are_not_beyond_a_solution() -> None:
    # The third chain was solved at once. 1 and 0: half a deviation of 0.7071 on either side.
    found = of_last_turn(Murphy(**FREE))
    assert [text for text, _ in found] == [RIGHT, WRONG]
    assert [a for _, a in found] == pytest.approx([0.7071, -0.7071], abs=2e-4)


def test_scrpos_final_corrections_that_beat_the_others() -> None:
    # All three second answers were wrong, so all three corrections compare; one did better.
    ((text, advantage),) = of_last_turn(ScRPO(**FREE))
    assert text == RIGHT
    assert advantage == pytest.approx(1.1547, abs=3e-4)
