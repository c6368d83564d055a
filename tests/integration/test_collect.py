"""One on-policy batch: groups, labels, rewards, credit and what replaces degenerate groups."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from svr_lightning.core.credit import is_degenerate
from svr_lightning.core.parsing import SelfCheckFields
from svr_lightning.core.seeds import START
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Decoding, Problem
from svr_lightning.engines.base import Request
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.collect import collect_rollout, replace_degenerate
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.logs import rollout_stats
from svr_lightning.training.update import samples_of
from tests.recipes import RIGHT, WRONG, ten
from tests.scripted import TOKENIZER
from tests.scripted_engine import ScriptedEngine

LEARNING, TEACHES_NOTHING = (0.0, 1.0), (1.0, 1.0)


def group(name: str, returns: tuple[float, ...], attempt: int = 0) -> Group:
    return Group(
        problem=ten(name),
        trajectories=(),
        scored=(),
        rewards=(),
        returns=returns,
        seeds=replace(START, attempt=attempt),
        degenerate=is_degenerate(returns),
    )


class Rolls:
    """Rolls out problems by name: those whose name ends in ``!`` teach nothing."""

    def __init__(self, fresh: Sequence[Sequence[str]] = ()) -> None:
        self.rolled: list[list[str]] = []
        self.asked: list[tuple[int, int, set[str]]] = []
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
        groups = self.roll(problems, 0)
        groups = replace_degenerate(groups, self.roll, self.fresh, mode)  # type: ignore[arg-type]
        return [(each.problem.id, each.seeds.attempt) for each in groups]


# --- off --------------------------------------------------------------------------------------


def test_without_resampling_the_batch_stays_as_it_is() -> None:
    rolls = Rolls()
    assert rolls.run(["a", "b!", "c!"], "off") == [("a", 0), ("b!", 0), ("c!", 0)]
    assert (rolls.rolled, rolls.asked) == ([["a", "b!", "c!"]], [])


# --- top_up -----------------------------------------------------------------------------------


def test_top_up_replaces_only_what_teaches_nothing_in_its_place() -> None:
    rolls = Rolls([["x", "y"]])
    assert rolls.run(["a", "b!", "c", "d!"], "top_up") == [("a", 0), ("x", 1), ("c", 0), ("y", 1)]
    assert rolls.rolled == [["a", "b!", "c", "d!"], ["x", "y"]]
    assert rolls.asked == [(1, 2, {"a", "b!", "c", "d!"})]


def test_top_up_tries_again_for_what_is_still_missing_and_never_the_same_problem() -> None:
    rolls = Rolls([["x!", "y", "z"]])  # one draw, which the second attempt continues
    assert rolls.run(["a", "b!", "c!"], "top_up") == [("a", 0), ("z", 2), ("y", 1)]
    assert rolls.asked == [
        (1, 2, {"a", "b!", "c!"}),
        (1, 1, {"a", "b!", "c!", "x!", "y"}),
    ]


def test_top_up_gives_up_after_three_attempts_and_trains_on_what_there_is() -> None:
    rolls = Rolls([["x!", "y!", "z"]])
    assert rolls.run(["a", "b!"], "top_up") == [("a", 0), ("b!", 0)]
    assert rolls.rolled == [["a", "b!"], ["x!"], ["y!"]]


# --- batch ------------------------------------------------------------------------------------


def test_batch_pools_what_teaches_over_whole_batches_and_takes_the_first_full_one() -> None:
    rolls = Rolls([["x", "y!", "z"]])
    assert rolls.run(["a", "b!", "c"], "batch") == [("a", 0), ("c", 0), ("x", 1)]
    assert rolls.rolled == [["a", "b!", "c"], ["x", "y!", "z"]]
    assert rolls.asked == [(1, 3, set())]  # from a pass of its own: problems may come again


def test_batch_falls_back_to_the_untouched_original_after_three_attempts() -> None:
    rolls = Rolls([["x", "y!", "z!"], ["u!", "v!", "w!"], ["p", "q", "r"]])
    assert rolls.run(["a", "b!", "c!"], "batch") == [("a", 0), ("b!", 0), ("c!", 0)]
    assert len(rolls.rolled) == 3


# --- real groups ------------------------------------------------------------------------------


SURE = "\n<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>"


def rolled(*scripts: Sequence[str], problems: Sequence[str] = ("p",)) -> list[Group]:
    """Groups in which trajectory i of every problem writes ``scripts[i]``, turn by turn.

    All completions are 40 tokens long, so that requests come in the order of turns.
    """
    turns = zip(*scripts, strict=True)
    texts = iter([text for turn in turns for _ in problems for text in turn])

    def write(_request: Request) -> list[int]:
        ids, pause = TOKENIZER.encode(next(texts)), TOKENIZER.encode(" ")
        return [*ids, *pause * (39 - len(ids)), TOKENIZER.eos_token_id]

    engine = ScriptedEngine(write)
    engine.sync(None, 0)
    return collect_rollout(
        engine,
        SVR(group_size=len(scripts), horizon=len(scripts[0]), length_scale=100),
        [ten(name) for name in problems],
        renderer=Renderer(TOKENIZER),
        sampling=Decoding(max_completion_tokens=99, temperature=1.0),
        seed=1,
    )


def test_a_group_carries_the_reward_of_every_turn_term_by_term() -> None:
    (one,) = rolled([WRONG + SURE, RIGHT + SURE], [WRONG + SURE, WRONG])
    assert [[turn.correct for turn in turns] for turns in one.scored] == [
        [False, True],
        [False, False],
    ]
    first, second = one.rewards[0]
    # Turn 1, wrong and sure at 0.9: cal 0.5 (1 - 0.81) and over -0.8 * 0.9; formats 0.4 each.
    assert (first.abs, first.prog, first.trunc) == (0.0, 0.0, 0.0)
    assert (first.cal, first.over) == pytest.approx((0.095, -0.72))
    assert (first.task_format, first.self_check_format) == (0.4, 0.4)
    # Turn 2, right after 40 of 100 tokens: abs 1 - 0.5 * 0.4, prog 0.3, cal 0.5 (1 - 0.01),
    # ready 0.3 * 0.9.
    assert (second.abs, second.prog) == pytest.approx((0.8, 0.3))
    assert (second.cal, second.ready) == pytest.approx((0.495, 0.27))
    # The other's second turn, wrong again and without a self-check: prog -0.3, the prior 0.5 of
    # UNSURE in cal 0.5 (1 - 0.25), formats 0.4 and -0.4.
    last = one.rewards[1][1]
    assert (last.prog, last.cal) == pytest.approx((-0.3, 0.375))
    assert (last.task_format, last.self_check_format) == (0.4, -0.4)
    # Turns add up to 0.175, 2.665 and 0.075, and a return is the mean over its two turns.
    assert one.returns == pytest.approx(((0.175 + 2.665) / 2, (0.175 + 0.075) / 2))
    assert not one.degenerate


def test_the_final_completions_of_a_group_take_its_advantages() -> None:
    groups = rolled([WRONG + SURE, RIGHT + SURE], [WRONG + SURE, WRONG])
    better, worse = samples_of(groups, 2)
    # Returns 1.42 and 0.125: deviations +-0.6475 over the standard deviation 0.6475 sqrt(2).
    expected = 0.6475 / (0.6475 * 2**0.5 + 1e-4)
    assert (better.advantage, worse.advantage) == pytest.approx((expected, -expected))
    for sample, trajectory in zip([better, worse], groups[0].trajectories, strict=True):
        assert sample.completion_ids == trajectory.turns[1].completion.token_ids
        assert sample.prompt_ids == trajectory.turns[1].completion.prompt_ids
        assert sample.group_id == "p"


@pytest.mark.parametrize(
    ("interface", "share"), [("joint", 1 / 4), ("verdict", 2 / 4), ("confidence", 3 / 4)]
)
def test_a_turn_would_stop_by_the_fields_of_its_recipes_self_check(
    interface: SelfCheckFields, share: float
) -> None:
    unsure = "\n<self_check>VERDICT: UNSURE; CONFIDENCE: 0.9</self_check>"
    hesitant = "\n<self_check>VERDICT: CORRECT; CONFIDENCE: 0.5</self_check>"
    groups = rolled([RIGHT + SURE, RIGHT + unsure], [RIGHT + unsure, RIGHT + hesitant])
    rule = SVR(interface=interface).stop_policy(1, Confident())[1]
    assert rollout_stats(groups, rule)["train/would_stop"] == share


def test_a_truncated_turn_would_not_stop() -> None:
    (one,) = rolled([RIGHT + SURE, RIGHT + SURE])
    cut = tuple(tuple(replace(turn, truncated=True) for turn in turns) for turns in one.scored)
    assert rollout_stats([one], Confident())["train/would_stop"] == 1
    assert rollout_stats([replace(one, scored=cut)], Confident())["train/would_stop"] == 0


def test_what_is_logged_of_a_rollout_is_worked_out_by_hand() -> None:
    groups = rolled([WRONG + SURE, RIGHT + SURE], [WRONG + SURE, WRONG])
    stats = rollout_stats(groups, Confident())
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


def test_replacing_problems_needs_a_source_of_fresh_ones() -> None:
    engine = ScriptedEngine(lambda _: [TOKENIZER.eos_token_id])
    with pytest.raises(ValueError, match=r"resample='top_up' needs fresh=, which draws"):
        collect_rollout(
            engine,
            GRPO(group_size=2),
            [ten()],
            renderer=Renderer(TOKENIZER, max_prompt_tokens=600, max_model_len=900),
            sampling=Decoding(max_completion_tokens=9),
            seed=0,
            resample="top_up",
        )
    assert engine.requests == []
