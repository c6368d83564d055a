"""Carry-over: the next step's trajectories begin where slots are free, and nothing else changes."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.types import Problem
from svr_lightning.engines.base import Output, Request
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.carry import Begun, CarryOver, from_plain, to_plain
from svr_lightning.rollout.collect import collect_rollout
from svr_lightning.training.config import SamplingConfig
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.module import SVRModule
from svr_lightning.training.update import batch_of, micro_batches
from tests.samples import sample
from tests.scripted import DECODING, PROBLEMS, RENDERER, RUN_SEED, countdown, words
from tests.scripted_engine import ScriptedEngine
from tests.small_fit import data, module, same, trainer, weights

NEXT = [countdown("d", (6, 4, 2), 12), countdown("e", (3, 8, 7), 18)]
LENGTHS = {"a": 9, "b": 3, "c": 4, "d": 4, "e": 20}


class Parts(ScriptedEngine):
    """Says its version once per token, as often as the problem of a prompt wants it in all."""

    def __init__(self, room: int) -> None:
        super().__init__(self._speak, max_batch=room)

    def _speak(self, request: Request) -> list[int]:
        asked = next(p for p in [*PROBLEMS, *NEXT] if self._asks(request, p))
        drawn = len(request.prompt_ids) - len(RENDERER.prompt_ids(self._prompt(asked)))
        return words("x")[:1] * (LENGTHS[asked.id] - drawn)

    def _asks(self, request: Request, problem: Problem) -> bool:
        prompt = RENDERER.prompt_ids(self._prompt(problem))
        return request.prompt_ids[: len(prompt)] == prompt

    def _prompt(self, problem: Problem) -> Any:
        return SVR().dialogue.first(problem)

    def interrupt(self) -> list[Output]:
        outputs = [
            Output(
                id=request.id,
                token_ids=tuple(tokens[:done]),
                logprobs=(-2.0,) * done,
                finish_reason=None,
                version=self.version,
            )
            for request, tokens, done in self._running
        ]
        self.cancel()
        return outputs


def rolled(
    engine: ScriptedEngine, step: int, problems: Sequence[Problem], carry: CarryOver
) -> list[Group]:
    engine.sync(None, step)
    return collect_rollout(
        engine,
        SVR(group_size=2, horizon=1),
        problems,
        renderer=RENDERER,
        sampling=DECODING,
        seed=RUN_SEED,
        step=step,
        carry=carry,
    )


def drawn(begun: Begun) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Tokens and version of each part of the first turn."""
    return {
        place: [(len(part.token_ids), part.version) for part in rounds[0][0]]
        for place, rounds in begun.items()
        if rounds
    }


def test_free_slots_take_up_the_next_step_and_its_rollout_goes_on_from_the_tokens() -> None:
    # PROBLEMS[0] takes 9 steps, the others 3 and 4. Of 6 slots two are free after 3 steps, two
    # more after 4: the next step's d (4 tokens) runs from 3 to 7, its e from 4 on: 9 - 4 = 5.
    engine = Parts(room=6)
    carry = CarryOver(problems=NEXT)
    rolled(engine, 0, PROBLEMS, carry)
    assert engine.steps == 9
    assert drawn(carry.ahead) == {
        ("d", 0): [(4, 0)],
        ("d", 1): [(4, 0)],
        ("e", 0): [(5, 0)],
        ("e", 1): [(5, 0)],
    }
    engine.requests.clear()
    stored = from_plain(to_plain(carry.ahead))
    groups = rolled(engine, 1, NEXT, CarryOver(begun=stored))
    assert engine.steps == 9 + 15
    prompt = RENDERER.prompt_ids(SVR().dialogue.first(NEXT[1]))
    for request in engine.requests:
        assert request.prompt_ids == prompt + tuple(words("x")[:1] * 5)
        assert request.sampling.max_tokens == DECODING.max_completion_tokens - 5
    done, mixed = (group.trajectories[0].turns[0].sampled for group in groups)
    assert (done.policy_version, done.earlier) == (0, ())
    assert (mixed.policy_version, mixed.earlier) == (1, (0,) * 5)
    assert (mixed.prompt_ids, len(mixed.token_ids)) == (prompt, 20)
    assert mixed.logprobs == (-2.0,) * 5 + (-1.0,) * 15


def test_a_continuation_draws_from_a_seed_of_its_own() -> None:
    engine = Parts(room=6)
    carry = CarryOver(problems=NEXT)
    rolled(engine, 0, PROBLEMS, carry)
    rolled(engine, 1, NEXT, CarryOver(begun=carry.ahead))
    seeds = [request.sampling.seed for request in engine.requests]
    assert len(set(seeds)) == len(seeds) == 6 + 4 + 2


def test_a_trajectory_that_nothing_interrupts_is_drawn_as_its_own_step_would_draw_it() -> None:
    ahead, alone = Parts(room=6), Parts(room=6)
    carry = CarryOver(problems=NEXT)
    rolled(ahead, 0, PROBLEMS, carry)
    rolled(alone, 1, NEXT, CarryOver())
    assert {r.sampling.seed for r in alone.requests} < {r.sampling.seed for r in ahead.requests}


def test_an_engine_that_cannot_say_what_it_drew_begins_those_completions_anew() -> None:
    engine = Parts(room=6)
    engine.interrupt = lambda: ScriptedEngine.interrupt(engine)  # type: ignore[method-assign]
    carry = CarryOver(problems=NEXT)
    rolled(engine, 0, PROBLEMS, carry)
    assert {len(parts) for parts in drawn(carry.ahead).values()} == {1, 0}
    (_, again) = rolled(engine, 1, NEXT, CarryOver(begun=carry.ahead))
    assert again.trajectories[0].turns[0].sampled.earlier == ()


# --- what the update takes ----------------------------------------------------------------------


def test_tokens_beyond_the_bound_are_refused() -> None:
    one_step_old = replace(sample(completion=(1, 2, 3), version=7), earlier=(6,))
    two_steps_old = replace(sample(completion=(1, 2, 3), version=7), earlier=(5,))
    options: dict[str, Any] = {"accumulate": 1, "updates": 1, "version": 7}
    micro_batches([one_step_old], staleness=1, **options)
    with pytest.raises(RuntimeError, match=r"weights of step 5 at step 7; model\.carry_over=1"):
        micro_batches([two_steps_old], staleness=1, **options)
    with pytest.raises(RuntimeError, match="weights of step 6 at step 7; it was not synced"):
        micro_batches([one_step_old], **options)
    with pytest.raises(RuntimeError, match="weights of step 8 at step 7"):
        micro_batches([sample(version=8)], staleness=1, **options)


def test_fresh_tokens_alone_are_compared_with_the_engine() -> None:
    mixed = replace(sample(completion=(1, 2, 3), version=7), earlier=(6, 6))
    old, new = sample(completion=(1, 2), version=6), sample(completion=(1,), version=7)
    batch = batch_of([mixed, old, new], 1.0, version=7)
    assert batch.fresh.tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    options: dict[str, Any] = {"accumulate": 1, "updates": 1, "version": 7, "staleness": 1}
    (batch,) = micro_batches([mixed, old, new], **options)
    assert batch.fresh_weight == 1 / 2  # of three sequences two have fresh tokens
    assert batch.mean_weight == 1 / 3
    (none,) = micro_batches([old], **options)
    assert none.fresh_weight == 0.0  # nothing to compare


# --- a training ---------------------------------------------------------------------------------

RECIPE = SVR(
    group_size=4,
    horizon=2,
    length_scale=92,
    loss=LossSpec(beta=0.1, behaviour_correction="token"),
)


class Notes(Callback):
    """What was sampled for each step: tokens and versions by problem, sample and turn."""

    def __init__(self, save: tuple[int, Path] | None = None) -> None:
        self.steps: list[dict[tuple[str, int, int], Any]] = []
        self._save = save

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.steps.append(
            {
                (group.problem.id, t.sample, turn.index): turn.sampled
                for group in pl_module.groups
                for t in group.trajectories
                for turn in t.turns
            }
        )

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self._save and trainer.global_step == self._save[0]:
            trainer.save_checkpoint(self._save[1])


def carrying(**changes: Any) -> SVRModule:
    engine = TransformersEngine(max_batch=6)
    return module(**{"carry_over": 1, "recipe": RECIPE, "engine": engine} | changes)


def test_a_run_that_carries_over_resumes_to_the_bit(tmp_path: Path) -> None:
    whole, notes = carrying(), Notes(save=(3, tmp_path / "3.ckpt"))
    trainer(tmp_path / "whole", notes, logger=CSVLog(tmp_path / "whole")).fit(whole, data())
    resumed, again = carrying(), Notes()
    trainer(tmp_path / "again", again).fit(resumed, data(), ckpt_path=tmp_path / "3.ckpt")
    assert again.steps == notes.steps[3:]
    assert same(weights(resumed), weights(whole))
    saved = torch.load(tmp_path / "3.ckpt", weights_only=True)
    (begun,) = saved["loops"]["fit_loop"]["state_dict"]["begun"]
    assert begun
    versions = [
        {v for one in step.values() for v in (one.policy_version, *one.earlier)}
        for step in notes.steps
    ]
    assert versions[0] == {0}
    assert all(found <= {step - 1, step} for step, found in enumerate(versions))
    assert any(step - 1 in found for step, found in enumerate(versions))
    assert any(one.earlier for step in notes.steps for one in step.values())
    # The data's problems, all of their trajectories, in the data's order.
    plain = Notes()
    trainer(tmp_path / "plain", plain, max_steps=6).fit(module(), data())
    assert [list(step) for step in notes.steps] == [list(step) for step in plain.steps]
    with (tmp_path / "whole" / "metrics.csv").open() as lines:
        rows = {
            (int(r["step"]), r["key"]): float(r["value"] or "nan") for r in csv.DictReader(lines)
        }
    for step in range(1, 7):
        assert 0.0 <= rows[step, "engine/logprob_diff"] < 1e-4
        assert rows[step, "train/behaviour/max"] >= rows[step, "train/behaviour/mean"] > 0
    assert abs(rows[1, "train/behaviour/mean"] - 1) < 1e-4


def test_what_was_begun_with_other_settings_is_begun_anew(tmp_path: Path) -> None:
    notes, again = Notes(save=(2, tmp_path / "2.ckpt")), Notes()
    trainer(tmp_path / "first", notes, max_steps=3).fit(carrying(), data())
    with pytest.warns(UserWarning, match="begun with other settings are begun anew"):
        trainer(tmp_path / "again", again, max_steps=4).fit(
            carrying(carry_over=0), data(), ckpt_path=tmp_path / "2.ckpt"
        )
    versions = [{one.policy_version for one in step.values()} for step in again.steps]
    assert versions == [{2}, {3}]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"carry_over": 2}, "model.carry_over=2 must be 0, or 1"),
        ({"recipe": SVR()}, "carry_over=1 needs .*loss.behaviour_correction; set it to token"),
        ({"updates_per_rollout": 2}, "carry_over=1 needs model.updates_per_rollout=1, not 2"),
        ({"sampling": SamplingConfig(top_p=0.9)}, "behaviour_correction=token weighs .*top_p=0.9"),
    ],
)
def test_what_cannot_be_corrected_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        carrying(**settings)
