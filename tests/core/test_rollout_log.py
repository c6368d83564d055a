"""What a training shows of its rollouts."""

import pytest

from svr_lightning.callbacks.rollout_log import RolloutLog, group_lines, print_extremes
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.recipes.mlmt_rl import MLMTRL
from tests.recipes import play, scripts


def test_the_best_trajectory_is_shown_first_and_the_worst_after_it(capsys):
    recipe = GRPOMT(group_size=3, horizon=1, reward_kind="binary")
    group, _ = play(recipe, scripts("W", "R", "W"))
    print_extremes([group], 7, recipe)
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step 7")]
    best, worst = titles
    assert best.startswith("step 7  best")
    assert best.endswith("R=+1.00")
    assert worst.startswith("step 7  worst")
    assert worst.endswith("R=+0.00")


def test_a_tutors_turn_is_feedback_on_the_screen_and_in_the_file_and_has_no_label(capsys):
    recipe = MLMTRL(group_size=2, reward_kind="binary")
    group, _ = play(recipe, scripts("WRR", "WRW"))  # the tutor repeats the right answer
    (line, _) = group_lines(group, 7, recipe)
    assert [turn["correct"] for turn in line["turns"]] == [False, None, True]
    assert [turn.get("feedback") for turn in line["turns"]] == [None, True, None]
    print_extremes([group], 7, recipe)
    shown = [row.split()[2] for row in capsys.readouterr().out.splitlines() if row[:4] == "turn"]
    assert shown == ["y=0", "feedback", "y=1", "y=0", "feedback", "y=0"]


@pytest.mark.parametrize(
    ("updates", "shown"), [(1, [20, 40]), (2, [19, 39]), (3, [19, 40]), (8, [17, 33])]
)
def test_a_pair_is_shown_for_each_multiple_of_every_among_the_steps_of_a_rollout(updates, shown):
    log = RolloutLog(every=20)
    first_steps = range(1, 41, updates)
    assert [step for step in first_steps if log._is_due(step, updates)] == shown
