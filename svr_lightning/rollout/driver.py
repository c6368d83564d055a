"""Runs many rollout programs at once on one engine.

A program is a generator: it yields the prompts that it wants completed and receives the
completions. A program's next prompt is submitted as soon as its previous completions arrive, so
no turn waits for the slowest sequence of another program and the engine's batch stays full. The
same driver serves training, evaluation and every recipe, on engines in this process and on
servers.

The tokens sampled for a job are kept with it, as plain values. A suspended job is resumed by
feeding them to a new program, in another process if need be.
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
from svr_lightning.recipes.dialogues import PromptRequest, RolloutFn, limited
from svr_lightning.rollout.rendering import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How completions are drawn."""

    max_completion_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


Rounds = list[list[list[Output]]]
"""The tokens sampled for a program: for each round and each of its prompts the parts of the
completion, of which only the last one has a finish reason."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program and the place in the run that seeds its random draws."""

    problem: Problem
    sample: int
    program: RolloutFn
    decoding: Decoding
    place: SeedContext | None = None
    """None: the driver's."""
    begun: Rounds = field(default_factory=list)
    """The tokens sampled for it so far; the driver adds to it."""


def draw_seed(place: SeedContext, job: Job, turn: int, position: int, drawn: int) -> int:
    """The seed of one completion, or of what follows its first ``drawn`` tokens.

    It answers the prompt at ``position`` among those of a round, from 0.
    """
    # A program's other prompts of the same round have their own seeds too.
    purpose = f"generate {position}" if position else "generate"
    return derive_seed(
        place.run_seed,
        step=place.step,
        problem_id=job.problem.id,
        sample=job.sample,
        turn=turn,
        attempt=place.attempt,
        purpose=f"{purpose} after {drawn}" if drawn else purpose,
    )


class RequestError(NamedTuple):
    """The result of a job if a server does not complete one of its prompts."""

    reason: str


@dataclass(slots=True)
class _Running:
    """A job that waits for completions."""

    index: int
    """Index among the requested jobs; -1 for one that is only run ahead."""
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
        self.agreed = engine.agreed
        self._renderer = renderer if engine.reads_tokens else None
        self.place = SeedContext(run_seed=run_seed, step=step, attempt=attempt)
        self._progress = progress or Progress("", 0, quiet=True)
        self._waiting: dict[int, tuple[_Running, int]] = {}
        self._next_request = 0

    def run(
        self,
        jobs: Iterable[Job],
        on_done: Callable[[int, Any], None] | None = None,
        ahead: Iterable[Job] = (),
    ) -> list[Any]:
        """Run all jobs to their end, all of them started at once.

        Args:
            jobs: what to run.
            on_done: called with a job's index and result as soon as it ends.
            ahead: further jobs, each started when the engine has room, and suspended when the
                last of ``jobs`` ends. Their tokens are in their ``begun``.

        Returns:
            The programs' return values, in the order of ``jobs``.
        """
        jobs = list(jobs)
        self._progress.total = len(jobs)
        results: dict[int, Any] = {}
        for index, result in self._drive(jobs, math.inf, ahead):
            results[index] = result
            if on_done is not None:
                on_done(index, result)
        return [results[index] for index in sorted(results)]

    def stream(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Any]]:
        """Run all jobs to their end, each started when the engine has room for it.

        The batch is as full as in :meth:`run`, but the first jobs end early, whereas there each
        job waits for the first turn of all others; and no result is kept.

        Args:
            jobs: what to run; read as it is needed.

        Yields:
            A job's index and its program's return value as soon as it ends; a
            :class:`RequestError` if a server does not complete one of its prompts.
        """
        return self._drive(jobs, self._engine.max_batch)

    def _drive(
        self, jobs: Iterable[Job], room: float, ahead: Iterable[Job] = ()
    ) -> Iterator[tuple[int, Any]]:
        """Yield results as they come, with at most ``room`` jobs unfinished."""
        waiting, spare = enumerate(jobs), iter(ahead)
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
                    while len(self._waiting) < self._engine.max_batch:
                        if (job := next(spare, None)) is None:
                            break
                        self._advance(_Running(index=-1, job=job), None, finished)
                    self._progress.in_flight = len(self._waiting)
                    for output in self._engine.step() if self._waiting else ():
                        self._deliver(output, finished)
                        self._progress.in_flight = len(self._waiting)
                    unfinished -= len(finished)
                    yield from finished
                    finished.clear()
            self._set_aside()
        except BaseException:
            self._engine.cancel()
            self._waiting.clear()
            raise

    def _set_aside(self) -> None:
        """Stop jobs that run ahead and keep their tokens."""
        for part in self._engine.interrupt() if self._waiting else ():
            running, position = self._waiting[part.id]
            if part.token_ids:
                running.job.begun[running.round - 1][position].append(part)
        self._waiting.clear()

    def _deliver(
        self, output: Output | TextOutput | Refusal, finished: list[tuple[int, Any]]
    ) -> None:
        """Record one completion; its program continues when it has all that it asked for."""
        running, position = self._waiting.pop(output.id)
        running.outputs[position] = output
        if isinstance(output, Output):
            running.job.begun[running.round - 1][position].append(output)
        self._progress.completed(_generated_tokens(output))
        if len(running.outputs) == len(running.prompts):
            self._go_on(running, finished)

    def _go_on(self, running: _Running, finished: list[tuple[int, Any]]) -> None:
        """Give a program the completions that it asked for, if a server refused none of them."""
        outputs = [running.outputs[position] for position in range(len(running.prompts))]
        refusals = [output for output in outputs if isinstance(output, Refusal)]
        if refusals:
            running.job.program.close()
            error = RequestError(f"turn {running.round}: {refusals[0].reason}")
            self._end(running, error, finished)
            return
        begun = running.job.begun[running.round - 1]
        completions = [
            self._completion(prompt, output, parts)
            for prompt, output, parts in zip(running.prompts, outputs, begun, strict=True)
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
            asked = next(program) if completions is None else program.send(completions)
        except StopIteration as end:
            self._end(running, end.value, finished)
            return
        running.round += 1
        running.outputs = {}
        prompts = [limited(one, running.job.decoding.max_completion_tokens) for one in asked]
        # Rendered before the first is submitted: one that cannot be rendered starts none.
        running.prompts = [self._prompt_ids(prompt.messages) for prompt in prompts]
        begun = running.job.begun
        if len(begun) < running.round:
            begun.append([[] for _ in prompts])
        for position, prompt in enumerate(prompts):
            parts = begun[running.round - 1][position]
            if parts and parts[-1].finish_reason is not None:
                running.outputs[position] = parts[-1]
            else:
                self._submit(running, position, prompt, parts)
        if len(running.outputs) == len(prompts):  # all of them known
            self._go_on(running, finished)

    def _submit(
        self, running: _Running, position: int, prompt: PromptRequest, parts: Sequence[Output]
    ) -> None:
        """Request a completion, or the rest of it: its tokens so far become prompt."""
        number = self._next_request
        self._next_request += 1
        self._waiting[number] = (running, position)
        drawn = tuple(token for part in parts for token in part.token_ids)
        ids = running.prompts[position]
        limit = prompt.max_completion_tokens
        sampling = self._sampling(running, position, limit, len(ids), len(drawn))
        self._engine.submit(
            Request(id=number, messages=prompt.messages, prompt_ids=ids + drawn, sampling=sampling)
        )

    def _end(self, running: _Running, result: Any, finished: list[tuple[int, Any]]) -> None:
        if running.index >= 0:
            self._progress.done += 1
            finished.append((running.index, result))

    def _prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return () if self._renderer is None else self._renderer.prompt_ids(messages)

    def _sampling(
        self, running: _Running, position: int, limit: int, prompt_tokens: int, drawn: int
    ) -> SamplingParams:
        decoding = running.job.decoding
        if self._renderer is not None:
            limit = min(limit, self._renderer.max_model_len - prompt_tokens)
        return SamplingParams(
            max_tokens=limit - drawn,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
            seed=draw_seed(
                running.job.place or self.place, running.job, running.round, position, drawn
            ),
        )

    def _completion(
        self,
        prompt_ids: Sequence[int],
        output: Output | TextOutput | Refusal,
        parts: Sequence[Output],
    ) -> AnyCompletion:
        if isinstance(output, TextOutput):
            return output.completion
        assert self._renderer is not None
        return completion_of(self._renderer, prompt_ids, *parts)


def completion_of(renderer: Renderer, prompt_ids: Sequence[int], *parts: Output) -> Completion:
    """The tokens that an engine sampled, in one or several parts, with their text."""
    *before, last = parts
    assert last.finish_reason is not None
    token_ids = tuple(token for part in parts for token in part.token_ids)
    return Completion(
        prompt_ids=tuple(prompt_ids),
        token_ids=token_ids,
        logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
        text=renderer.completion_text(token_ids),
        finish_reason=last.finish_reason,
        policy_version=last.version,
        earlier=tuple(part.version for part in before for _ in part.token_ids),
    )


def _generated_tokens(output: Output | TextOutput | Refusal) -> int:
    """How many tokens were sampled now; those of a journal took no time."""
    if isinstance(output, Output):
        return len(output.token_ids)
    if isinstance(output, TextOutput) and not output.recalled:
        return output.completion.completion_tokens
    return 0
