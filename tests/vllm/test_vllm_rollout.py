"""Rollouts on vLLM with pipelined turns and in lock-step."""

from dataclasses import replace
from typing import Any

from transformers import AutoModelForCausalLM

from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Trajectory
from svr_lightning.engines.base import Engine
from svr_lightning.engines.vllm import VLLMEngine
from svr_lightning.recipes.dialogues import SelfVerifying, chain
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Job
from tests.scripted import DECODING, PROBLEMS, STEP, TOKENIZER, driver
from tools.bench.rollout import LockStep

TEMPERATURE = 2.0
"""High, since most completions of the policy are equally long at a lower one."""


class Counting:
    """Counts the steps of an engine that something happened in."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.steps = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> Any:
        self.steps += 1
        return self._engine.step()


def training_rollout(engine: Engine) -> tuple[list[Trajectory], int]:
    """Five trajectories of three turns for each problem, and the engine steps they took."""
    programs = SVR(group_size=5, horizon=3).programs
    return _run(
        engine, [(p, i, program) for p in PROBLEMS for i, program in enumerate(programs(p))]
    )


def adaptive_rollout(engine: Engine) -> tuple[list[Trajectory], int]:
    """The same problems with adaptive stopping, so that trajectories end at different turns."""
    rule = Confident(threshold=0.95)
    return _run(
        engine, [(p, i, chain(SelfVerifying(), p, i, 4, rule)) for p in PROBLEMS for i in range(5)]
    )


def _run(engine: Engine, programs: Any) -> tuple[list[Trajectory], int]:
    counting = Counting(engine)
    hot = replace(DECODING, temperature=TEMPERATURE)
    jobs = [Job(problem, sample, program, hot) for problem, sample, program in programs]
    return driver(counting).run(jobs), counting.steps


def test_pipelined_turns_equal_turns_in_lock_step() -> None:
    """Equal token for token, in fewer steps."""
    engine, policy = VLLMEngine(), AutoModelForCausalLM.from_pretrained(TOKENIZER.name_or_path)
    engine.start(policy, (TOKENIZER.eos_token_id,), 900)
    engine.sync(policy, STEP)
    for rollout in (training_rollout, adaptive_rollout):
        pipelined, fewer = rollout(engine)
        in_lock_step, more = rollout(LockStep(engine))
        assert _said(pipelined) == _said(in_lock_step)
        assert fewer < more
    lengths = {len(trajectory.turns) for trajectory in pipelined}
    assert len(lengths) > 1  # adaptive stopping did end some of them early


def _said(trajectories: list[Trajectory]) -> list[list[tuple[Any, ...]]]:
    """All of it but the log-probabilities, whose last digits depend on who shared a batch."""
    return [
        [
            (t.completion.prompt_ids, t.completion.token_ids, t.completion.finish_reason, t.check)
            for t in trajectory.turns
        ]
        for trajectory in trajectories
    ]
