"""Details of rewards, credit and prompts that only late turns or rare options show, by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest

from svr_lightning.core.rewards import (
    BaselineReward,
    Reward,
    RewardWeights,
    TurnReward,
    baseline_rewards,
    calibrated_rewards,
    confidence_score,
    sections,
    turn_rewards,
)
from svr_lightning.core.seeds import SeedContext, derive_seed
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import ScoredTurn, Verdict
from svr_lightning.engines.base import Request
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.dialogues import PromptRequest, SelfVerifying, chain
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.recipes.igrpo import IGRPO
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.recipes.murphy import Murphy
from svr_lightning.recipes.oracle import Oracle
from svr_lightning.recipes.rlcr import RLCR
from svr_lightning.recipes.scrpo import ScRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.rollout.collect import collect_rollout
from svr_lightning.training.logs import rollout_stats
from tests.recipes import RECIPES, RIGHT, WRONG, advantages, completion, play, scripts, ten
from tests.scripted import DECODING, PROBLEMS, RENDERER, says, words
from tests.scripted_engine import ScriptedEngine

# --- rewards ----------------------------------------------------------------------------------

CUT_SHORT = ScoredTurn(correct=True, truncated=True, completion_tokens=256, task_format=1.0)


@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        ("binary", {"correct": 1.0}),
        ("binary_fmt", {"correct": 1.0, "task_format": 0.4}),
        # abs = 1 - 0.5 * 256 / 1024.
        ("solve", {"abs": 0.875, "prog": 0.0, "trunc": -0.5, "task_format": 0.4}),
    ],
)
def test_a_baselines_terms_of_a_right_answer_in_a_truncated_completion(
    kind: BaselineReward, terms: dict[str, float]
) -> None:
    (reward,) = baseline_rewards([CUT_SHORT], kind)
    assert dict(reward.terms) == pytest.approx(terms)
    assert reward.total == pytest.approx(sum(terms.values()))


def test_the_proper_reward_pays_for_verdicts_and_not_for_their_confidence() -> None:
    def over_and_ready(correct: bool, verdict: Verdict, confidence: float) -> tuple[float, float]:
        turn = replace(CUT_SHORT, truncated=False, correct=correct)
        turn = replace(turn, verdict=verdict, confidence=confidence)
        (reward,) = turn_rewards([turn], proper=True)
        return reward.over, reward.ready

    for confidence in (0.0, 0.3, 1.0):
        assert over_and_ready(False, Verdict.CORRECT, confidence) == (-0.8, 0.0)
        assert over_and_ready(True, Verdict.CORRECT, confidence) == (0.0, 0.3)
        for verdict in (Verdict.INCORRECT, Verdict.UNSURE):
            for correct in (True, False):
                assert over_and_ready(correct, verdict, confidence) == (0.0, 0.0)


def test_the_sections_of_a_reward_are_the_solutions_terms_and_the_self_checks() -> None:
    reward = TurnReward(
        abs=1,
        prog=2,
        trunc=4,
        cal=8,
        over=16,
        detect=32,
        ready=64,
        task_format=128,
        self_check_format=256,
    )
    assert sections(reward) == (1 + 2 + 4 + 128, 8 + 16 + 32 + 64 + 256)
    assert reward.subtotals == {"solve": 7, "verify": 120, "format": 384}
    # A term of one's own belongs to the solution.
    assert sections(Reward.of(cal=1.0, brief=0.5)) == (0.5, 1.0)


def test_svrs_reward_needs_a_self_check() -> None:
    with pytest.raises(ValueError, match="needs a self-check at every turn"):
        turn_rewards([CUT_SHORT])


# --- RLCR -------------------------------------------------------------------------------------

STATED = {
    # right, sure / wrong, sure / wrong, doubtful / right, no confidence / wrong, no block
    "R9": f"{RIGHT}<self_check>CONFIDENCE: 0.9</self_check>",
    "W9": f"{WRONG}<self_check>CONFIDENCE: 0.9</self_check>",
    "W2": f"{WRONG}<self_check>CONFIDENCE: 0.2</self_check>",
    "R-": f"{RIGHT}<self_check>sure</self_check>",
    "W-": WRONG,
}


def rlcr(written: Sequence[str], **options: Any) -> tuple[RLCR, Any]:
    recipe = RLCR(group_size=2, scale_rewards="none", **options)
    turns = len(written) // 2
    ((group,), _) = play(recipe, lambda program, n, _: STATED[written[program * turns + n]])
    return recipe, group


@pytest.mark.parametrize(
    ("score", "scores"),
    [
        # 1 - .1^2, 1 - .9^2, 1 - .2^2.
        ("brier", {"R9": 0.99, "W9": 0.19, "W2": 0.96}),
        # 1 + ln(q) / ln(1000), q = .9, .1, .8: ln q = -.10536, -2.30259, -.22314, over 6.90776.
        ("log", {"R9": 0.984747, "W9": 2 / 3, "W2": 0.967697}),
    ],
)
def test_rlcr_pays_for_correctness_confidence_and_form(
    score: Any, scores: dict[str, float]
) -> None:
    expected = {
        "R9": {"correct": 1.0, "cal": scores["R9"], "task_format": 0.4, "self_check_format": 0.4},
        "W9": {"correct": 0.0, "cal": scores["W9"], "task_format": 0.4, "self_check_format": 0.4},
        "W2": {"correct": 0.0, "cal": scores["W2"], "task_format": 0.4, "self_check_format": 0.4},
        # Without a confidence there is nothing to score, not even the prior's 0.5.
        "R-": {"correct": 1.0, "cal": 0.0, "task_format": 0.4, "self_check_format": 0.0},
        "W-": {"correct": 0.0, "cal": 0.0, "task_format": 0.4, "self_check_format": -0.4},
    }
    for name, terms in expected.items():
        _, group = rlcr([name, "W2"], score=score)
        assert dict(group.rewards[0][0].terms) == pytest.approx(terms, abs=1e-6), name


def test_a_truncated_answers_confidence_has_no_score() -> None:
    turn = replace(CUT_SHORT, confidence=0.9, self_check_format=1.0)
    (reward,) = calibrated_rewards([turn], "brier", RewardWeights())
    assert dict(reward.terms) == {
        "correct": 1.0,
        "cal": 0.0,
        "task_format": 0.4,
        "self_check_format": 0.4,
    }
    with pytest.raises(ValueError, match="needs a confidence at every turn"):
        calibrated_rewards([CUT_SHORT], "brier", RewardWeights())


@pytest.mark.parametrize("score", ["brier", "log"])
@pytest.mark.parametrize("p", [0.05, 0.25, 0.5, 0.9])
def test_the_probability_of_being_correct_is_the_best_confidence(score: Any, p: float) -> None:
    def expected(confidence: float) -> float:
        right, wrong = (confidence_score(confidence, y, score) for y in (True, False))
        return p * right + (1 - p) * wrong

    grid = [step / 100 for step in range(101)]
    assert max(grid, key=expected) == pytest.approx(p)
    # A bounded score leaves being right worth more: y + score grows with p.
    assert (p + 0.01) + max(map(expected, grid)) > p
    for y in (True, False):
        assert min(confidence_score(c, y, score) for c in grid) >= 0.0
        assert max(confidence_score(c, y, score) for c in grid) == 1.0


def test_rlcr_averages_its_turns_and_trains_the_last() -> None:
    recipe, group = rlcr(["W9", "W2", "R9", "R9", "W9", "W2"], horizon=3)
    # (.99 + 1.76 + 2.79) / 3 and (2.79 + .99 + 1.76) / 3 are equal: nothing to learn.
    assert group.degenerate
    recipe, group = rlcr(["W9", "W2", "R9", "W9", "W9", "W9"], horizon=3)
    # .19 + .8, .96 + .8, 1 + .99 + .8 against three times .19 + .8.
    assert group.returns == pytest.approx(((0.99 + 1.76 + 2.79) / 3, 0.99))
    samples = recipe.credit(group)
    gap = ((0.99 + 1.76 + 2.79) / 3 - 0.99) / 2
    assert advantages(samples) == pytest.approx([gap, -gap])
    assert ["".join(map(chr, s.completion_ids)) for s in samples] == [STATED["R9"], STATED["W9"]]


# --- SVR+: three turns that differ in every term ----------------------------------------------

NO_THINKING = "<answer>8+4-2</answer>"


def checked(text: str, verdict: str, confidence: float) -> str:
    return f"{text}\n<self_check>VERDICT: {verdict}; CONFIDENCE: {confidence}</self_check>"


WRITTEN = [
    [
        checked(WRONG, "CORRECT", 0.9),
        checked(NO_THINKING, "CORRECT", 0.8),
        checked(RIGHT, "INCORRECT", 0.4),
    ],
    [checked(WRONG, "INCORRECT", 0.2), checked(WRONG, "UNSURE", 0.5), RIGHT],
]
"""What two trajectories say. With alpha = 0 their turns earn

    ==========  ==============================  ===========================================
    turn        solution                        self-check
    ==========  ==============================  ===========================================
    first, 1    0.4 form                        .5 (1 - .81) - .8 * .9 + .4     = -0.225
    first, 2    1 + .3, no form         = 1.3   .5 (1 - .04) + .3 * .8 + .4     =  1.12
    first, 3    1 + .3 + .4             = 1.7   .5 (1 - .36) + .4               =  0.72
    second, 1   0.4 form                        .5 (1 - .04) + .2 + .4          =  1.08
    second, 2   -.3 + .4                = 0.1   .5 (1 - .25) + .4               =  0.775
    second, 3   1 + .3 + .4             = 1.7   .5 (1 - .25) - .4, no block     = -0.025
    ==========  ==============================  ===========================================
"""


def svr_plus(**options: Any) -> tuple[SVRPlus, Any]:
    fixed = {"group_size": 2, "weights": RewardWeights(alpha=0.0), "scale_rewards": "none"}
    recipe = SVRPlus(proper=False, **fixed, **options)
    ((group,), _) = play(recipe, lambda program, prompt, _: WRITTEN[program][prompt])
    return recipe, group


def test_svr_plus_credits_each_section_of_each_turn() -> None:
    recipe, group = svr_plus(turns="all")
    earned = [[sections(reward) for reward in rewards] for rewards in group.rewards]
    assert earned[0] == [pytest.approx(e) for e in [(0.4, -0.225), (1.3, 1.12), (1.7, 0.72)]]
    assert earned[1] == [pytest.approx(e) for e in [(0.4, 1.08), (0.1, 0.775), (1.7, -0.025)]]
    # Solutions to go: 3.4 / 3, 1.5, 1.7 against 2.2 / 3, 0.9, 1.7. Self-checks: each turn's own.
    first = [0.2, -0.6525, 0.3, 0.1725, 0.0, 0.3725]
    samples = recipe.credit(group)
    assert advantages(samples) == pytest.approx([*first, *(-a for a in first)])
    ends = [0, len(WRONG) + 1, len(NO_THINKING) + 1, len(RIGHT) + 1]
    for t, text in enumerate(WRITTEN[0], start=1):
        assert [s.text_span for s in samples[2 * t - 2 : 2 * t]] == [
            (0, ends[t]),
            (ends[t], len(text) + 1),
        ]


def test_svr_plus_credits_whole_turns_with_their_total_to_go() -> None:
    recipe, group = svr_plus(turns="all", sections=False)
    # Totals 0.175, 2.42, 2.42 and 1.48, 0.875, 1.675.
    first = [(5.015 - 4.03) / 6, (2.42 - 1.275) / 2, (2.42 - 1.675) / 2]
    samples = recipe.credit(group)
    assert advantages(samples) == pytest.approx([*first, *(-a for a in first)])
    assert {sample.text_span for sample in samples} == {None}


def test_svr_plus_credits_the_drawn_turns_as_it_credits_all() -> None:
    every, group = svr_plus(turns="all")
    of_turn = advantages(every.credit(group))
    recipe, _ = svr_plus(turns="drawn")
    for step in range(12):
        placed = replace(group, seeds=SeedContext(step=step))
        drawn = [recipe.drawn(placed, i) for i in (0, 1)]
        expected = [of_turn[6 * i + 2 * t + part] for i, t in enumerate(drawn) for part in (0, 1)]
        assert advantages(recipe.credit(placed)) == expected


def test_svr_plus_can_optimise_as_few_sequences_as_svr() -> None:
    every, group = svr_plus(turns="all")
    some, _ = svr_plus(turns="all", optimised=5)
    assert (every.samples_per_problem, some.samples_per_problem) == (12, 5)
    whole = every.credit(group)
    places = set()
    for step in range(40):
        chosen = some.credit(replace(group, seeds=SeedContext(step=step)))
        indices = [whole.index(sample) for sample in chosen]
        assert indices == sorted(set(indices))
        assert len(indices) == 5
        places.add(tuple(indices))
    assert {index for each in places for index in each} == set(range(12))
    assert svr_plus(optimised=99)[0].samples_per_problem == 4


# --- options that every recipe has ------------------------------------------------------------

PAIR = 0.5 / (sqrt(0.5) + 1e-4)
ONLY_ABS = RewardWeights(
    alpha=0, delta=0, keep=0, reg=0, fail=0, cal=0, over=0, detect=0, ready=0, fmt=0
)
TWO: dict[str, tuple[type[Recipe], dict[str, Any], tuple[str, ...]]] = {
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
    ((group,), _) = play(recipe, scripts(*rows))
    return recipe, group


@pytest.mark.parametrize("name", TWO)
def test_the_scale_of_advantages_is_an_option(name: str) -> None:
    for scale, expected in (("group", PAIR), ("none", 0.5)):
        recipe, group = two(name, scale_rewards=scale)
        found = sorted(a for a in advantages(recipe.credit(group)) if a)
        half = len(found) // 2
        assert half
        assert found == pytest.approx([-expected] * half + [expected] * half)


@pytest.mark.parametrize(("tau", "optimised"), [(0.1875, 5), (0.19, 4)])
def test_scrpo_corrects_where_the_share_of_right_answers_varies_enough(
    tau: float, optimised: int
) -> None:
    # A quarter is right: 1/4 * 3/4 = 0.1875. One of three corrections succeeds.
    recipe = ScRPO(group_size=4, horizon=2, min_variance=tau)
    ((group,), _) = play(recipe, scripts("RR", "WR", "WW", "WW"))
    assert len(recipe.credit(group)) == optimised


# --- trees ------------------------------------------------------------------------------------


def test_a_trees_third_turn_goes_on_from_the_second() -> None:
    recipe = Murphy(group_size=3, horizon=3, shape="tree", reward_kind="binary")
    labels = "WRW" + "WRW" + "RWW"
    written = [
        (RIGHT if letter == "R" else WRONG).replace("xx", f"node {n}")
        for n, letter in enumerate(labels)
    ]
    ((group,), actors) = play(recipe, lambda _, n, __: written[n])
    # Failed roots 0 and 2 get children 3, 5 and 4; failed 3 and 5 get 6, 8 and 7.
    assert [t.parent for t in group.trajectories] == [None] * 3 + [0, 2, 0] + [3, 5, 3]
    assert [t.turns[0].index for t in group.trajectories] == [1] * 3 + [2] * 3 + [3] * 3
    for n in range(3, 9):
        prompt = actors.prompts[n][1]["content"]
        parent = group.trajectories[n].parent
        assert [m for m in range(9) if f"node {m}<" in prompt] == [parent]
        assert prompt.startswith(f"[T={group.trajectories[n].turns[0].index}]")


# --- late turns of every dialogue -------------------------------------------------------------


def shown(recipe: Recipe, turns: int) -> list[tuple[int, set[int]]]:
    """Of each prompt the turn that it names, or 0, and which earlier turns' texts it shows."""
    texts = [checked(f"<think>text{t}.</think>{NO_THINKING}", "UNSURE", 0.5) for t in range(1, 99)]
    program = chain(recipe.dialogue, ten(), 0, turns)
    found = []
    (requested,) = next(program)
    for text in texts[:turns]:
        messages = requested.messages if isinstance(requested, PromptRequest) else requested
        prompt = messages[1]["content"]
        named = next((t for t in range(1, 99) if prompt.startswith(f"[T={t}]")), 0)
        found.append((named, {t for t in range(1, 99) if f"text{t}." in prompt}))
        try:
            (requested,) = program.send([completion(text)])
        except StopIteration:
            break
    return found


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "mlmt_rl"])
def test_every_later_prompt_shows_the_turn_before_and_no_other(name: str) -> None:
    expected = [(0, set())] + [(t, {t - 1}) for t in range(2, 11)]
    assert shown(RECIPES[name][0], 10) == expected


def test_a_tutor_sees_the_latest_answer_and_the_solver_that_answer_and_its_feedback() -> None:
    expected: list[tuple[int, set[int]]] = [(0, set())]
    for t in range(2, 10, 2):
        expected += [(0, {t - 1}), (t + 1, {t - 1, t})]
    assert shown(MLMTRL(), 9) == expected


@pytest.mark.parametrize("interface", ["joint", "verdict", "confidence"])
def test_svrs_prompts_state_the_self_check_of_the_turn_before(interface: Any) -> None:
    program = chain(SelfVerifying(interface), ten(), 0, 5)
    next(program)
    for verdict, confidence in (("CORRECT", 0.11), ("INCORRECT", 0.22), ("UNSURE", 0.33)):
        (prompt,) = program.send([completion(checked(RIGHT, verdict, confidence))])
        assert isinstance(prompt, list)
        header = prompt[1]["content"].splitlines()[0]
        assert (verdict in header) == (interface != "confidence")
        assert (f"{confidence:.2f}" in header) == (interface != "verdict")


# --- draws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["top_up", "batch"])
def test_every_attempt_of_resampling_has_its_own_seeds(mode: Any) -> None:
    """The same problem is drawn again, and its third attempt is the first with a difference."""
    problem = PROBLEMS[0]
    expected = [
        [
            derive_seed(5, step=3, problem_id=problem.id, sample=i, turn=1, attempt=attempt)
            for i in (0, 1)
        ]
        for attempt in range(3)
    ]
    seeds: list[int] = []

    def write(request: Request) -> list[int]:
        seeds.append(request.seed)
        right = request.seed == expected[2][0]
        return words(says("8+4-2" if right else "8", "UNSURE", 0.5))

    engine = ScriptedEngine(write)
    engine.sync(None, 3)
    (group,) = collect_rollout(
        engine,
        GRPO(group_size=2),
        [problem],
        renderer=RENDERER,
        sampling=DECODING,
        seed=5,
        step=3,
        resample=mode,
        fresh=lambda attempt, count, seen: [problem] * count,
    )
    assert sorted(seeds) == sorted(seed for attempt in expected for seed in attempt)
    assert len(set(seeds)) == 6
    assert group.seeds == SeedContext(run_seed=5, step=3, attempt=2)
    assert [sample.advantage > 0 for sample in group.samples] == [True, False]


# --- a user's own reward and dialogue ---------------------------------------------------------


def paid_for_length(turns: Sequence[ScoredTurn]) -> list[Reward]:
    return [Reward.of(correct=float(t.correct), long=t.completion_tokens / 100) for t in turns]


@pytest.mark.parametrize("name", TWO)
def test_every_recipe_takes_a_reward_of_ones_own(name: str) -> None:
    recipe, group = two(name, custom_reward=paid_for_length)
    rewards = [reward for rewards in group.rewards for reward in rewards]
    assert {tuple(reward.terms) for reward in rewards} == {("correct", "long")}
    assert (max(group.returns), min(group.returns)) == pytest.approx((1.4, 0.4))
    assert any(advantages(recipe.credit(group)))
    stats = rollout_stats([group], Confident())
    assert stats["train/reward/long"] == pytest.approx(0.4)
    assert {key for key in stats if key.startswith("train/reward/")} == {
        f"train/reward/{term}" for term in ("mean", "correct", "long")
    }


class ShortThoughts(SVR):
    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        rewards = zip(super().reward(scored), scored, strict=True)
        return [reward.plus(short=-len(turn.text) / 1000) for reward, turn in rewards]


def test_a_term_is_added_to_svrs_reward_by_a_subclass_of_four_lines() -> None:
    ((plain,), _) = play(SVR(group_size=2), lambda i, n, _: WRITTEN[i][n])
    ((group,), _) = play(ShortThoughts(group_size=2), lambda i, n, _: WRITTEN[i][n])
    for i, (ours, before) in enumerate(zip(group.rewards, plain.rewards, strict=True)):
        for t, (reward, svr) in enumerate(zip(ours, before, strict=True)):
            short = -len(group.trajectories[i].turns[t].completion.text) / 1000
            assert reward.terms == {**svr.terms, "short": short}
            assert reward.total == pytest.approx(svr.total + short)
            assert reward.subtotals == svr.subtotals
    assert group.returns == pytest.approx([sum(r.total for r in one) / 3 for one in group.rewards])


def test_a_reward_of_ones_own_may_be_a_number_made_of_text_and_problem() -> None:
    def echoes(turns: Sequence[ScoredTurn]) -> list[float]:
        return [turn.text.count(str(turn.problem and turn.problem.reference)) for turn in turns]

    ((group,), _) = play(GRPOMT(group_size=2, custom_reward=echoes), scripts("RRR", "WWW"))
    for rewards, trajectory in zip(group.rewards, group.trajectories, strict=True):
        texts = [turn.completion.text for turn in trajectory.turns]
        expected = [{"reward": text.count(group.problem.reference)} for text in texts]
        assert [reward.terms for reward in rewards] == expected


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda turns: [1.0], "returned 1 rewards for 3 turns; return one each"),
        (lambda turns: None, "returned NoneType for 3 turns; return one each"),
        (lambda turns: 1.0, "returned float for 3 turns; return one each"),
        (
            lambda turns: [1.0, math.nan, 1.0],
            r"returned Reward\(.*nan.*\) for turn 2; return a fin",
        ),
        (lambda turns: [math.inf] * 3, "for turn 1; return a finite number or a Reward"),
        (lambda turns: [10**400] * 3, "for turn 1; return a finite number or a Reward"),
        (lambda turns: [0.0, 0.0, None], "returned None for turn 3; return a finite"),
        (lambda turns: [Reward.of(x=None)] * 3, "for turn 1; return a finite"),  # type: ignore[arg-type]
        (lambda turns: ["1"] * 3, "returned '1' for turn 1; return a finite"),
    ],
)
def test_a_reward_that_is_none_is_refused_in_one_line(returned: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"custom_reward .*{message}") as caught:
        play(GRPOMT(group_size=2, custom_reward=returned), scripts("RRR", "RRR"))
    assert "\n" not in str(caught.value)


# --- methods without a self-check -------------------------------------------------------------


def test_a_method_without_a_self_check_has_none_and_logs_none() -> None:
    ((group,), _) = play(GRPOMT(group_size=2), lambda i, n, _: WRITTEN[i][n])
    assert {turn.check for t in group.trajectories for turn in t.turns} == {None}
    turns = [turn for turns in group.scored for turn in turns]
    assert {(t.verdict, t.confidence, t.self_check_format) for t in turns} == {(None, None, 0.0)}
    logged = " ".join(rollout_stats([group], Confident()))
    assert not any(word in logged for word in ("brier", "verdict", "confiden", "self_check"))
    ((group,), _) = play(SVR(group_size=2), lambda i, n, _: WRITTEN[i][n])
    stats = rollout_stats([group], Confident())
    # (.81 + .04 + .36 + .04 + .25 + .25) / 6; says CORRECT of a wrong answer once.
    assert stats["train/brier"] == pytest.approx(1.75 / 6)
    assert stats["train/overconfidence"] == pytest.approx(1 / 6)
    assert stats["train/verdict/unsure"] == pytest.approx(2 / 6)
