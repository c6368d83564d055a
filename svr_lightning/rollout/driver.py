"""Drives an engine through many programs at once, each program's turns in their own time.

A program is a generator: it yields the prompts that it wants completed and receives the
completions. No turn waits for the slowest sequence of the turn before, and the batch stays full
while programs end at different times. The same driver serves fixed-horizon training, adaptive
validation and every recipe.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from svr_lightning.core.seeds import SeedContext, derive_seed
from svr_lightning.core.types import Completion, Message, Problem
from svr_lightning.engines.base import Engine, Output, Request, SamplingParams
from svr_lightning.recipes.base import PromptRequest, RolloutFn
from svr_lightning.rollout.rendering import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How completions are drawn."""

    max_completion_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


class Job(NamedTuple):
    """A program and the place in the run that its random draws are derived from."""

    problem: Problem
    sample: int
    program: RolloutFn
    decoding: Decoding


def draw_seed(place: SeedContext, job: Job, turn: int, position: int) -> int:
    """The seed of a job's completion.

    Args:
        place: of the rollout.
        job: what is completed.
        turn: round of the program, from 1.
        position: of the prompt among those that the program asks for in this round.
    """
    return derive_seed(
        place.run_seed,
        step=place.step,
        problem_id=job.problem.id,
        sample=job.sample,
        turn=turn,
        attempt=place.attempt,
        # A program's other prompts of the same round draw apart from every other sample.
        purpose=f"generate {position}" if position else "generate",
    )


def limited(asked: list[Message] | PromptRequest, limit: int) -> PromptRequest:
    """A prompt with the lower of the job's completion limit and its own."""
    if isinstance(asked, PromptRequest):
        return asked._replace(max_completion_tokens=min(limit, asked.max_completion_tokens))
    return PromptRequest(asked, limit)


class RequestError(NamedTuple):
    """What a job comes to one of whose prompts a server does not complete."""

    reason: str


class RolloutDriver(Protocol):
    """What runs programs: a driver of an engine, or of a server."""

    def stream(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Any]]:
        """A job's index and what it comes to, as soon as it ends."""


@dataclass(slots=True)
class _Running:
    """A job that waits for completions."""

    index: int
    job: Job
    round: int = 0
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    outputs: dict[int, Output] = field(default_factory=dict)


class Driver:
    """Runs programs on an engine.

    Args:
        engine: synced to the weights that are to be sampled.
        renderer: for prompts and completion texts.
        run_seed, step, attempt: with the problem, the sample and the turn, they seed each draw.
    """

    def __init__(
        self, engine: Engine, renderer: Renderer, *, run_seed: int, step: int = 0, attempt: int = 0
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self.place = SeedContext(run_seed=run_seed, step=step, attempt=attempt)
        self._waiting: dict[int, tuple[_Running, int]] = {}
        self._next_request = 0

    def run(
        self, jobs: Iterable[Job], on_done: Callable[[int, Any], None] | None = None
    ) -> list[Any]:
        """Run all jobs to their end, all of them begun at once.

        Args:
            jobs: what to run.
            on_done: called with a job's index and result as soon as it ends.

        Returns:
            The programs' return values, in the order of ``jobs``.
        """
        results: dict[int, Any] = {}
        for index, result in self._drive(jobs, math.inf):
            results[index] = result
            if on_done is not None:
                on_done(index, result)
        return [results[index] for index in sorted(results)]

    def stream(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Any]]:
        """Run all jobs to their end, each begun when the engine has room for it.

        The batch is as full as that of :meth:`run`, but jobs end from the beginning on, where
        there each waits for the first turn of all others; and no result is held on to.

        Args:
            jobs: what to run; read as it is needed.

        Yields:
            A job's index and its program's return value, as soon as it ends.
        """
        return self._drive(jobs, self._engine.max_batch)

    def _drive(self, jobs: Iterable[Job], room: float) -> Iterator[tuple[int, Any]]:
        """Yield results as they come, with at most ``room`` jobs unfinished."""
        waiting = enumerate(jobs)
        finished: list[tuple[int, Any]] = []
        unfinished = 0
        more = True
        try:
            while more or unfinished:
                while more and unfinished < room:
                    index, job = next(waiting, (-1, None))
                    if job is None:
                        more = False
                    else:
                        unfinished += 1
                        self._advance(_Running(index=index, job=job), None, finished)
                for output in self._engine.step() if self._waiting else ():
                    self._deliver(output, finished)
                unfinished -= len(finished)
                yield from finished
                finished.clear()
        except BaseException:
            self._engine.cancel()
            self._waiting.clear()
            raise

    def _deliver(self, output: Output, finished: list[tuple[int, Any]]) -> None:
        running, position = self._waiting.pop(output.id)
        running.outputs[position] = output
        if len(running.outputs) < len(running.prompts):
            return
        completions = [
            self._completion(prompt, running.outputs[i]) for i, prompt in enumerate(running.prompts)
        ]
        self._advance(running, completions, finished)

    def _advance(
        self,
        running: _Running,
        completions: list[Completion] | None,
        finished: list[tuple[int, Any]],
    ) -> None:
        """Hand a program its completions and submit what it asks for next, or note its end."""
        program = running.job.program
        try:
            asked = next(program) if completions is None else program.send(completions)
        except StopIteration as end:
            finished.append((running.index, end.value))
            return
        running.round += 1
        limit = running.job.decoding.max_completion_tokens
        prompts = [limited(one, limit) for one in asked]
        running.prompts = [self._renderer.prompt_ids(prompt.messages) for prompt in prompts]
        running.limits = [prompt.max_completion_tokens for prompt in prompts]
        running.outputs = {}
        for position, prompt_ids in enumerate(running.prompts):
            self._waiting[self._next_request] = (running, position)
            self._engine.submit(
                Request(
                    id=self._next_request,
                    prompt_ids=prompt_ids,
                    sampling=self._sampling(running, position, len(prompt_ids)),
                )
            )
            self._next_request += 1

    def _sampling(self, running: _Running, position: int, prompt_tokens: int) -> SamplingParams:
        decoding = running.job.decoding
        room = self._renderer.max_model_len - prompt_tokens
        return SamplingParams(
            max_tokens=min(running.limits[position], room),
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
            seed=draw_seed(self.place, running.job, running.round, position),
        )

    def _completion(self, prompt_ids: Sequence[int], output: Output) -> Completion:
        return Completion(
            prompt_ids=tuple(prompt_ids),
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            text=self._renderer.completion_text(output.token_ids),
            finish_reason=output.finish_reason,
            policy_version=output.version,
        )
