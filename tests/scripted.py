"""A scripted engine that speaks through the shipped policy's tokenizer, and its drivers."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import Decoding, Problem
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.policy.policy import Policy, RemotePolicy
from svr_lightning.recipes.base import Recipe
from svr_lightning.rollout.driver import Driver
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks import get_task
from tests.commands import SHIPPED
from tests.scripted_engine import ScriptedEngine

TOKENIZER = AutoTokenizer.from_pretrained(SHIPPED)
RENDERER = Renderer(TOKENIZER, max_prompt_tokens=600, max_model_len=900)
DECODING = Decoding(max_completion_tokens=120, temperature=0.9)
RUN_SEED, STEP = 42, 3


def countdown(name: str, numbers: Sequence[int], target: int) -> Problem:
    """A Countdown problem."""
    return get_task("countdown").from_row({"id": name, "nums": list(numbers), "target": target})


PROBLEMS = [
    countdown("a", (8, 4, 2), 10),
    countdown("b", (3, 5, 7), 15),
    countdown("c", (1, 2, 9), 12),
]


def words(text: str) -> list[int]:
    """Token ids of a completion that ends its turn."""
    return [*TOKENIZER.encode(text), TOKENIZER.eos_token_id]


def says(answer: str, verdict: str, confidence: float) -> str:
    """A completion in the method's form."""
    return (
        f"<think>hm</think>\n<answer>{answer}</answer>\n"
        f"<self_check>VERDICT: {verdict}; CONFIDENCE: {confidence}</self_check>"
    )


def at_places(
    speak: Callable[[str, int, int], list[int]],
    problems: Sequence[Problem] = PROBLEMS,
    samples: int = 8,
    turns: int = 10,
) -> ScriptedEngine:
    """An engine that knows from a request's seed which problem, sample and turn it is for."""
    places = {
        SeedContext(run_seed=RUN_SEED, step=STEP).seed(p.id, sample=i, turn=t): (p.id, i, t)
        for p, i, t in itertools.product(problems, range(samples), range(1, turns + 1))
    }
    engine = ScriptedEngine(lambda request: speak(*places[request.seed]))
    engine.sync(None, STEP)
    return engine


def driver(engine: Any, renderer: Renderer = RENDERER, attempt: int = 0) -> Driver:
    """A driver at the step that :func:`at_places` expects."""
    seeds = SeedContext(run_seed=RUN_SEED, step=STEP, attempt=attempt)
    return Driver(engine, renderer, DECODING, seeds)


def evaluator(
    engine: Any,
    *,
    rule: StopRule | None = None,
    max_turns: int = 4,
    renderer: Renderer | None = RENDERER,
    recipe: Recipe | None = None,
    journal: Path | None = None,
    **config: Any,
) -> Evaluator:
    """An evaluator that draws as :func:`driver` does; without a rule it records every turn."""
    settings = {
        "max_completion_tokens": DECODING.max_completion_tokens,
        "temperature": DECODING.temperature,
        **config,
    }
    evaluation = EvaluationConfig(
        max_turns=max_turns, stop=rule, adaptive=rule is not None, **settings
    )
    actor = RemotePolicy(engine)
    if renderer is not None:
        actor = Policy(torch.nn.Identity(), renderer)
        actor.engine = engine
    own = {"recipe": recipe, "seed": RUN_SEED, "step": STEP}
    own |= {} if journal is None else {"folder": journal, "fingerprint": "f"}
    return Evaluator(actor, evaluation, **own)


def exam(references: Sequence[str]) -> list[Problem]:
    """One problem of each task, and the given references."""
    math_row = {"problem": "What is $6 \\cdot 7$?", "answer": "42", "id": "m"}
    rows = [
        countdown("a", (8, 4, 2), 10),
        get_task("gsm8k").from_row({"question": "6 * 7?", "answer": "#### 42", "id": "g"}),
        get_task("math").from_row(math_row),
    ]
    return [replace(row, reference=r) for row, r in zip(rows, references, strict=True)]


ORDERS = list(itertools.permutations(["10", "42", "-1"]))
"""All ways to hand three references to three problems."""
