"""Runs many rollout programs at once on one engine.

A program is a generator: it yields the prompts that it wants completed and receives the
completions. A program's next prompt is submitted as soon as its previous completions are there, so
no turn waits for the slowest sequence of another program and the engine's batch stays full. The
same driver serves training, evaluation and every recipe, on engines in this process and on
servers.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from svr_lightning.core.seeds import SeedContext, derive_seed
from svr_lightning.core.types import AnyCompletion, Completion, Message, Problem
from svr_lightning.display import Progress
from svr_lightning.engines.base import (
    Engine,
    Output,
    Refusal,
    Request,
    SamplingParams,
    TextOutput,
)
from svr_lightning.errors import require
from svr_lightning.recipes.dialogues import RolloutFn, limited
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
    """The seed of one completion: the prompt at ``position`` among those of a round, from 1."""
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
        run_seed, step, attempt: with the problem, the sample and the turn, they seed each draw.
        progress: told of completions and of jobs that end.
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
        self.place = SeedContext(run_seed=run_seed, step=step, attempt=attempt)
        self._progress = progress or Progress("", 0, quiet=True)
        self._waiting: dict[int, tuple[_Running, int]] = {}
        self._next_request = 0

    def run(
        self, jobs: Iterable[Job], on_done: Callable[[int, Any], None] | None = None
    ) -> list[Any]:
        """Run all jobs to their end, all of them started at once.

        Args:
            jobs: what to run.
            on_done: called with a job's index and result as soon as it ends.

        Returns:
            The programs' return values, in the order of ``jobs``.
        """
        jobs = list(jobs)
        self._progress.total = len(jobs)
        results: dict[int, Any] = {}
        for index, result in self._drive(jobs, math.inf):
            results[index] = result
            if on_done is not None:
                on_done(index, result)
        return [results[index] for index in sorted(results)]

    def stream(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Any]]:
        """Run all jobs to their end, each started when the engine has room for it.

        The batch is as full as that of :meth:`run`, but jobs end from the beginning on, whereas
        there each job waits for the first turn of all others; and no result is kept.

        Args:
            jobs: what to run; read as it is needed.

        Yields:
            A job's index and its program's return value as soon as it ends; a
            :class:`RequestError` if a server does not complete one of its prompts.
        """
        return self._drive(jobs, self._engine.max_batch)

    def _drive(self, jobs: Iterable[Job], room: float) -> Iterator[tuple[int, Any]]:
        """Yield results as they come, with at most ``room`` jobs unfinished."""
        waiting = enumerate(jobs)
        finished: list[tuple[int, Any]] = []
        unfinished = 0
        more = True
        try:
            with self._progress.showing(getattr(self._engine, "describe_wait", None)):
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
        """Note one completion; its program goes on when it has all that it asked for."""
        running, position = self._waiting.pop(output.id)
        running.outputs[position] = output
        self._progress.completed(_generated_tokens(output))
        if len(running.outputs) < len(running.prompts):
            return
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
        """Hand a program its completions and submit what it asks for next, or note its end."""
        program = running.job.program
        try:
            asked = next(program) if completions is None else program.send(completions)
        except StopIteration as end:
            self._end(running, end.value, finished)
            return
        running.round += 1
        running.outputs = {}
        prompts = [limited(one, running.job.decoding.max_completion_tokens) for one in asked]
        # Rendered before the first is submitted: one that cannot be rendered starts none.
        running.prompts = [self._prompt_ids(prompt.messages) for prompt in prompts]
        for position, (prompt, ids) in enumerate(zip(prompts, running.prompts, strict=True)):
            number = self._next_request
            self._next_request += 1
            self._waiting[number] = (running, position)
            sampling = self._sampling(running, position, prompt.max_completion_tokens, len(ids))
            self._engine.submit(
                Request(id=number, messages=prompt.messages, prompt_ids=ids, sampling=sampling)
            )

    def _end(self, running: _Running, result: Any, finished: list[tuple[int, Any]]) -> None:
        self._progress.done += 1
        finished.append((running.index, result))

    def _prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return () if self._renderer is None else self._renderer.prompt_ids(messages)

    def _sampling(
        self, running: _Running, position: int, limit: int, prompt_tokens: int
    ) -> SamplingParams:
        decoding = running.job.decoding
        if self._renderer is not None:
            limit = min(limit, self._renderer.max_model_len - prompt_tokens)
        return SamplingParams(
            max_tokens=limit,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
            seed=draw_seed(self.place, running.job, running.round, position),
        )

    def _completion(
        self, prompt_ids: Sequence[int], output: Output | TextOutput | Refusal
    ) -> AnyCompletion:
        if isinstance(output, TextOutput):
            return output.completion
        assert isinstance(output, Output)
        assert self._renderer is not None
        return completion_of(self._renderer, prompt_ids, output)


def completion_of(renderer: Renderer, prompt_ids: Sequence[int], output: Output) -> Completion:
    """What an engine drew, with its text."""
    return Completion(
        prompt_ids=tuple(prompt_ids),
        token_ids=output.token_ids,
        logprobs=output.logprobs,
        text=renderer.completion_text(output.token_ids),
        finish_reason=output.finish_reason,
        policy_version=output.version,
    )


def _generated_tokens(output: Output | TextOutput | Refusal) -> int:
    """How many tokens were sampled for it now; those of a journal took no time."""
    if isinstance(output, Output):
        return len(output.token_ids)
    if isinstance(output, TextOutput) and not output.recalled:
        return output.completion.completion_tokens
    return 0
