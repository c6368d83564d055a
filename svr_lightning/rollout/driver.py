"""Runs many rollouts at once on one engine.

A rollout is a generator: it yields the prompts that it wants completed and receives the
completions. A rollout's next prompt is submitted as soon as its previous completions arrive, so
no turn waits for the slowest sequence of another rollout and the engine's batch stays full. The
same driver serves training, evaluation and every recipe, on engines in this process and on
servers.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

from svr_lightning.core.parsing import OPEN_TAG, self_check_start
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import (
    AnyCompletion,
    Completion,
    Decoding,
    FinishReason,
    Problem,
)
from svr_lightning.display import Progress
from svr_lightning.engines.base import AnyOutput, Engine, Output, Refusal, Request
from svr_lightning.errors import require
from svr_lightning.recipes.dialogues import Prompt, RolloutGenerator, limited
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks import get_task


@dataclass(frozen=True)
class Job:
    """A rollout of a problem, and the number of its sample."""

    problem: Problem
    sample: int
    rollout: RolloutGenerator


@dataclass
class _Running:
    """A job that waits for completions."""

    index: int
    job: Job
    round: int = 0
    requests: dict[int, Request] = field(default_factory=dict)
    """What it asked for in this round, by number."""
    found: dict[int, AnyCompletion | Refusal] = field(default_factory=dict)
    """What the engine made of them."""


class Driver:
    """Runs rollouts on an engine.

    Args:
        engine: synced to the weights that are to be sampled.
        renderer: for prompts and completion texts; None if the engine reads messages.
        decoding: how completions are drawn.
        seeds: of each draw, with the problem, the sample and the turn.
        progress: counts completions and finished jobs.
        greedy_check: draw completions up to their self-check, and decode this greedily: the tokens
            up to the one that completes ``<self_check>`` become part of the prompt of a second
            request. A completion without one stays as it was drawn.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer | None,
        decoding: Decoding,
        seeds: SeedContext = START,
        *,
        progress: Progress | None = None,
        greedy_check: bool = False,
    ) -> None:
        require(
            renderer is not None or not engine.reads_tokens,
            f"{type(engine).__name__} reads token ids, so the driver needs a renderer",
        )
        self._engine = engine
        self._renderer = renderer if engine.reads_tokens else None
        self._decoding = decoding
        self.seeds = seeds
        self._progress = progress or Progress("", 0, quiet=True)
        self._greedy_check = greedy_check
        self._numbers = count()
        self._waiting: dict[int, _Running] = {}
        """By the number of a request, whose it is."""
        self._solutions: dict[int, Output] = {}
        """By the same number, the drawn solution whose self-check is being decoded greedily."""
        self._ended: list[tuple[int, Any]] = []

    def run(self, jobs: Iterable[Job]) -> list[Any]:
        """Run all jobs, all of them started at once; their rollouts' return values in order."""
        return [result for _, result in sorted(self.stream(jobs, at_once=True))]

    def stream(self, jobs: Iterable[Job], *, at_once: bool = False) -> Iterator[tuple[int, Any]]:
        """Run all jobs to their end.

        Args:
            jobs: what to run; read as it is needed.
            at_once: start all jobs now. By default each is started when the engine has room for
                it: the batch is as full, but the first jobs end early, where otherwise each job
                waits for the first turn of all others.

        Yields:
            A job's index and its rollout's return value as soon as it ends; the
            :class:`Refusal` of a server that does not complete one of its prompts.
        """
        room = self._engine.max_batch
        if at_once:
            jobs = list(jobs)
            room = self._progress.total = len(jobs)
        waiting = enumerate(jobs)
        unfinished = 0
        try:
            with self._progress.showing() as refresh:
                while True:
                    started = list(islice(waiting, room - unfinished))
                    unfinished += len(started)
                    if not unfinished:
                        break
                    for index, job in started:
                        self._advance(_Running(index, job), None)
                    finished = self._engine.step() if self._waiting else {}
                    for number, output in finished.items():
                        self._deliver(number, output)
                    self._progress.in_flight = len(self._waiting)
                    rounds = {job.index: job.round for job in self._waiting.values()}
                    refresh(sum(rounds.values()) - len(rounds))
                    unfinished -= len(self._ended)
                    yield from self._ended
                    self._ended.clear()
        except BaseException:
            self._engine.cancel()
            self._waiting.clear()
            self._ended.clear()
            raise

    def _deliver(self, number: int, output: AnyOutput) -> None:
        """Record one completion; its rollout continues when it has all completions."""
        running = self._waiting[number]
        found: AnyCompletion | Refusal
        if isinstance(output, Output):
            assert self._renderer is not None
            request = running.requests[number]
            if drawn := self._solutions.pop(number, None):
                output = replace(
                    output,
                    token_ids=(*drawn.token_ids, *output.token_ids),
                    logprobs=(*drawn.logprobs, *output.logprobs),
                )
            elif solution := self._solution(running.job.problem, output):
                self._solutions[number] = solution
                self._decode_check(request, solution)
                return
            found = completion_of(self._renderer, request.prompt_ids, output)
        else:
            found = output
        del self._waiting[number]
        running.found[number] = found
        if len(running.found) == len(running.requests):
            self._resume(running)

    def _resume(self, running: _Running) -> None:
        """Give a rollout its completions, if a server refused none of them."""
        completions: list[AnyCompletion] = []
        for number in running.requests:
            found = running.found[number]
            if isinstance(found, Refusal):
                running.job.rollout.close()
                self._end(running, Refusal(f"turn {running.round}: {found.reason}"))
                return
            self._progress.completed(found.completion_tokens)
            completions.append(found)
        self._advance(running, completions)

    def _advance(self, running: _Running, completions: list[AnyCompletion] | None) -> None:
        """Give a rollout its completions and submit its next requests, or record its end."""
        rollout = running.job.rollout
        try:
            prompts = next(rollout) if completions is None else rollout.send(completions)
        except StopIteration as end:
            self._end(running, end.value)
            return
        running.round += 1
        running.found = {}
        # All are rendered before the first is submitted: if one cannot be, none starts.
        requests = [
            self._request(running, position, prompt) for position, prompt in enumerate(prompts)
        ]
        running.requests = {request.id: request for request in requests}
        for request in requests:
            self._waiting[request.id] = running
            self._engine.submit(request)
        if not prompts:  # nothing to wait for
            self._resume(running)

    def _request(self, running: _Running, position: int, prompt: Prompt) -> Request:
        """A prompt for the engine, with as many tokens as there is room for."""
        job = running.job
        messages, limit = limited(prompt, self._decoding.max_completion_tokens)
        ids: tuple[int, ...] = ()
        if self._renderer is not None:
            ids = self._renderer.prompt_ids(messages)
            limit = min(limit, self._renderer.max_model_len - len(ids))
        # The prompts that a rollout asks for together have different seeds.
        purpose = f"generate {position}" if position else "generate"
        sample, turn = job.sample, running.round
        return Request(
            id=next(self._numbers),
            messages=messages,
            prompt_ids=ids,
            sampling=replace(self._decoding, max_completion_tokens=limit),
            seed=self.seeds.seed(job.problem.id, purpose=purpose, sample=sample, turn=turn),
        )

    def _decode_check(self, drawn: Request, solution: Output) -> None:
        """Continue greedily after the drawn part of a completion, under the same number."""
        limit = drawn.sampling.max_completion_tokens - len(solution.token_ids)
        self._engine.submit(
            replace(
                drawn,
                prompt_ids=(*drawn.prompt_ids, *solution.token_ids),
                sampling=Decoding(max_completion_tokens=limit, temperature=0.0),
            )
        )

    def _solution(self, problem: Problem, output: Output) -> Output | None:
        """A completion up to its self-check's opening tag, if it is to be decoded from there."""
        if not self._greedy_check:
            return None
        assert self._renderer is not None
        ids = output.token_ids
        text = self._renderer.completion_text(ids)
        truncated = output.finish_reason is FinishReason.LENGTH
        reading = get_task(problem.task).read(text, truncated=truncated)
        start = self_check_start(text, reading.check)
        stop = start + len(OPEN_TAG)
        if stop > len(text):
            return None
        _, count = self._renderer.tokens_of((start, stop), ids)
        if count == len(ids):
            return None
        return replace(output, token_ids=ids[:count], logprobs=output.logprobs[:count])

    def _end(self, running: _Running, result: Any) -> None:
        self._progress.done += 1
        self._ended.append((running.index, result))


def completion_of(renderer: Renderer, prompt_ids: Sequence[int], output: Output) -> Completion:
    """The tokens that an engine sampled, with their text.

    Raises:
        ConfigError: if their log-probabilities are NaN or infinite: they were drawn from nothing.
    """
    require(
        all(map(math.isfinite, output.logprobs)),
        "the policy's probabilities are NaN or infinite: its config.json or its weights are "
        "damaged, or too large for the precision it computes in",
    )
    return Completion(
        prompt_ids=tuple(prompt_ids),
        token_ids=output.token_ids,
        logprobs=output.logprobs,
        text=renderer.completion_text(output.token_ids),
        finish_reason=output.finish_reason,
        policy_version=output.version,
    )
