"""Every stopping rule on the shipped policy: inference stops where a replay of all turns says."""

from collections.abc import Mapping
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from svr_lightning.analysis.records import SampleRecord
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.table import turn_tables
from svr_lightning.core.stopping import (
    Confident,
    Majority,
    StopRule,
)
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks import get_task
from svr_lightning.tiny.problems import generate
from tests.scripted import RENDERER, TOKENIZER

TURNS = 3
COUNTDOWN = get_task("countdown")
PROBLEMS = [COUNTDOWN.from_row(row) for row in generate("dev", orders=1)[:6]]
RECIPES: Mapping[str, Recipe] = {"svr": SVR(), "grpo_mt": GRPOMT()}
OF_A_SELF_CHECK = Confident(score="verdict_probability", threshold=0.9)
CASES: list[tuple[str, StopRule]] = [
    ("svr", Confident(score="answer_logprob", threshold=-0.2, needs_correct=False)),
    ("svr", OF_A_SELF_CHECK),
    ("grpo_mt", Majority()),
]
"""Of every rule test_adaptive.py shows the same with a scripted engine."""


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    engine = TransformersEngine()
    policy = AutoModelForCausalLM.from_pretrained(TOKENIZER.name_or_path).eval()
    engine.start(policy, (TOKENIZER.eos_token_id,), 900)
    engine.sync(policy, 0)
    return engine


def run(engine: TransformersEngine, recipe: str, **settings: Any) -> list[SampleRecord]:
    config = EvaluationConfig(
        max_turns=TURNS, temperature=0.9, max_completion_tokens=160, **settings
    )
    evaluator = Evaluator(engine, config, recipe=RECIPES[recipe], renderer=RENDERER)
    return evaluator.solve(PROBLEMS, "toy")


@pytest.fixture(scope="module")
def recordings(engine: TransformersEngine) -> dict[str, list[SampleRecord]]:
    return {name: run(engine, name, adaptive=False) for name in RECIPES}


@pytest.mark.parametrize(("recipe", "rule"), CASES, ids=str)
def test_live_inference_stops_where_the_replay_does(
    recipe: str,
    rule: StopRule,
    engine: TransformersEngine,
    recordings: dict[str, list[SampleRecord]],
) -> None:
    (table,) = turn_tables(recordings[recipe]).values()
    outcome = replay(table, rule, TURNS)
    for row, live in enumerate(run(engine, recipe, stop=rule)):
        recorded = recordings[recipe][row]
        assert (live.observed, live.returned_turn) == (outcome.observed[row], outcome.returned[row])
        assert live.stopped_early == outcome.stopped_early[row]
        assert live.signals == recorded.signals[: live.observed]
        assert [t.text for t in live.turns] == [t.text for t in recorded.turns[: live.observed]]
