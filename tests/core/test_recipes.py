"""What holds of every recipe: its budget, its turns, its options, and rewards of a user's own."""

import math
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.parsing import parse_self_check, self_check_format_score
from svr_lightning.core.rewards import Reward, RewardWeights
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import ScoredTurn, SelfCheck, Verdict
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.dialogues import chain
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.recipes.igrpo import IGRPO
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.recipes.murphy import Murphy
from svr_lightning.recipes.oracle import Oracle
from svr_lightning.recipes.scrpo import ScRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.tasks import GradingError
from svr_lightning.tasks.countdown import Countdown
from svr_lightning.training.logs import rollout_stats
from tests.recipes import (
    RECIPES,
    RIGHT,
    THREE_TURNS,
    WRONG,
    advantages,
    answered,
    completion,
    each_recipe,
    mixed,
    play,
    scripts,
    ten,
)


@each_recipe
def test_a_problem_takes_twenty_four_generations_and_the_stated_samples(name):
    recipe, samples, _ = RECIPES[name]
    group, actors = play(recipe, mixed)
    assert len(actors.prompts) == 24
    assert recipe.samples_per_problem == samples
    assert 1 <= len(recipe.credit(group)) <= samples
    assert sum(len(turns) for turns in group.scored) == 24


@each_recipe
@pytest.mark.parametrize("text", [RIGHT, WRONG], ids=["right", "wrong"])
def test_a_group_of_equals_teaches_nothing(name, text):
    recipe = RECIPES[name][0]
    group, _ = play(recipe, lambda *_: text)
    assert group.degenerate
    assert {sample.advantage for sample in recipe.credit(group)} == {0.0}


# --- evaluation -------------------------------------------------------------------------------


@each_recipe
def test_each_policy_is_evaluated_for_its_own_number_of_turns(name):
    recipe, _, turns = RECIPES[name]
    max_turns = recipe.evaluated_turns(10)
    assert max_turns == turns
    applied = recipe.dialogue.applied_rule(Confident())
    assert (applied is not None) == name.startswith(("svr", "rlcr"))
    problem = ten()
    seen = []
    rollout = chain(
        recipe.dialogue, problem, 0, max_turns, None, lambda turn: seen.append(turn.index)
    )
    trajectory = answered(rollout, lambda *_: completion(WRONG))
    assert [turn.index for turn in trajectory.turns] == seen == list(range(1, turns + 1))


def test_a_policy_of_one_field_is_stopped_by_that_field():
    verdict = SVR(interface="verdict").dialogue
    assert verdict.applied_rule(Confident()) == Confident(threshold=0.0)
    alone = Confident(needs_correct=False)
    assert SVR(interface="confidence").dialogue.applied_rule(Confident()) == alone
    sure = completion(f"{RIGHT}<self_check>CONFIDENCE: 0.9 </self_check>")
    rollout = chain(SVR(interface="confidence").dialogue, ten(), 0, 10, alone)
    assert len(answered(rollout, lambda *_: sure).turns) == 1


def test_a_method_that_needs_labels_refuses_a_question_without_reference():
    question = replace(ten(), reference="")
    rollout = chain(Oracle().dialogue, question, 0, 10)
    with pytest.raises(ConfigError, match=r"method needs reference answers .* 'p' has none"):
        answered(rollout, lambda *_: completion(WRONG))


# --- the interfaces of the ablations ----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict_only", "confidence_only"),
    [
        ("<self_check>VERDICT: CORRECT</self_check>", 1.0, 0.0),
        ("<self_check>CONFIDENCE: 0.3</self_check>", 0.0, 1.0),
        ("<self_check>VERDICT: WRONG; CONFIDENCE: 0.3</self_check>", 1.0, 1.0),
        ("VERDICT: CORRECT; CONFIDENCE: 0.3", -1.0, -1.0),
        ("<self_check>VERDICT: CORRECT; CONFIDENCE: 0.3", 0.0, 0.0),
    ],
)
def test_the_form_of_a_self_check_is_that_of_its_interface(text, verdict_only, confidence_only):
    assert self_check_format_score(text, "verdict") == verdict_only
    assert self_check_format_score(text, "confidence") == confidence_only


def test_a_field_that_was_not_asked_for_is_not_read():
    text = "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.3</self_check>"
    assert parse_self_check(text, "verdict") == SelfCheck(verdict=Verdict.CORRECT, confidence=0.8)
    assert parse_self_check(text, "confidence") == SelfCheck(verdict=Verdict.UNSURE, confidence=0.3)


# --- options ----------------------------------------------------------------------------------

PAIR = 0.5 / (sqrt(0.5) + 1e-4)
ONLY_ABS = RewardWeights(
    alpha=0, delta=0, keep=0, reg=0, fail=0, cal=0, over=0, detect=0, ready=0, fmt=0
)
TWO = {
    "svr": (SVR, {"horizon": 1, "weights": ONLY_ABS}, ("R", "W")),
    "svr_plus": (SVRPlus, {"horizon": 1, "weights": ONLY_ABS, "sections": False}, ("R", "W")),
    "grpo": (GRPO, {}, ("R", "W")),
    "grpo_mt": (GRPOMT, {"horizon": 2}, ("WR", "WW")),
    "igrpo": (IGRPO, {"drafts": 2}, ("WW" + "RW",)),
    "murphy": (Murphy, {"horizon": 1}, ("R", "W")),
    "murphy_tree": (Murphy, {"horizon": 1, "shape": "tree"}, ("RW",)),
    "mlmt_rl": (MLMTRL, {}, ("WWR", "WWW")),
    "scrpo": (ScRPO, {"horizon": 1}, ("R", "W")),
    "oracle": (Oracle, {"horizon": 1}, ("R", "W")),
}
"""Of each recipe two that learn, a right one and a wrong one."""


def two(name: str, **options: Any) -> tuple[Recipe, Any]:
    kind, given, rows = TWO[name]
    if not name.startswith("svr"):
        given = {"reward_kind": "binary", **given}
    recipe = kind(**{"group_size": 2, **given, **options})
    group, _ = play(recipe, scripts(*rows))
    return recipe, group


@pytest.mark.parametrize("name", TWO)
def test_the_scale_of_advantages_is_an_option(name):
    for scale, expected in (("group", PAIR), ("none", 0.5)):
        recipe, group = two(name, scale_rewards=scale)
        found = sorted(a for a in advantages(recipe.credit(group)) if a)
        half = len(found) // 2
        assert half
        assert found == pytest.approx([-expected] * half + [expected] * half)


def test_a_clip_may_be_open_above():
    assert LossSpec(clip_eps_high=math.inf).clip_eps_high == math.inf


# --- a user's own reward ----------------------------------------------------------------------


def paid_for_length(turns: Sequence[ScoredTurn]) -> list[Reward]:
    return [Reward.of(correct=float(t.correct), long=t.completion_tokens / 100) for t in turns]


@pytest.mark.parametrize("name", TWO)
def test_every_recipe_takes_a_reward_of_ones_own(name):
    recipe, group = two(name, custom_reward=paid_for_length)
    rewards = [reward for rewards in group.rewards for reward in rewards]
    assert {tuple(reward.terms) for reward in rewards} == {("correct", "long")}
    assert (max(group.returns), min(group.returns)) == pytest.approx((1.4, 0.4))
    assert any(advantages(recipe.credit(group)))
    stats = rollout_stats([group], recipe, 1.0)
    assert stats["train/reward/long"] == pytest.approx(0.4)
    assert {key for key in stats if key.startswith("train/reward/")} == {
        f"train/reward/{term}" for term in ("mean", "correct", "long")
    }


def test_a_reward_of_ones_own_may_be_a_number_made_of_text_and_problem():
    def echoes(turns):
        return [turn.text.count(str(turn.problem and turn.problem.reference)) for turn in turns]

    group, _ = play(GRPOMT(group_size=2, custom_reward=echoes), scripts("RRR", "WWW"))
    for rewards, trajectory in zip(group.rewards, group.trajectories, strict=True):
        texts = [turn.completion.text for turn in trajectory.turns]
        expected = [{"reward": text.count(group.problem.reference)} for text in texts]
        assert [reward.terms for reward in rewards] == expected


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "returned 1 rewards for 3 turns; return one each"),
        (None, "returned NoneType for 3 turns; return one each"),
        ([1.0, math.nan, 1.0], r"returned Reward\(.*nan.*\) for turn 2; return a fin"),
        ([10**400] * 3, "for turn 1; return a finite number or a Reward"),
        ([0.0, 0.0, None], "returned None for turn 3; return a finite"),
        ([Reward.of(x=None)] * 3, "for turn 1; return a finite"),
        (["1"] * 3, "returned '1' for turn 1; return a finite"),
    ],
)
def test_a_reward_that_is_none_is_refused_in_one_line(returned, message):
    with pytest.raises(ConfigError, match=f"custom_reward .*{message}") as caught:
        play(GRPOMT(group_size=2, custom_reward=lambda _: returned), scripts("RRR", "RRR"))
    assert "\n" not in str(caught.value)


def test_feedback_between_answers_does_not_count_as_a_wrong_answer():
    """Of MLMT-RL's three turns the second is the tutor's."""
    recipe, group = two("mlmt_rl")
    stats = rollout_stats([group], recipe, 1.0)
    # Both first answers are wrong, one of the two last ones is right.
    assert stats["train/accuracy"] == 1 / 4
    assert stats["train/turn1/accuracy"] == 0
    assert stats["train/turn3/accuracy"] == 1 / 2
    assert "train/turn2/accuracy" not in stats
    assert stats["train/generations"] == 6


def test_every_answer_is_graded_once_and_one_that_cannot_be_is_wrong(monkeypatch):
    graded = []

    def grade(_, completion, __):
        graded.append(completion)
        raise GradingError("no sandbox today")

    monkeypatch.setattr(Countdown, "grade", grade)
    group, _ = play(GRPOMT(group_size=2), scripts("RRR", "RRR"))
    assert len(graded) == 6
    assert not any(turn.correct for turns in group.scored for turn in turns)


# --- methods without a self-check -------------------------------------------------------------


def test_a_method_without_a_self_check_has_none_and_logs_none():
    recipe = GRPOMT(group_size=2)
    group, _ = play(recipe, lambda i, n, _: THREE_TURNS[i][n])
    assert {turn.check for t in group.trajectories for turn in t.turns} == {None}
    turns = [turn for turns in group.scored for turn in turns]
    assert {(t.verdict, t.confidence, t.self_check_format) for t in turns} == {(None, None, 0.0)}
    logged = " ".join(rollout_stats([group], recipe, 1.0))
    assert not any(word in logged for word in ("brier", "verdict", "confiden", "self_check"))
