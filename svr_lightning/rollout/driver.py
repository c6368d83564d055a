"""Runs many rollout programs at once on one engine.

A program is a generator: it yields the prompts that it wants completed and receives the
completions. A program's next prompt is submitted as soon as its previous completions arrive, so
no turn waits for the slowest sequence of another program and the engine's batch stays full. The
same driver serves training, evaluation and every recipe, on engines in this process and on
servers.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from svr_lightning.core.seeds import SeedContext, derive_seed
from svr_lightning.core.types import AnyCompletion, Completion, Decoding, Message, Problem
from svr_lightning.display import Progress
from svr_lightning.engines.base import Engine, Output, Refusal, Request, TextOutput
from svr_lightning.errors import require
from svr_lightning.recipes.dialogues import PromptRequest, RolloutFn, limited
from svr_lightning.rollout.rendering import Renderer


@dataclass(frozen=True, slots=True)
class Job:
    """A program that completes prompts about a problem."""

    problem: Problem
    sample: int
    program: RolloutFn
    decoding: Decoding
    seeds: SeedContext | None = None
    """What seeds its random draws; None: the driver's."""


def draw_seed(seeds: SeedContext, job: Job, turn: int, position: int) -> int:
    """The seed of the completion of the prompt at ``position`` in a round, counted from 0."""
    # A program's other prompts of the same round have their own seeds too.
    return derive_seed(
        seeds.run_seed,
        step=seeds.step,
        problem_id=job.problem.id,
        sample=job.sample,
        turn=turn,
        attempt=seeds.attempt,
        purpose=f"generate {position}" if position else "generate",
    )


class RequestError(NamedTuple):
    """The result of a job if a server does not complete one of its prompts."""

    reason: str


@dataclass(slots=True)
class _Running:
    """A job that waits for completions."""

    index: int
    job: Job
    round: int = 0
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    outputs: dict[int, Output | TextOutput | Refusal] = field(default_factory=dict)


class Driver:
    """Runs programs on an engine.

    Args:
        engine: synced to the weights that are to be sampled.
        renderer: for prompts and completion texts; None if the engine reads messages.
        run_seed, step, attempt: seed each draw, with the problem, the sample and the turn.
        progress: counts completions and finished jobs.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer | None,
        *,
        run_seed: int,
        step: int = 0,
        attempt: int = 0,
        progress: Progress | None = None,
    ) -> None:
        require(
            renderer is not None or not engine.reads_tokens,
            f"{type(engine).__name__} reads token ids, so the driver needs a renderer",
        )
        self._engine = engine
        self._renderer = renderer if engine.reads_tokens else None
        self.seeds = SeedContext(run_seed=run_seed, step=step, attempt=attempt)
        self._progress = progress or Progress("", 0, quiet=True)
        self._waiting: dict[int, tuple[_Running, int]] = {}
        self._next_request = 0

    def run(self, jobs: Iterable[Job]) -> list[Any]:
        """Run all jobs, all of them started at once; their programs' return values in order."""
        results = dict(self.stream(jobs, at_once=True))
        return [results[index] for index in sorted(results)]

    def stream(self, jobs: Iterable[Job], *, at_once: bool = False) -> Iterator[tuple[int, Any]]:
        """Run all jobs to their end.

        Args:
            jobs: what to run; read as it is needed.
            at_once: start all jobs now. By default each is started when the engine has room for
                it: the batch is as full, but the first jobs end early, where otherwise each job
                waits for the first turn of all others.

        Yields:
            A job's index and its program's return value as soon as it ends; a
            :class:`RequestError` if a server does not complete one of its prompts.
        """
        room: float = self._engine.max_batch
        if at_once:
            jobs, room = list(jobs), math.inf
            self._progress.total = len(jobs)
        waiting = enumerate(jobs)
        finished: list[tuple[int, Any]] = []
        unfinished = 0
        more = True
        try:
            with self._progress.showing() as refresh:
                while more or unfinished:
                    while more and unfinished < room:
                        index, job = next(waiting, (-1, None))
                        if job is None:
                            more = False
                        else:
                            unfinished += 1
                            self._advance(_Running(index=index, job=job), None, finished)
                    self._progress.in_flight = len(self._waiting)
                    for output in self._engine.step() if self._waiting else ():
                        self._deliver(output, finished)
                        self._progress.in_flight = len(self._waiting)
                    refresh()
                    unfinished -= len(finished)
                    yield from finished
                    finished.clear()
        except BaseException:
            self._engine.cancel()
            self._waiting.clear()
            raise

    def _deliver(
        self, output: Output | TextOutput | Refusal, finished: list[tuple[int, Any]]
    ) -> None:
        """Record one completion; its program continues when it has all completions."""
        running, position = self._waiting.pop(output.id)
        running.outputs[position] = output
        self._progress.completed(_generated_tokens(output))
        if len(running.outputs) == len(running.prompts):
            self._resume(running, finished)

    def _resume(self, running: _Running, finished: list[tuple[int, Any]]) -> None:
        """Give a program its completions, if a server refused none of them."""
        outputs = [running.outputs[position] for position in range(len(running.prompts))]
        refusals = [output for output in outputs if isinstance(output, Refusal)]
        if refusals:
            running.job.program.close()
            error = RequestError(f"turn {running.round}: {refusals[0].reason}")
            self._end(running, error, finished)
            return
        completions = [
            self._completion(prompt, output)
            for prompt, output in zip(running.prompts, outputs, strict=True)
        ]
        self._advance(running, completions, finished)

    def _advance(
        self,
        running: _Running,
        completions: list[AnyCompletion] | None,
        finished: list[tuple[int, Any]],
    ) -> None:
        """Give a program its completions and submit its next requests, or record its end."""
        program = running.job.program
        try:
            requests = next(program) if completions is None else program.send(completions)
        except StopIteration as end:
            self._end(running, end.value, finished)
            return
        running.round += 1
        running.outputs = {}
        prompts = [limited(one, running.job.decoding.max_completion_tokens) for one in requests]
        # Rendered before the first is submitted: one that cannot be rendered starts none.
        running.prompts = [self._prompt_ids(prompt.messages) for prompt in prompts]
        for position, prompt in enumerate(prompts):
            self._submit(running, position, prompt)

    def _submit(self, running: _Running, position: int, prompt: PromptRequest) -> None:
        number = self._next_request
        self._next_request += 1
        self._waiting[number] = (running, position)
        ids = running.prompts[position]
        limit = prompt.max_completion_tokens
        if self._renderer is not None:
            limit = min(limit, self._renderer.max_model_len - len(ids))
        job = running.job
        self._engine.submit(
            Request(
                id=number,
                messages=prompt.messages,
                prompt_ids=ids,
                sampling=replace(job.decoding, max_completion_tokens=limit),
                seed=draw_seed(job.seeds or self.seeds, job, running.round, position),
            )
        )

    def _end(self, running: _Running, result: Any, finished: list[tuple[int, Any]]) -> None:
        self._progress.done += 1
        finished.append((running.index, result))

    def _prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return () if self._renderer is None else self._renderer.prompt_ids(messages)

    def _completion(
        self, prompt_ids: Sequence[int], output: Output | TextOutput | Refusal
    ) -> AnyCompletion:
        if isinstance(output, TextOutput):
            return output.completion
        assert self._renderer is not None
        assert isinstance(output, Output)
        return completion_of(self._renderer, prompt_ids, output)


def completion_of(renderer: Renderer, prompt_ids: Sequence[int], output: Output) -> Completion:
    """The tokens that an engine sampled, with their text."""
    return Completion(
        prompt_ids=tuple(prompt_ids),
        token_ids=output.token_ids,
        logprobs=output.logprobs,
        text=renderer.completion_text(output.token_ids),
        finish_reason=output.finish_reason,
        policy_version=output.version,
    )


def _generated_tokens(output: Output | TextOutput | Refusal) -> int:
    if isinstance(output, Output):
        return len(output.token_ids)
    return output.completion.completion_tokens if isinstance(output, TextOutput) else 0
