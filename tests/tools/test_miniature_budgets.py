"""Rows within equal budgets of tokens, over recordings whose answers are known."""

from pathlib import Path

import numpy as np
import pytest

from experiments.miniature import plan, summary
from experiments.miniature.budgets import RIVALS, budget_entries, is_rival, options_of, pairs_of
from experiments.miniature.reading import Seeds, recording_of
from experiments.miniature.summary import Answers, Frontier
from svr_lightning.analysis.sweep import ORACLE
from tests.trajectories import uncensored, write_results


def seeds_of(name: str, folder: Path, seeds: tuple[int, ...] = (42, 43)) -> Seeds:
    """Six problems, each a cluster of its own, judged with every seed."""
    write_results(folder / name, uncensored(), {}, {})
    recorded = (recording_of(name, folder / name),) * len(seeds)
    return Seeds(row=plan.BY_NAME[name], seeds=seeds, greedy=recorded, sampled=(), votes={})


def option(right: list[list[int]], tokens: float) -> Answers:
    answers = np.array(right, dtype=float)
    return Answers(right=answers, tokens=np.full(answers.shape, tokens))


FREE, RLCR, _, _, OWN = RIVALS
ALL, HALF, NONE = [1] * 6, [1, 1, 1, 0, 0, 0], [0] * 6


def test_the_gap_to_the_best_pair_is_measured_within_each_budget(tmp_path: Path) -> None:
    """Ours is right on all problems for 60 tokens. One rival is right on half of them for 55 with
    the first seed and on none with the second, the other on all of them for 150."""
    ours, chain, tutored = (seeds_of(name, tmp_path) for name in ("svr", "grpo_mt", "murphy"))
    own = Frontier(names=("sure",), answers=(option([ALL, ALL], 60),))
    cheap = Frontier(names=("cheap",), answers=(option([HALF, NONE], 55),))
    dear = Frontier(names=("dear",), answers=(option([ALL, ALL], 150),))
    found = pairs_of(ours, own, [(ours, own), (chain, cheap), (tutored, dear)], FREE)
    assert found["seeds"] == [42, 43]
    points = {point["budget"]: point for point in found["points"]}
    assert 50 not in points  # ours is not as cheap
    assert points[140]["pair"] == {"accuracy": 0.25, "tokens": 55, "options": ["cheap", "cheap"]}
    assert points[140]["gap"]["seeds"] == pytest.approx([0.5, 1.0])
    assert points[140]["gap"]["difference"] == pytest.approx(0.75)
    assert points[200]["pair"]["options"] == ["dear", "dear"]
    assert points[200]["gap"]["difference"] == 0


def test_rivals_without_some_seeds_count_only_where_none_has_all(tmp_path: Path) -> None:
    ours = seeds_of("svr", tmp_path, (43, 44))
    own = Frontier(names=("sure",), answers=(option([HALF, ALL], 60),))
    more = seeds_of("grpo_mt", tmp_path, (42, 43))
    rival = Frontier(names=("chain",), answers=(option([NONE, ALL], 60),))
    found = pairs_of(ours, own, [(more, rival)], FREE)
    assert found["seeds"] == [43]
    assert found["points"][0]["gap"]["seeds"] == pytest.approx([-0.5])
    whole = seeds_of("murphy", tmp_path, (43, 44))
    both = pairs_of(ours, own, [(more, rival), (whole, own)], FREE)
    assert (both["seeds"], both["points"][0]["gap"]["seeds"]) == ([43, 44], [0.0, 0.0])
    other = seeds_of("murphy", tmp_path, (42,))
    assert pairs_of(ours, own, [(other, rival)], FREE)["points"] == []


def test_rivals_are_trained_without_a_self_check_and_show_no_labels() -> None:
    def rival(name: str) -> bool:
        return is_rival(plan.BY_NAME[name])

    assert all(map(rival, ("grpo", "grpo_fresh", "grpo_mt", "igrpo", "murphy")))
    assert not any(map(rival, ("svr", "svr_plus", "rlcr", "oracle", "warm_start_neutral")))


def test_fresh_turns_are_rivals_too_rlcrs_and_its_own(tmp_path: Path) -> None:
    ours = seeds_of("svr_plus", tmp_path)
    own = Frontier(names=("sure",), answers=(option([HALF, HALF], 60),))
    rlcr = Frontier(names=("more",), answers=(option([ALL, HALF], 60),))
    fresh = Frontier(names=("less",), answers=(option([NONE, HALF], 60),))
    every = [
        (ours, own),
        (seeds_of("rlcr_fresh", tmp_path), rlcr),
        (seeds_of("svr_plus_fresh", tmp_path), fresh),
    ]
    gaps = {
        against: [p["gap"]["difference"] for p in pairs_of(ours, own, every, against)["points"]]
        for against in RIVALS
    }
    assert gaps[FREE] == []
    assert set(gaps[RLCR]) == {-0.25}
    assert set(gaps[OWN]) == {0.25}


def test_fresh_turns_up_to_the_first_right_one_stand_apart(tmp_path: Path) -> None:
    """Turns 1, 2 and 3 cost 100, 200 and 300 tokens of prompt alone; none is within 50 tokens."""
    fresh = seeds_of("grpo_fresh", tmp_path)
    sampled = summary.stop_families(fresh.tables)
    options = Frontier(names=("once",), answers=(option([HALF, HALF], 60),))
    found = budget_entries([(fresh, options, sampled)])
    (oracle,) = found["oracles"]
    assert oracle["name"] == "grpo_fresh"
    # a is right at turn 1, b, c and f at turn 2, d at turn 3, e at turn 1.
    assert oracle["points"][-1] == {
        "budget": 1120,
        "accuracy": 1.0,
        "tokens": pytest.approx((150 + 420 + 852 + 660 + 101 + 500) / 6),
        "options": ["the first right answer (reads labels), at most 3 turns"] * 2,
    }
    assert not {"oracle", "labels"} & set(str(found["curves"]).split())


def test_the_oracle_is_no_option(tmp_path: Path) -> None:
    row = seeds_of("grpo_mt", tmp_path)
    families = summary.stop_families(row.tables)
    assert ORACLE in families
    names = options_of(row.row.title, families).names
    assert "GRPO-MT, 2 turns, at most 2 turns" in names
    assert not any("oracle" in name for name in names)


def test_votes_are_options_too(tmp_path: Path) -> None:
    row = seeds_of("grpo", tmp_path)
    voted = Seeds(
        row=row.row,
        seeds=row.seeds,
        greedy=row.greedy,
        sampled=(),
        votes={3: option([ALL, ALL], 140)},
    )
    alone = Frontier(names=("GRPO, 1 turn",), answers=(option([HALF, HALF], 40),))
    (curve,) = budget_entries([(voted, alone, {})])["curves"]
    found = {point["budget"]: point["accuracy"] for point in curve["points"]}
    assert (found[100], found[140]) == (0.5, 1.0)
    assert curve["points"][-1]["options"] == ["GRPO Maj@3", "GRPO Maj@3"]


def test_a_checked_row_without_rivals_has_no_pair(tmp_path: Path) -> None:
    row = seeds_of("svr", tmp_path)
    alone = Frontier(names=("SVR, 1 turn",), answers=(option([HALF, HALF], 40),))
    assert budget_entries([(row, alone, {})])["pairs"] == []


def test_sampled_turns_are_options_too(tmp_path: Path) -> None:
    """Greedily the row is never right; its sampled first turns are right for a and e."""
    row = seeds_of("grpo_mt", tmp_path)
    sampled = summary.stop_families(row.tables)
    greedy = Frontier(names=("greedy",), answers=(option([NONE, NONE], 40),))
    (curve,) = budget_entries([(row, greedy, sampled)])["curves"]
    assert {point["accuracy"] for point in curve["points"] if point["budget"] <= 100} == {0.0}
    assert any("GRPO-MT sampled, " in point["options"][0] for point in curve["points"])
