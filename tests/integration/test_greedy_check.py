"""Solutions that are drawn, with self-checks that are decoded greedily."""

from typing import Any

import pytest
import torch

from svr_lightning.core.types import Decoding, FinishReason, Problem
from svr_lightning.engines.openai import OpenAIEngine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.policy.policy import Policy, RemotePolicy
from svr_lightning.recipes.dialogues import SelfVerifying, chain
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.training.sources import load_problems
from tests import small_fit
from tests.scripted_engine import ScriptedEngine

PROBLEMS = load_problems(small_fit.tiny("dev", split="dev", limit=12))
TAG = "<self_check>"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load(small_fit.policy())


def turns(policy: Policy, *, greedy: bool, limit: int = 96, horizon: int = 1) -> list[Any]:
    """The turns of each problem, sampled as in training."""
    engine = TransformersEngine(max_batch=8)
    policy.start(engine)
    engine.sync(policy.model, 0)
    decoding = Decoding(max_completion_tokens=limit, temperature=0.9)
    driver = Driver(engine, policy.renderer, decoding, greedy_check=greedy)
    jobs = [Job(p, 0, chain(SelfVerifying(), p, 0, horizon)) for p in PROBLEMS]
    return [trajectory.turns for trajectory in driver.run(jobs)]


def test_solutions_are_those_drawn_and_checks_those_of_greedy_decoding(policy):
    model = policy.model
    renderer = policy.renderer
    changed = 0
    drawn, mixed = turns(policy, greedy=False), turns(policy, greedy=True)
    for (before,), (after,) in zip(drawn, mixed, strict=True):
        one, other = before.completion, after.completion
        kept = next(
            k
            for k in range(len(one.token_ids))
            if TAG in renderer.completion_text(one.token_ids[:k])
        )
        assert other.prompt_ids == one.prompt_ids
        assert len(other.token_ids) > kept
        assert other.token_ids[:kept] == one.token_ids[:kept]
        # Up to the rounding that depends on who shares a batch.
        assert other.logprobs[:kept] == pytest.approx(one.logprobs[:kept], abs=1e-4)
        ids = torch.tensor([[*other.prompt_ids, *other.token_ids]])
        logp = model(input_ids=ids).logits[0].log_softmax(-1)
        behind = logp[len(other.prompt_ids) + kept - 1 : -1]
        assert behind.argmax(-1).tolist() == list(other.token_ids[kept:])
        # At temperature 1, as of every greedy token.
        assert list(other.logprobs[kept:]) == pytest.approx(behind.amax(-1).tolist(), abs=1e-4)
        assert other.finish_reason is FinishReason.STOP
        changed += one.text != other.text
    assert changed > 0


def test_the_limit_counts_both_parts(policy):
    """The check may take what the drawn solution has left of the completion's tokens."""
    encode = policy.renderer.tokenizer.encode
    solution = encode(f"<answer>(8-4)*2</answer>{TAG}", add_special_tokens=False)
    check = encode("VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>", add_special_tokens=False)
    engine = ScriptedEngine(lambda request: [*solution, *check])
    decoding = Decoding(max_completion_tokens=90, temperature=0.9)
    driver = Driver(engine, policy.renderer, decoding, greedy_check=True)
    driver.run([Job(PROBLEMS[0], 0, chain(SelfVerifying(), PROBLEMS[0], 0, 1))])
    drawn, greedy = (request.sampling for request in engine.requests)
    assert (drawn.max_completion_tokens, drawn.temperature) == (90, 0.9)
    assert (greedy.max_completion_tokens, greedy.temperature) == (90 - len(solution), 0.0)


def test_a_completion_that_was_cut_off_while_it_thought_again_stays_cut_off(policy):
    """Its unclosed reasoning is part of it: the self-check of an earlier answer does not end it."""
    written = (
        f"<answer>\\boxed{{5}}</answer>{TAG}VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>"
        f"<think><answer>\\boxed{{6}}</answer>{TAG}VERDICT: CORRECT"
    )
    ids = policy.renderer.tokenizer.encode(written, add_special_tokens=False)
    engine = ScriptedEngine(lambda request: ids)
    decoding = Decoding(max_completion_tokens=len(ids) - 1)
    driver = Driver(engine, policy.renderer, decoding, greedy_check=True)
    problem = Problem(id="p", task="gsm8k", question="?", reference="6")
    (trajectory,) = driver.run([Job(problem, 0, chain(SelfVerifying(), problem, 0, 1))])
    assert len(engine.requests) == 1
    assert trajectory.turns[0].completion.truncated


def test_an_evaluation_with_greedy_checks_needs_a_temperature_and_an_engine_of_tokens(
    tmp_path,
):
    with pytest.raises(ConfigError, match="greedy_check at temperature=0: all tokens are greedy"):
        EvaluationConfig(greedy_check=True)
    config = EvaluationConfig(greedy_check=True, temperature=0.9)
    server = OpenAIEngine("http://127.0.0.1:9/v1", "m")
    with pytest.raises(
        ConfigError, match="greedy_check: OpenAIEngine cannot continue a completion"
    ):
        Evaluator(RemotePolicy(server), config, folder=tmp_path)
