"""Who learns, and with what advantage: every number is worked out by hand."""

from collections import Counter
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest

from svr_lightning.core.credit import check_choices, max_to_go
from svr_lightning.core.rewards import RewardWeights, sections
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Choice, Sample
from svr_lightning.recipes.base import Group, Recipe
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.recipes.igrpo import IGRPO
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.recipes.murphy import Murphy
from svr_lightning.recipes.oracle import Oracle
from svr_lightning.recipes.rlcr import RLCR
from svr_lightning.recipes.scrpo import ScRPO, analysis_span
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from tests.recipes import (
    NO_THINKING,
    RIGHT,
    THREE_TURNS,
    WRONG,
    Write,
    advantages,
    play,
    scripts,
    texts,
)

EPS = 1e-4
PAIR = 0.5 / (sqrt(0.5) + EPS)
"""Advantages of the values 1 and 0 among themselves: mean 0.5, deviation sqrt(0.5)."""


def credited(recipe: Recipe, write: Write) -> tuple[Group, list[Sample]]:
    """A group and what is learned from it."""
    group, _ = play(recipe, write)
    return group, recipe.credit(group)


# --- GRPO and GSPO ----------------------------------------------------------------------------


def test_grpo_compares_every_completion_of_a_problem():
    recipe = GRPO(group_size=4, reward_kind="binary")
    _, samples = credited(recipe, scripts("R", "W", "W", "W"))
    # 1, 0, 0, 0: mean 0.25, squared deviations 0.5625 + 3 * 0.0625 = 0.75, over 3, root 0.5.
    expected = [0.75 / (0.5 + EPS), *[-0.25 / (0.5 + EPS)] * 3]
    assert advantages(samples) == pytest.approx(expected)
    assert texts(samples) == [RIGHT, WRONG, WRONG, WRONG]


def test_the_long_output_safeguard_is_a_term_of_each_turn_and_off_by_default():
    rows = scripts("RW", "WR")
    plain = GRPOMT(group_size=2, horizon=2, reward_kind="binary")
    assert "long_output" not in play(plain, rows)[0].rewards[0][0].terms
    # R has 40 tokens and W the same: 40 is 10 beyond 50 - 20 = 30, and -10 / 20 = -0.5.
    limited = replace(plain, soft_max_length=50, soft_cache_length=20)
    group, _ = play(limited, rows)
    assert dict(group.rewards[0][0].terms) == {"correct": 1.0, "long_output": -0.5}
    assert group.returns == (-0.5, 0.5)  # of the last turns, which the return covers


# --- several turns ----------------------------------------------------------------------------


def test_grpo_mt_gives_all_turns_the_advantage_of_their_trajectory():
    recipe = GRPOMT(group_size=2, reward_kind="binary")
    _, samples = credited(recipe, scripts("WWR", "RRW"))
    assert advantages(samples) == pytest.approx([PAIR] * 3 + [-PAIR] * 3)
    assert texts(samples) == [WRONG, WRONG, RIGHT, RIGHT, RIGHT, WRONG]


def test_the_oracle_averages_the_solve_reward_and_trains_the_last_turn():
    group, samples = credited(Oracle(group_size=2, length_scale=100), scripts("WWR", "WWW"))
    # Wrong 0.4; wrong again 0.4 - 0.3; then right 0.8 + 0.3 + 0.4, or wrong again.
    assert group.returns == pytest.approx(((0.4 + 0.1 + 1.5) / 3, (0.4 + 0.1 + 0.1) / 3))
    assert texts(samples) == [RIGHT, WRONG]


def test_igrpo_learns_from_refinements_alone():
    recipe = IGRPO(drafts=3, group_size=2, reward_kind="binary")
    written = [
        text.replace("xx", str(i)) for i, text in enumerate([WRONG, RIGHT, WRONG, WRONG, RIGHT])
    ]
    group, actors = play(recipe, lambda _, prompt, __: written[prompt])
    samples = recipe.credit(group)
    assert texts(samples) == written[3:]
    assert advantages(samples) == pytest.approx([-PAIR, PAIR])
    assert [t.parent for t in group.trajectories] == [None, None, None, 1, 1]
    assert [t.turns[0].index for t in group.trajectories] == [1, 1, 1, 2, 2]
    assert all(written[1] in prompt[1]["content"] for prompt in actors.prompts[3:])
    # The drafts differ, but the refinements do not: nothing to learn.
    same, _ = play(recipe, scripts("WRW" + "RR"))
    assert same.degenerate


def test_igrpo_draws_among_equally_good_drafts_by_the_runs_seed():
    drafts = [f"<think>{i}</think>\n<answer>8+4-2</answer>" for i in range(6)]
    recipe = IGRPO(drafts=6, group_size=2)

    def choice(step):
        place = SeedContext(run_seed=1, step=step)
        group, _ = play(recipe, lambda _, n, __: [*drafts, WRONG, WRONG][n], place=place)
        return group.trajectories[-1].parent

    chosen = [choice(step) for step in range(20)]
    assert chosen == [choice(step) for step in range(20)]
    assert len(set(chosen)) > 3


# --- Murphy -----------------------------------------------------------------------------------


def test_murphys_chains_credit_failures_that_were_mended():
    recipe = Murphy(group_size=3, reward_kind="binary")
    _, samples = credited(recipe, scripts("WRW", "WWW", "RWW"))
    # Turn 1: 1 (mended), 0, 1: mean 2/3, variance (2 * 1/9 + 4/9) / 2 = 1/3.
    std = sqrt(1 / 3) + EPS
    # Turn 2: only the unsolved chains, 1 and 0. Turn 3: one chain is left, with nobody beside it.
    expected = [1 / 3 / std, PAIR, -2 / 3 / std, -PAIR, 0.0, 1 / 3 / std]
    assert advantages(samples) == pytest.approx(expected)
    assert texts(samples) == [WRONG, RIGHT, WRONG, WRONG, WRONG, RIGHT]
    assert recipe.samples_per_problem == 9


def test_murphys_tree_expands_failures_and_compares_siblings():
    recipe = Murphy(group_size=4, horizon=2, reward_kind="binary", shape="tree")
    # Roots R W W W; children are dealt to roots 1, 2, 3, 1 and say R W R W.
    group, samples = credited(recipe, scripts("RWWW" + "RWRW"))
    assert [t.parent for t in group.trajectories] == [None] * 4 + [1, 2, 3, 1]
    # Roots 1, 1, 0, 1: mean 3/4, variance (3 / 16 + 9 / 16) / 3 = 1/4. The children of root 1 are
    # siblings, 1 and 0; those of 2 and 3 have none and are compared with each other, 0 and 1.
    up, down = 0.25 / (0.5 + EPS), -0.75 / (0.5 + EPS)
    expected = [up, up, down, up, PAIR, -PAIR, PAIR, -PAIR]
    assert advantages(samples) == pytest.approx(expected)


def test_a_tree_ends_where_nobody_failed():
    recipe = Murphy(group_size=2, shape="tree")
    group, actors = play(recipe, scripts("RW" + "RR"))
    assert (len(actors.prompts), group.degenerate) == (4, True)


def test_a_trees_third_turn_goes_on_from_the_second():
    recipe = Murphy(group_size=3, horizon=3, shape="tree", reward_kind="binary")
    written = [
        (RIGHT if letter == "R" else WRONG).replace("xx", f"node {n}")
        for n, letter in enumerate("WRW" + "WRW" + "RWW")
    ]
    group, actors = play(recipe, lambda _, n, __: written[n])
    # Failed roots 0 and 2 get children 3, 5 and 4; failed 3 and 5 get 6, 8 and 7.
    assert [t.parent for t in group.trajectories] == [None] * 3 + [0, 2, 0] + [3, 5, 3]
    assert [t.turns[0].index for t in group.trajectories] == [1] * 3 + [2] * 3 + [3] * 3
    for n in range(3, 9):
        prompt = actors.prompts[n][1]["content"]
        shown = [m for m in range(9) if f"node {m}<" in prompt]
        assert shown == [group.trajectories[n].parent]
        assert prompt.startswith(f"[T={group.trajectories[n].turns[0].index}]")


def test_credit_flows_up_a_deeper_tree():
    #      0: 0          1: 0.2
    #    2: 0   3: 0.5
    #  4: 1
    rewards, parents = [0.0, 0.2, 0.0, 0.5, 1.0], [None, None, 0, 0, 2]
    assert max_to_go(rewards, parents) == [1.0, 0.2, 1.0, 0.5, 1.0]


# --- MLMT-RL and ScRPO ------------------------------------------------------------------------


def test_mlmt_rl_gives_solver_and_tutor_the_last_answers_reward():
    recipe = MLMTRL(group_size=2, reward_kind="binary")
    group, actors = play(recipe, scripts("WWR", "RRW"))
    assert advantages(recipe.credit(group)) == pytest.approx([PAIR] * 3 + [-PAIR] * 3)
    assert actors.limits == [None, 512, None] * 2


def test_mlmt_rl_compares_an_answer_with_the_answer_before_and_not_with_feedback():
    recipe = MLMTRL(group_size=3, reward_kind="solve")
    group, _ = play(recipe, scripts("RWR", "RWW", "WWR"))
    # Kept right: 0.3. Made wrong: 0.3 (0 - 1) - 0.5. Made right: 0.3.
    assert [turns[2].terms["prog"] for turns in group.rewards] == pytest.approx([0.3, -0.8, 0.3])


ANALYSED = f"<analysis>sign</analysis>{RIGHT}"


def test_scrpo_trains_first_answers_and_the_analysis_of_corrections_that_succeed():
    recipe = ScRPO(group_size=3, horizon=2, reward_kind="binary")
    written = [[RIGHT, RIGHT], [WRONG, ANALYSED], [WRONG, WRONG]]
    _, samples = credited(recipe, lambda i, n, _: written[i][n])
    # First answers 1, 0, 0: mean 1/3, variance (4/9 + 2/9) / 2 = 1/3. Of the corrections of the two
    # wrong ones, 1 and 0, the second has a negative advantage.
    std = sqrt(1 / 3) + EPS
    assert advantages(samples) == pytest.approx([2 / 3 / std, -1 / 3 / std, -1 / 3 / std, PAIR])
    assert [sample.text_span for sample in samples] == [None, None, None, (0, 25)]
    assert texts(samples)[-1][slice(0, 25)] == "<analysis>sign</analysis>"


def test_scrpo_judges_a_correction_by_the_answer_right_before_it():
    def analysed(note):
        return f"<analysis>{note}</analysis>{RIGHT}"

    recipe = ScRPO(group_size=4, horizon=3, scale_rewards="none")
    written = [
        [WRONG, WRONG, analysed("a3")],
        [WRONG, WRONG, WRONG],
        [WRONG, analysed("c2"), WRONG],
        [RIGHT, WRONG, analysed("d3")],
    ]
    group, samples = credited(recipe, lambda i, n, _: written[i][n])
    # An analysis is no fault of form: 1.4 where right, 0.4 where wrong.
    earned = [[turn.total for turn in turns] for turns in group.rewards]
    expected = [[0.4, 0.4, 1.4], [0.4, 0.4, 0.4], [0.4, 1.4, 0.4], [1.4, 0.4, 1.4]]
    assert earned == [pytest.approx(row) for row in expected]
    # Turn 1: mean 0.65. Turn 2 corrects a, b and c: 0.4, 0.4, 1.4, so that c is 2/3 above the mean.
    # Turn 3 corrects a, b and d, wrong at turn 2: 1.4, 0.4, 1.4, so that a and d are 1/3 above it.
    assert advantages(samples) == pytest.approx([-0.25] * 3 + [0.75, 2 / 3, 1 / 3, 1 / 3])
    assert texts(samples)[4:] == [analysed("c2"), analysed("a3"), analysed("d3")]
    assert {sample.text_span for sample in samples[4:]} == {(0, len("<analysis>c2</analysis>"))}


def test_scrpo_corrects_nothing_of_problems_that_are_always_or_never_solved():
    recipe = ScRPO(group_size=2, horizon=2)
    for rows in [("WR", "WW"), ("RW", "RR")]:
        assert advantages(credited(recipe, scripts(*rows))[1]) == [0.0, 0.0]


@pytest.mark.parametrize(("tau", "optimised"), [(0.1875, 5), (0.19, 4)])
def test_scrpo_corrects_where_the_share_of_right_answers_varies_enough(tau, optimised):
    # A quarter is right: 1/4 * 3/4 = 0.1875. One of three corrections succeeds.
    recipe = ScRPO(group_size=4, horizon=2, min_variance=tau)
    assert len(credited(recipe, scripts("RR", "WR", "WW", "WW"))[1]) == optimised


def test_the_analysis_ends_at_the_answer_where_its_tags_are_missing():
    assert analysis_span("oops <answer>1</answer>") == (0, 5)
    assert analysis_span("<analysis>open <answer>1</answer>") == (0, 15)
    assert analysis_span("no tags at all") is None


# --- RLCR -------------------------------------------------------------------------------------


def test_rlcr_averages_its_turns_and_trains_the_last():
    recipe = RLCR(group_size=2, horizon=3, scale_rewards="none")
    sure, doubtful = (f"<self_check>CONFIDENCE: {c}</self_check>" for c in (0.9, 0.2))
    first = [WRONG + sure, WRONG + doubtful, RIGHT + sure]
    group, samples = credited(recipe, lambda i, n, _: first[n] if i == 0 else WRONG + sure)
    # Correctness, Brier score and forms: .19 + .8, .96 + .8, 1 + .99 + .8 against .19 + .8 thrice.
    assert group.returns == pytest.approx(((0.99 + 1.76 + 2.79) / 3, 0.99))
    gap = ((0.99 + 1.76 + 2.79) / 3 - 0.99) / 2
    assert advantages(samples) == pytest.approx([gap, -gap])
    assert texts(samples) == [RIGHT + sure, WRONG + sure]
    # In another order they earn the same: nothing to learn.
    group, _ = credited(recipe, lambda i, n, _: first[n - i])
    assert group.degenerate


# --- SVR+ -------------------------------------------------------------------------------------


def svr_plus(**options: Any) -> tuple[SVRPlus, Group, list[Sample]]:
    fixed = {"group_size": 2, "weights": RewardWeights(alpha=0.0), "scale_rewards": "none"}
    recipe = SVRPlus(proper=False, **fixed, **options)
    return recipe, *credited(recipe, lambda i, n, _: THREE_TURNS[i][n])


def test_svr_plus_credits_each_section_of_each_turn():
    _, group, samples = svr_plus(turns="all")
    earned = [[sections(reward) for reward in rewards] for rewards in group.rewards]
    assert earned[0] == [pytest.approx(e) for e in [(0.4, -0.225), (1.3, 1.12), (1.7, 0.72)]]
    assert earned[1] == [pytest.approx(e) for e in [(0.4, 1.08), (0.1, 0.775), (1.7, -0.025)]]
    # Solutions to go: 3.4 / 3, 1.5, 1.7 against 2.2 / 3, 0.9, 1.7. Self-checks: each turn's own.
    first = [0.2, -0.6525, 0.3, 0.1725, 0.0, 0.3725]
    assert advantages(samples) == pytest.approx([*first, *(-a for a in first)])
    for place, text in enumerate(THREE_TURNS[0]):
        check = text.index("<self_check>")
        parts = [sample.text_span for sample in samples[2 * place : 2 * place + 2]]
        assert parts == [(0, check), (check, len(text) + 1)]


def test_svr_plus_credits_whole_turns_with_their_total_to_go():
    _, _, samples = svr_plus(turns="all", sections=False)
    # Totals 0.175, 2.42, 2.42 and 1.48, 0.875, 1.675.
    first = [(5.015 - 4.03) / 6, (2.42 - 1.275) / 2, (2.42 - 1.675) / 2]
    assert advantages(samples) == pytest.approx([*first, *(-a for a in first)])
    assert {sample.text_span for sample in samples} == {None}


def test_svr_plus_draws_each_turn_equally_often_and_credits_it_as_it_credits_all():
    # By trajectory and turn: the solution's advantage and the self-check's, as above.
    of_turn = [[(0.2, -0.6525), (0.3, 0.1725), (0.0, 0.3725)]]
    of_turn.append([(-solution, -check) for solution, check in of_turn[0]])
    recipe, group, _ = svr_plus(turns="drawn")
    draws = Counter()
    for step in range(900):
        samples = recipe.credit(replace(group, seeds=SeedContext(step=step)))
        written = texts(samples)
        drawn = [THREE_TURNS[i].index(written[2 * i]) for i in (0, 1)]
        assert written[1::2] == written[::2]
        expected = [advantage for i, t in enumerate(drawn) for advantage in of_turn[i][t]]
        assert advantages(samples) == pytest.approx(expected)
        draws[tuple(drawn)] += 1
    # Of 900 draws of two turns, each of the 9 pairs has 100, with a deviation of
    # sqrt(900 * 1/9 * 8/9) = 9.4: five of them are 47.
    assert len(draws) == 9
    assert all(abs(count - 100) < 47 for count in draws.values())


def test_svr_plus_can_optimise_as_few_sequences_as_svr():
    every, group, whole = svr_plus(turns="all")
    some, _, _ = svr_plus(turns="all", optimised=5)
    assert (every.samples_per_problem, some.samples_per_problem) == (12, 5)
    places = set()
    for step in range(40):
        chosen = some.credit(replace(group, seeds=SeedContext(step=step)))
        indices = [whole.index(sample) for sample in chosen]
        assert indices == sorted(set(indices))
        assert len(indices) == 5
        places.update(indices)
    assert places == set(range(12))
    assert svr_plus(optimised=99)[0].samples_per_problem == 4


def test_svr_plus_holds_the_end_of_a_turn_to_account_for_a_missing_self_check():
    weights = RewardWeights(cal=0, over=0, detect=0, ready=0, fmt=1.0)
    options = {"scale_rewards": "none", "turns": "all", "proper": False}
    recipe = SVRPlus(group_size=2, horizon=1, weights=weights, **options)
    check = "<self_check>VERDICT: CORRECT; CONFIDENCE: 1.00</self_check>"
    _, samples = credited(recipe, lambda i, *_: [RIGHT + check, RIGHT][i])
    end = len(RIGHT)
    assert [s.text_span for s in samples[2:]] == [(0, end), (end, end + 1)]
    # The form of a self-check earns 1, its absence -1.
    assert [samples[k].advantage for k in (1, 3)] == [1.0, -1.0]


def test_svr_plus_takes_a_turn_of_a_self_check_alone_as_one_sequence():
    recipe = SVRPlus(group_size=2, horizon=1, turns="all")
    _, samples = credited(recipe, lambda i, *_: ["<Self_Check>", RIGHT][i])
    assert samples[0].text_span == (0, len("<Self_Check>") + 1)
    assert len(samples) == 3


# --- exact credit of the self-check -------------------------------------------------------------


def choices_of(*written: str, **options: Any) -> list[list[Choice]]:
    """The choices of the self-checks of the turns of two equal trajectories: of the first's."""
    horizon = len(written)
    recipe = SVRPlus(group_size=2, horizon=horizon, exact_check=1.0, **options)
    _, samples = credited(recipe, lambda _, n, __: written[n])
    checks = [sample for sample in samples if sample.choices is not None]
    assert len(checks) == 2 * horizon
    assert len(samples) <= recipe.samples_per_problem
    assert advantages(checks) == [0.0] * len(checks)
    assert texts(checks) == [*written, *written]
    return [list(sample.choices or ()) for sample in checks[:horizon]]


def test_every_turns_self_check_is_two_choices_with_proper_scores():
    right = f"{RIGHT}\n<self_check>VERDICT: UNSURE; CONFIDENCE: 0.8</self_check>"
    wrong = f"{WRONG}\n<self_check>VERDICT: CORRECT; CONFIDENCE: .25</self_check>"
    of_right, of_wrong = choices_of(right, wrong)
    verdict, number = of_right
    assert right[slice(*verdict.span)] == "UNSURE"
    assert verdict.alternatives == ("CORRECT", "INCORRECT", "UNSURE")
    # Right: .5 (1 - .2^2) = .48 for the confidence; CORRECT earns .3, the others nothing.
    assert verdict.scores == pytest.approx((0.78, 0.48, 0.48))
    assert (right[slice(*number.span)], number.alternatives) == ("8", tuple("0123456789"))
    assert number.scores == pytest.approx([0.5 * (1 - (1 - d / 10) ** 2) for d in range(10)])
    verdict, number = of_wrong
    # Wrong: .5 (1 - .25^2) = .46875; CORRECT loses .8, INCORRECT earns .2.
    assert verdict.scores == pytest.approx((-0.33125, 0.66875, 0.46875))
    assert (wrong[slice(*number.span)], len(number.alternatives)) == ("25", 100)
    assert number.alternatives[7] == "07"
    assert number.scores[7] == pytest.approx(0.5 * (1 - 0.07**2) - 0.8)


def test_decimals_behind_the_varied_ones_stay_as_they_are_stated():
    ((_, number),) = choices_of(
        f"{RIGHT}<self_check>VERDICT: UNSURE; CONFIDENCE: 0.805</self_check>"
    )
    # Right: .5 (1 - (1 - .d5)^2) in hundredths, with 5 thousandths.
    expected = [0.5 * (1 - (1 - d / 100 - 0.005) ** 2) for d in range(100)]
    assert number.scores == pytest.approx(expected)


def test_the_weight_scales_every_score_and_the_others_stay():
    ((once, _),) = choices_of(THREE_TURNS[0][0])
    recipe = SVR(group_size=2, horizon=1, exact_check=3.0)
    _, samples = credited(recipe, lambda *_: THREE_TURNS[0][0])
    assert len(samples) == recipe.samples_per_problem == 4
    assert samples[2].choices is not None
    assert samples[2].choices[0].scores == pytest.approx([3 * score for score in once.scores])
    assert credited(replace(recipe, exact_check=0.0), lambda *_: RIGHT)[1] == [
        sample for sample in credited(recipe, lambda *_: RIGHT)[1] if sample.choices is None
    ]


BLOCK = "<self_check>VERDICT: {}; CONFIDENCE: {}</self_check>"


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        (RIGHT, []),
        (RIGHT + "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9", []),  # never closed
        (RIGHT + "<self_check>VERDICT: CORRECT</self_check>", []),
        (RIGHT + BLOCK.format("MAYBE", "0.9"), []),
        (RIGHT + BLOCK.format("right", "0.9"), ["9"]),
        *(
            (RIGHT + BLOCK.format("CORRECT", number), ["CORRECT"])
            for number in ("1.0", "95%", "0.9%", "-0.5", "1", "0.")
        ),
        (RIGHT + BLOCK.format("CORRECT", "0.9" + "9" * 999), ["CORRECT", "99"]),
        # Only what decides: the first block, of what was not thought.
        (
            NO_THINKING + BLOCK.format("UNSURE", "0.3") + "or 3" + BLOCK.format("CORRECT", "0.9"),
            ["UNSURE", "3"],
        ),
        (
            f"<think>{BLOCK.format('CORRECT', '0.9')}</think>5" + BLOCK.format("INCORRECT", "0.1"),
            ["INCORRECT", "1"],
        ),
    ],
)
def test_only_what_was_stated_in_form_is_a_choice(written, chosen):
    (choices,) = choices_of(written)
    assert [written[slice(*choice.span)] for choice in choices] == chosen


def test_a_turn_that_was_cut_off_has_no_choice():
    text = RIGHT + BLOCK.format("CORRECT", "0.9")
    group, _ = credited(SVR(group_size=2, horizon=1), lambda *_: text)
    (turn,) = group.scored[0]
    assert len(check_choices(turn, 0, RewardWeights())) == 2
    assert check_choices(replace(turn, truncated=True), 0, RewardWeights()) == ()
