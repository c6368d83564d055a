"""What benchmarks and the tests of a GPU compute on, and how they take time and memory."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from svr_lightning.core.types import Problem, Sample, Trajectory
from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Decoding, Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.config import PolicyConfig
from svr_lightning.training.policy import load_policy, stop_token_ids
from svr_lightning.training.update import batch_of, completion_logprobs

TEMPERATURE = 0.9
GIB = 2**30
EMBEDDED = "embedded:countdown-tiny"
SIZES: dict[str, Any] = {"max_prompt_tokens": 512, "max_model_len": 1024}
"""Limits of prompts and sequences of policies of that size."""

# --- samples and rollouts -----------------------------------------------------------------------


def long_tailed(rng: np.random.Generator, median: float, limit: int, spread: float = 0.7) -> int:
    """A completion length in tokens: log-normal, cut at ``limit`` as the engine does."""
    return int(np.clip(rng.lognormal(np.log(median), spread), 2, limit))


def make_samples(
    count: int, vocabulary: int, prompt: tuple[int, int], median: float, limit: int
) -> list[Sample]:
    """Sequences of random tokens, the same on every call.

    Args:
        count: how many.
        vocabulary: ids are drawn below it.
        prompt: shortest and longest prompt.
        median: of the completions' lengths; the last one has the limit's.
        limit: longest completion.
    """
    rng = np.random.default_rng(0)
    samples = []
    for number in range(count):
        length = limit if number == count - 1 else long_tailed(rng, median, limit)
        tokens = rng.integers(8, vocabulary, rng.integers(*prompt) + length).tolist()
        samples.append(
            Sample(
                prompt_ids=tuple(tokens[:-length]),
                completion_ids=tuple(tokens[-length:]),
                logprobs=(-1.0,) * length,
                advantage=float(rng.normal()),
                group_id=str(number),
                policy_version=0,
            )
        )
    return samples


def start_policy(engine: Any, path: str = EMBEDDED, *, ends: bool) -> tuple[Any, Renderer]:
    """Start an engine on a policy; returns the policy and what renders its prompts.

    Args:
        engine: not started.
        path: the policy's, one that ships or a folder.
        ends: whether its stop tokens end a completion.
    """
    policy, tokenizer = load_policy(PolicyConfig(path=path, **SIZES), seed=0)
    stop = stop_token_ids(policy, tokenizer) if ends else ()
    engine.start(policy.eval(), stop, SIZES["max_model_len"])
    engine.sync(policy, 0)
    return policy, Renderer(tokenizer, **SIZES)


class LongTailed:
    """An engine that counts its steps and cuts completions at lengths drawn from their seeds.

    Random weights never end a completion; the lengths are those of a policy that does. A request
    has the same length whenever it is submitted.
    """

    def __init__(self, engine: Any, median: float, spread: float = 0.7) -> None:
        self._engine, self._median, self._spread = engine, median, spread
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Without stop tokens, which would end a completion before its length."""
        self._engine.start(model, (), max_model_len)

    def submit(self, request: Request) -> None:
        """Pass it on with a limit of its own."""
        sampling = request.sampling
        rng = np.random.default_rng(sampling.seed)
        limit = long_tailed(rng, self._median, sampling.max_tokens, self._spread)
        self._engine.submit(replace(request, sampling=replace(sampling, max_tokens=limit)))

    def step(self) -> list[Output]:
        """Count and pass on."""
        self.steps += 1
        return list(self._engine.step())


class LockStep:
    """An engine that starts new requests only when all running ones have finished.

    With trajectories of equally many turns no turn begins before the last one of the turn before
    has ended, as in trainers without pipelined turns.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._held: list[Request] = []
        self._running = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Request) -> None:
        """Hold a request until the running ones are done."""
        self._held.append(request)

    def step(self) -> list[Output]:
        """Start the held requests if nothing runs, and advance."""
        if not self._running:
            for request in self._held:
                self._engine.submit(request)
            self._running, self._held = len(self._held), []
        outputs: list[Output] = self._engine.step()
        self._running -= len(outputs)
        return outputs


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What one way of rolling out took."""

    trajectories: list[Trajectory]
    steps: int
    """Of the engine."""
    seconds: float

    @property
    def tokens(self) -> int:
        """Sampled tokens of all turns."""
        return sum(len(turn.sampled.token_ids) for one in self.trajectories for turn in one.turns)


def roll_out(
    engine: Engine,
    renderer: Renderer,
    recipe: SVR,
    problems: Sequence[Problem],
    decoding: Decoding,
    *,
    median: float,
    spread: float = 0.7,
    device: str = "cpu",
) -> Rollout:
    """All trajectories of all problems through the package's driver, with long-tailed lengths."""
    counted: Any = LongTailed(engine, median, spread)
    jobs = [
        Job(problem=problem, sample=index, program=program, decoding=decoding)
        for problem in problems
        for index, program in enumerate(recipe.programs(problem))
    ]
    wait_for(device)
    started = time.perf_counter()
    trajectories = Driver(counted, renderer, run_seed=42).run(jobs)
    wait_for(device)
    seconds = time.perf_counter() - started
    return Rollout(trajectories=trajectories, steps=counted.steps, seconds=seconds)


# --- the update ---------------------------------------------------------------------------------


def precision(device: str) -> Any:
    """bf16 over fp32 masters on a GPU, as ``bf16-mixed``; plain fp32 on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()


@torch.no_grad()
def trainer_logprobs(model: Any, samples: Sequence[Sample], device: str, together: int) -> Tensor:
    """[N] nats of all completion tokens, in the order of ``samples``, as the update has them.

    Args:
        model: in eval mode.
        samples: at least one.
        device: where.
        together: sequences per forward pass.
    """
    found = []
    for start in range(0, len(samples), together):
        batch = batch_of(samples[start : start + together], weight=1.0).to(device)
        with precision(device):
            logp = completion_logprobs(model, batch, TEMPERATURE)
        found.append(logp[batch.mask.bool()].float())
    return torch.cat(found)


# --- time and memory ----------------------------------------------------------------------------


def wait_for(device: str) -> None:
    """Wait until the device has done all its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str) -> float:
    """How long ``work`` takes, until the device has finished it."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def release(device: str) -> None:
    """Free memory that nothing refers to any more."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def peak_memory(device: str) -> Iterator[list[float]]:
    """Gives a list that afterwards holds the peak GiB of tensors, beyond what was there before."""
    found: list[float] = []
    if device == "cuda":
        wait_for(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield found
        wait_for(device)
        found.append((torch.cuda.max_memory_allocated() - before) / GIB)
        return
    with torch.profiler.profile(profile_memory=True) as profile:
        yield found
    assert profile.profiler is not None
    events = profile.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = np.cumsum([size for _, size in sorted(changes, key=lambda change: change[0])])
    found.append(float(held.max()) / GIB)
