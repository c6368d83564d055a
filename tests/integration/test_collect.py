"""One on-policy batch: groups, labels, rewards, credit and what replaces degenerate groups."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from svr_lightning.core.credit import is_degenerate
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Problem
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.collect import REPLACEMENTS, collect_rollout
from svr_lightning.training.logs import rollout_stats
from tests.recipes import RIGHT, WRONG, ten
from tests.scripted import DECODING, PROBLEMS, RENDERER, TOKENIZER, says, words
from tests.scripted_engine import ScriptedEngine

LEARNING, TEACHES_NOTHING = (0.0, 1.0), (1.0, 1.0)


def group(name: str, returns: tuple[float, ...], attempt: int = 0) -> Group:
    return Group(
        problem=ten(name),
        trajectories=(),
        scored=(),
        rewards=(),
        returns=returns,
        seeds=SeedContext(attempt=attempt),
        degenerate=is_degenerate(returns),
    )


class Rolls:
    """Rolls out problems by name: those whose name ends in ``!`` teach nothing."""

    def __init__(self, fresh: Sequence[Sequence[str]] = ()) -> None:
        self.rolled = []
        self.asked = []
        self._fresh = [list(names) for names in fresh]

    def roll(self, problems: Sequence[Problem], attempt: int) -> list[Group]:
        names = [each.id for each in problems]
        self.rolled.append(names)
        return [
            group(name, TEACHES_NOTHING if name.endswith("!") else LEARNING, attempt)
            for name in names
        ]

    def fresh(self, attempt: int, count: int, exclude: frozenset[str]) -> list[Problem]:
        self.asked.append((attempt, count, set(exclude)))
        left = [name for name in self._fresh[attempt - 1] if name not in exclude]
        return [ten(name) for name in left[:count]]

    def run(self, names: Sequence[str], mode: str) -> list[tuple[str, int]]:
        """The names of the groups that are trained on, and their attempts."""
        problems = [ten(name) for name in names]
        groups = REPLACEMENTS[mode](self.roll(problems, 0), self.roll, self.fresh)
        return [(each.problem.id, each.seeds.attempt) for each in groups]


def test_top_up_replaces_only_what_teaches_nothing_in_its_place():
    rolls = Rolls([["x", "y"]])
    assert rolls.run(["a", "b!", "c", "d!"], "top_up") == [("a", 0), ("x", 1), ("c", 0), ("y", 1)]
    assert rolls.rolled == [["a", "b!", "c", "d!"], ["x", "y"]]
    assert rolls.asked == [(1, 2, {"a", "b!", "c", "d!"})]


def test_top_up_tries_again_for_what_is_still_missing_and_never_the_same_problem():
    rolls = Rolls([["x!", "y", "z"]])  # one draw, which the second attempt continues
    assert rolls.run(["a", "b!", "c!"], "top_up") == [("a", 0), ("z", 2), ("y", 1)]
    assert rolls.asked == [(1, 2, {"a", "b!", "c!"}), (1, 1, {"a", "b!", "c!", "x!", "y"})]


def test_top_up_gives_up_after_three_attempts_and_trains_on_what_there_is():
    rolls = Rolls([["x!", "y!", "z"]])
    assert rolls.run(["a", "b!"], "top_up") == [("a", 0), ("b!", 0)]
    assert rolls.rolled == [["a", "b!"], ["x!"], ["y!"]]


def test_batch_pools_what_teaches_over_whole_batches_and_takes_the_first_full_one():
    rolls = Rolls([["x", "y!", "z"]])
    assert rolls.run(["a", "b!", "c"], "batch") == [("a", 0), ("c", 0), ("x", 1)]
    assert rolls.rolled == [["a", "b!", "c"], ["x", "y!", "z"]]
    assert rolls.asked == [(1, 3, set())]  # from a pass of its own: problems may come again


def test_batch_falls_back_to_the_untouched_original_after_three_attempts():
    rolls = Rolls([["x", "y!", "z!"], ["u!", "v!", "w!"], ["p", "q", "r"]])
    assert rolls.run(["a", "b!", "c!"], "batch") == [("a", 0), ("b!", 0), ("c!", 0)]
    assert len(rolls.rolled) == 3


SURE = "\n<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>"


def rolled(*scripts: Sequence[str], problems: Sequence[str] = ("p",)) -> list[Group]:
    """Groups in which trajectory i of every problem writes ``scripts[i]``, turn by turn.

    All completions are 40 tokens long, so that requests come in the order of turns.
    """
    turns = zip(*scripts, strict=True)
    texts = iter([text for turn in turns for _ in problems for text in turn])

    def write(_request):
        ids, pause = TOKENIZER.encode(next(texts)), TOKENIZER.encode(" ")
        return [*ids, *pause * (39 - len(ids)), TOKENIZER.eos_token_id]

    engine = ScriptedEngine(write)
    engine.sync(None, 0)
    return collect_rollout(
        engine,
        SVR(group_size=len(scripts), horizon=len(scripts[0]), length_scale=100),
        [ten(name) for name in problems],
        renderer=RENDERER,
        sampling=DECODING,
        seed=1,
    )


def test_what_is_logged_of_a_rollout_is_worked_out_by_hand():
    groups = rolled([WRONG + SURE, RIGHT + SURE], [WRONG + SURE, WRONG])
    stats = rollout_stats(groups, SVR(), 1.0)
    assert stats["train/reward/mean"] == pytest.approx((1.42 + 0.125) / 2)
    assert stats["train/accuracy"] == 1 / 4
    assert stats["train/generations"] == 4
    assert (stats["train/turn1/accuracy"], stats["train/turn2/accuracy"]) == (0.0, 1 / 2)
    assert stats["train/completion_tokens"] == 40
    assert (stats["train/zero_std_groups"], stats["train/resampled_groups"]) == (0.0, 0.0)
    # Confidences 0.9, 0.9 and 0.9 of the sure, 0.5 of the silent turn; the second is right.
    assert stats["train/brier"] == pytest.approx((0.81 + 0.01 + 0.81 + 0.25) / 4)
    assert stats["train/confidence/right"] == pytest.approx(0.9)
    assert stats["train/confidence/wrong"] == pytest.approx((0.9 + 0.9 + 0.5) / 3)
    assert stats["train/confidence/spread"] == pytest.approx((0.1**2 * 3 + 0.3**2) ** 0.5 / 2)
    assert stats["train/would_stop"] == 3 / 4
    assert stats["train/auroc"] == pytest.approx((0.5 + 0.5 + 1) / 3)  # ties with two of the wrong
    assert (stats["train/verdict/correct"], stats["train/verdict/unsure"]) == (3 / 4, 1 / 4)
    assert stats["train/overconfidence"] == 2 / 4
    assert stats["train/reward/abs"] == pytest.approx(0.8 / 4)
    assert stats["train/truncated"] == 0.0


@pytest.mark.parametrize("fault", [{"truncated": True}, {"has_answer": False}])
def test_a_turn_that_is_cut_off_or_without_answer_would_not_stop_however_sure_it_is(fault):
    (group,) = rolled([RIGHT + SURE, RIGHT + SURE], [WRONG + SURE, WRONG])
    first, second = group.scored
    faulty = replace(group, scored=((replace(first[0], **fault), first[1]), second))
    # Three of four turns say CORRECT at 0.9; one of these has the fault.
    assert rollout_stats([faulty], SVR(), 1.0)["train/would_stop"] == 2 / 4
    assert rollout_stats([group], SVR(), 1.0)["train/would_stop"] == 3 / 4


def test_replacing_problems_needs_a_source_of_fresh_ones():
    engine = ScriptedEngine(lambda _: [TOKENIZER.eos_token_id])
    with pytest.raises(ValueError, match=r"resample='top_up' needs fresh=, which draws"):
        collect_rollout(
            engine,
            GRPO(group_size=2),
            [ten()],
            renderer=RENDERER,
            sampling=DECODING,
            seed=0,
            resample="top_up",
        )
    assert engine.requests == []


@pytest.mark.parametrize("mode", ["top_up", "batch"])
def test_every_attempt_of_resampling_has_its_own_seeds(mode):
    """The same problem is drawn again, and its third attempt is the first with a difference."""
    problem = PROBLEMS[0]
    expected = [
        [
            SeedContext(run_seed=5, step=3, attempt=attempt).seed(problem.id, sample=i, turn=1)
            for i in (0, 1)
        ]
        for attempt in range(3)
    ]
    seeds = []

    def write(request):
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
