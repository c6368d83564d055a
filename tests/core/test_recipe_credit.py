"""Who learns, and with what advantage: every number is worked out by hand."""

from dataclasses import replace
from math import sqrt

import pytest

from svr_lightning.core.credit import max_to_go
from svr_lightning.core.evidence import token_span
from svr_lightning.core.seeds import SeedContext
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.recipes.igrpo import IGRPO
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.recipes.murphy import Murphy
from svr_lightning.recipes.oracle import Oracle
from svr_lightning.recipes.scrpo import ScRPO, analysis_span
from svr_lightning.tasks import get_task
from tests.recipes import RIGHT, WRONG, advantages, play, scripts, texts

EPS = 1e-4
PAIR = 0.5 / (sqrt(0.5) + EPS)
"""Advantages of the values 1 and 0 among themselves: mean 0.5, deviation sqrt(0.5)."""


# --- GRPO and GSPO ----------------------------------------------------------------------------


def test_grpo_compares_every_completion_of_a_problem() -> None:
    recipe = GRPO(group_size=4, reward_kind="binary")
    ((group,), _) = play(recipe, scripts("R", "W", "W", "W"))
    samples = recipe.credit(group)
    # 1, 0, 0, 0: mean 0.25, squared deviations 0.5625 + 3 * 0.0625 = 0.75, over 3, root 0.5.
    expected = [0.75 / (0.5 + EPS), *[-0.25 / (0.5 + EPS)] * 3]
    assert advantages(samples) == pytest.approx(expected)
    assert texts(samples) == [RIGHT, WRONG, WRONG, WRONG]


def test_the_long_output_safeguard_is_a_term_of_each_turn_and_off_by_default() -> None:
    rows = scripts("RW", "WR")
    plain = GRPOMT(group_size=2, horizon=2, reward_kind="binary")
    assert "long_output" not in play(plain, rows)[0][0].rewards[0][0].terms
    # R has 40 tokens and W the same: 40 is 10 beyond 50 - 20 = 30, and -10 / 20 = -0.5.
    limited = replace(plain, soft_max_length=50, soft_cache_length=20)
    ((group,), _) = play(limited, rows)
    assert dict(group.rewards[0][0].terms) == {"correct": 1.0, "long_output": -0.5}
    assert group.returns == (-0.5, 0.5)  # of the last turns, which the return covers
    ((group,), _) = play(replace(limited, soft_max_length=25), rows)
    assert group.returns == (-1.75, -0.75)  # beyond soft_max_length it goes on falling


def test_optimising_some_completions_keeps_their_advantages_among_all() -> None:
    recipe = GRPO(group_size=8, optimised=3, reward_kind="binary")
    written = [(RIGHT if i < 2 else WRONG).replace("xx", str(i)) for i in range(8)]
    ((group,), _) = play(recipe, lambda program, *_: written[program])
    # 1, 1 and six 0: mean 1/4, squared deviations 2 * 9/16 + 6 * 1/16 = 3/2, over 7.
    std = sqrt(3 / 14) + EPS
    among_all = {text: (0.75 if i < 2 else -0.25) / std for i, text in enumerate(written)}
    some = recipe.credit(group)
    assert (recipe.samples_per_problem, len(set(texts(some)))) == (3, 3)
    assert advantages(some) == pytest.approx([among_all[text] for text in texts(some)])


# --- several turns ----------------------------------------------------------------------------


def test_grpo_mt_gives_all_turns_the_advantage_of_their_trajectory() -> None:
    recipe = GRPOMT(group_size=2, reward_kind="binary")
    ((group,), _) = play(recipe, scripts("WWR", "RRW"))
    samples = recipe.credit(group)
    assert advantages(samples) == pytest.approx([PAIR] * 3 + [-PAIR] * 3)
    assert texts(samples) == [WRONG, WRONG, RIGHT, RIGHT, RIGHT, WRONG]


def test_the_oracle_averages_the_solve_reward_and_trains_the_last_turn() -> None:
    recipe = Oracle(group_size=2, length_scale=100)
    ((group,), _) = play(recipe, scripts("WWR", "WWW"))
    # Wrong 0.4; wrong again 0.4 - 0.3; then right 0.8 + 0.3 + 0.4, or wrong again.
    assert group.returns == pytest.approx(((0.4 + 0.1 + 1.5) / 3, (0.4 + 0.1 + 0.1) / 3))
    assert texts(recipe.credit(group)) == [RIGHT, WRONG]


def test_igrpo_learns_from_refinements_alone() -> None:
    recipe = IGRPO(drafts=3, group_size=2, reward_kind="binary")
    written = [
        text.replace("xx", str(i)) for i, text in enumerate([WRONG, RIGHT, WRONG, WRONG, RIGHT])
    ]
    ((group,), actors) = play(recipe, lambda _, prompt, __: written[prompt])
    samples = recipe.credit(group)
    assert texts(samples) == written[3:]
    assert advantages(samples) == pytest.approx([-PAIR, PAIR])
    assert [t.parent for t in group.trajectories] == [None, None, None, 1, 1]
    assert [t.turns[0].index for t in group.trajectories] == [1, 1, 1, 2, 2]
    assert all(written[1] in prompt[1]["content"] for prompt in actors.prompts[3:])
    # The drafts differ, but the refinements do not: nothing to learn.
    ((same,), _) = play(recipe, scripts("WRW" + "RR"))
    assert same.degenerate


def test_igrpo_draws_among_equally_good_drafts_by_the_runs_seed() -> None:
    drafts = [f"<think>{i}</think>\n<answer>8+4-2</answer>" for i in range(6)]
    recipe = IGRPO(drafts=6, group_size=2)

    def choice(step: int) -> int | None:
        place = SeedContext(run_seed=1, step=step)
        ((group,), _) = play(recipe, lambda _, n, __: [*drafts, WRONG, WRONG][n], place=place)
        return group.trajectories[-1].parent

    chosen = [choice(step) for step in range(20)]
    assert chosen == [choice(step) for step in range(20)]
    assert len(set(chosen)) > 3


# --- Murphy -----------------------------------------------------------------------------------

CHAINS = ("WRW", "WWW", "RWW")


def test_murphys_chains_credit_failures_that_were_mended() -> None:
    recipe = Murphy(group_size=3, reward_kind="binary")
    ((group,), _) = play(recipe, scripts(*CHAINS))
    samples = recipe.credit(group)
    # Turn 1: 1 (mended), 0, 1: mean 2/3, variance (2 * 1/9 + 4/9) / 2 = 1/3.
    std = sqrt(1 / 3) + EPS
    # Turn 2: only the unsolved chains, 1 and 0. Turn 3: one chain is left, with nobody beside it.
    expected = [1 / 3 / std, PAIR, -2 / 3 / std, -PAIR, 0.0, 1 / 3 / std]
    assert advantages(samples) == pytest.approx(expected)
    assert texts(samples) == [WRONG, RIGHT, WRONG, WRONG, WRONG, RIGHT]
    assert recipe.samples_per_problem == 9


def test_murphys_tree_expands_failures_and_compares_siblings() -> None:
    recipe = Murphy(group_size=4, horizon=2, reward_kind="binary", shape="tree")
    # Roots R W W W; children are dealt to roots 1, 2, 3, 1 and say R W R W.
    ((group,), _) = play(recipe, scripts("RWWW" + "RWRW"))
    assert [t.parent for t in group.trajectories] == [None] * 4 + [1, 2, 3, 1]
    # Roots 1, 1, 0, 1: mean 3/4, variance (3 / 16 + 9 / 16) / 3 = 1/4. The children of root 1 are
    # siblings, 1 and 0; those of 2 and 3 have none and are compared with each other, 0 and 1.
    up, down = 0.25 / (0.5 + EPS), -0.75 / (0.5 + EPS)
    expected = [up, up, down, up, PAIR, -PAIR, PAIR, -PAIR]
    assert advantages(recipe.credit(group)) == pytest.approx(expected)


def test_a_tree_ends_where_nobody_failed() -> None:
    recipe = Murphy(group_size=2, shape="tree")
    ((group,), actors) = play(recipe, scripts("RW" + "RR"))
    assert (len(actors.prompts), group.degenerate) == (4, True)


def test_credit_flows_up_a_deeper_tree() -> None:
    #      0: 0          1: 0.2
    #    2: 0   3: 0.5
    #  4: 1
    rewards, parents = [0.0, 0.2, 0.0, 0.5, 1.0], [None, None, 0, 0, 2]
    assert max_to_go(rewards, parents) == [1.0, 0.2, 1.0, 0.5, 1.0]


# --- MLMT-RL and ScRPO ------------------------------------------------------------------------


def test_mlmt_rl_gives_solver_and_tutor_the_last_answers_reward() -> None:
    recipe = MLMTRL(group_size=2, reward_kind="binary")
    ((group,), actors) = play(recipe, scripts("WWR", "RRW"))
    assert advantages(recipe.credit(group)) == pytest.approx([PAIR] * 3 + [-PAIR] * 3)
    assert actors.limits == [None, 512, None] * 2


def test_mlmt_rl_compares_an_answer_with_the_answer_before_and_not_with_feedback() -> None:
    recipe = MLMTRL(group_size=3, reward_kind="solve")
    ((group,), _) = play(recipe, scripts("RWR", "RWW", "WWR"))
    # Kept right: 0.3. Made wrong: 0.3 (0 - 1) - 0.5. Made right: 0.3.
    assert [turns[2].terms["prog"] for turns in group.rewards] == pytest.approx([0.3, -0.8, 0.3])


ANALYSED = f"<analysis>sign</analysis>{RIGHT}"


def test_scrpo_trains_first_answers_and_the_analysis_of_corrections_that_succeed() -> None:
    recipe = ScRPO(group_size=3, horizon=2, reward_kind="binary")
    written = [[RIGHT, RIGHT], [WRONG, ANALYSED], [WRONG, WRONG]]
    ((group,), _) = play(recipe, lambda i, n, _: written[i][n])
    samples = recipe.credit(group)
    # First answers 1, 0, 0: mean 1/3, variance (4/9 + 2/9) / 2 = 1/3. Of the corrections of the two
    # wrong ones, 1 and 0, the second has a negative advantage.
    std = sqrt(1 / 3) + EPS
    assert advantages(samples) == pytest.approx([2 / 3 / std, -1 / 3 / std, -1 / 3 / std, PAIR])
    assert [sample.text_span for sample in samples] == [None, None, None, (0, 25)]
    assert texts(samples)[-1][slice(0, 25)] == "<analysis>sign</analysis>"


def test_scrpo_judges_a_correction_by_the_answer_right_before_it() -> None:
    def analysed(note: str) -> str:
        return f"<analysis>{note}</analysis>{RIGHT}"

    recipe = ScRPO(group_size=4, horizon=3, scale_rewards="none")
    written = [
        [WRONG, WRONG, analysed("a3")],
        [WRONG, WRONG, WRONG],
        [WRONG, analysed("c2"), WRONG],
        [RIGHT, WRONG, analysed("d3")],
    ]
    ((group,), _) = play(recipe, lambda program, prompt, _: written[program][prompt])
    samples = recipe.credit(group)
    # An analysis is no fault of form: 1.4 where right, 0.4 where wrong.
    earned = [[turn.total for turn in turns] for turns in group.rewards]
    expected = [[0.4, 0.4, 1.4], [0.4, 0.4, 0.4], [0.4, 1.4, 0.4], [1.4, 0.4, 1.4]]
    assert earned == [pytest.approx(row) for row in expected]
    # Turn 1: mean 0.65. Turn 2 corrects a, b and c: 0.4, 0.4, 1.4, so that c is 2/3 above the mean.
    # Turn 3 corrects a, b and d, wrong at turn 2: 1.4, 0.4, 1.4, so that a and d are 1/3 above it.
    assert advantages(samples) == pytest.approx([-0.25] * 3 + [0.75, 2 / 3, 1 / 3, 1 / 3])
    assert texts(samples)[4:] == [analysed("c2"), analysed("a3"), analysed("d3")]
    assert {sample.text_span for sample in samples[4:]} == {(0, len("<analysis>c2</analysis>"))}


def test_scrpo_scores_the_form_of_what_is_left_without_the_analysis() -> None:
    task = get_task("countdown")
    assert task.format_score(ANALYSED) < 1
    assert ScRPO().dialogue.formats(task, ANALYSED) == (1.0, 0.0)


def test_scrpo_corrects_nothing_of_problems_that_are_always_or_never_solved() -> None:
    recipe = ScRPO(group_size=2, horizon=2)
    for rows in [("WR", "WW"), ("RW", "RR")]:
        ((group,), _) = play(recipe, scripts(*rows))
        assert advantages(recipe.credit(group)) == [0.0, 0.0]


def test_the_analysis_ends_at_the_answer_where_its_tags_are_missing() -> None:
    assert analysis_span("oops <answer>1</answer>") == (0, 5)
    assert analysis_span("<analysis>open <answer>1</answer>") == (0, 15)
    assert analysis_span("no tags at all") is None


def test_a_span_of_characters_covers_whole_tokens() -> None:
    pieces = ["<think>", "ab", "cd", "", "ef"]
    size = [len("".join(pieces[: k + 1])) for k in range(5)]
    for span, tokens in [
        ((7, 9), (1, 2)),
        ((8, 10), (1, 3)),
        ((0, 13), (0, 5)),
        ((12, 99), (4, 5)),
    ]:
        assert token_span(span, 5, lambda k: size[k - 1]) == tokens
