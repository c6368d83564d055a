"""Rollouts: turns in their own time, seeds and limits of their own."""

import itertools
import random
from collections.abc import Sequence

import pytest

from svr_lightning.core.types import Problem
from svr_lightning.engines.base import Request
from svr_lightning.recipes.dialogues import SelfVerifying, chain
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.collect import run_rollout
from svr_lightning.rollout.driver import Job
from svr_lightning.rollout.rendering import Renderer
from tests.scripted import PROBLEMS, STEP, TOKENIZER, at_places, driver, says, words
from tests.scripted_engine import ScriptedEngine
from tools.bench.rollout import LockStep


def muse(request: Request) -> list[int]:
    """Something that depends on the seed and on the whole prompt, of any length."""
    rng = random.Random(repr((request.seed, request.prompt_ids)))
    verdict = rng.choice(["CORRECT", "INCORRECT", "UNSURE", "MAYBE"])
    confidence = rng.choice([0.2, 0.84, 0.85, 1.0])
    return words("so " * rng.randrange(60) + says(f"8+{rng.randrange(9)}", verdict, confidence))


def jobs(problems: Sequence[Problem], recipe: SVR) -> list[Job]:
    return [
        Job(problem, i, rollout)
        for problem in problems
        for i, rollout in enumerate(recipe.rollouts(problem))
    ]


def refined(turns: int, problem: Problem = PROBLEMS[0]) -> Job:
    """A trajectory of so many turns."""
    return Job(problem, 0, chain(SelfVerifying(), problem, 0, turns))


def test_results_come_in_the_order_of_the_jobs_whichever_ends_first():
    engine = at_places(lambda name, i, t: words("x")[:1] * 10 * (4 - i) * (3 - t))
    recipe = SVR(group_size=4, horizon=2)
    results = dict(driver(engine).stream(jobs(PROBLEMS, recipe), at_once=True))
    trajectories, ended = [results[index] for index in range(12)], list(results)
    assert [(t.problem.id, t.sample) for t in trajectories] == [
        (p.id, i) for p in PROBLEMS for i in range(4)
    ]
    assert ended == [3, 7, 11, 2, 6, 10, 1, 5, 9, 0, 4, 8]


def test_pipelined_turns_equal_turns_in_lock_step():
    recipe = SVR(group_size=5, horizon=3)
    first, second = ScriptedEngine(muse), ScriptedEngine(muse)
    pipelined = driver(first).run(jobs(PROBLEMS, recipe))
    assert pipelined == driver(LockStep(second)).run(jobs(PROBLEMS, recipe))
    assert len({turn.completion.text for t in pipelined for turn in t.turns}) > 30
    assert first.steps < second.steps


def test_a_rollout_takes_as_many_steps_as_its_longest_trajectory_has_tokens():
    # Tokens per turn. Longest trajectory: 10 + 1 + 2 = 13; turn by turn: 10 + 9 + 8 = 27.
    lengths = {0: (10, 1, 2), 1: (1, 9, 1), 2: (2, 1, 8)}
    engine = at_places(lambda _, i, t: words("x")[:1] * lengths[i][t - 1])
    driver(engine).run(jobs(PROBLEMS, SVR(group_size=3, horizon=3)))
    assert engine.steps == 13


def test_the_loss_covers_the_very_ids_that_were_sampled_last():
    engine = ScriptedEngine(muse, logprob=-0.7)
    engine.sync(None, STEP)
    recipe = SVR(group_size=3, horizon=2)
    (group,) = run_rollout(PROBLEMS[:1], recipe, driver(engine))
    last = [
        request for request in engine.requests if "[T=2]" in TOKENIZER.decode(request.prompt_ids)
    ]
    expected = {(request.prompt_ids, tuple(muse(request)[:120])) for request in last}
    samples = recipe.credit(group)
    assert {(s.prompt_ids, s.completion_ids) for s in samples} == expected
    assert {len(s.completion_ids) for s in samples} == {len(s.logprobs) for s in samples}
    assert {(s.group_id, s.policy_version) for s in samples} == {("a", STEP)}


def test_prompts_that_a_program_asks_for_together_have_seeds_of_their_own():
    def pair(message):
        texts = []
        for _ in range(2):
            completions = yield [[{"role": "user", "content": message}] for _ in range(3)]
            texts += [completion.text for completion in completions]
        return texts

    engine = ScriptedEngine(lambda request: words(str(request.seed)))
    work = [Job(PROBLEMS[0], i, pair("hello")) for i in range(4)]
    texts = list(itertools.chain.from_iterable(driver(engine).run(work)))
    assert len(set(texts)) == len(texts) == 4 * 2 * 3
    # Completions come back in the order of the prompts.
    in_order = [str(request.seed) for request in engine.requests]
    assert sorted(in_order) == sorted(texts)
    assert texts[:3] == in_order[:3]


def test_a_program_that_asks_for_nothing_goes_on_at_once():
    def idle():
        return (yield [])

    assert driver(ScriptedEngine(muse)).run([Job(PROBLEMS[0], 0, idle())]) == [[]]


def test_a_completion_may_be_no_longer_than_the_context_allows():
    engine = ScriptedEngine(muse)
    small = Renderer(TOKENIZER, max_prompt_tokens=150, max_model_len=200)
    driver(engine, small).run(jobs(PROBLEMS, SVR(group_size=4, horizon=3)))
    for request in engine.requests:
        assert len(request.prompt_ids) <= 150
        assert request.sampling.max_completion_tokens == min(120, 200 - len(request.prompt_ids))
    assert {request.sampling.max_completion_tokens < 120 for request in engine.requests} == {
        False,
        True,
    }


def test_an_exception_in_a_program_cancels_the_engine():
    def broken():
        yield [[{"role": "user", "content": "hello"}]]
        raise LookupError("lost")

    engine = ScriptedEngine(lambda request: words("x" * (3 if request.id == 2 else 60)))
    good = [refined(3, problem) for problem in PROBLEMS[:2]]
    mine = driver(engine)
    with pytest.raises(LookupError, match="lost"):
        mine.run([*good, Job(PROBLEMS[2], 0, broken())])
    assert engine.step() == {}
    # The same driver and engine run on as if nothing had been.
    (trajectory,) = mine.run([refined(2)])
    assert len(trajectory.turns) == 2
