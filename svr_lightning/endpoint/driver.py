"""Runs programs against a server, each program's turns in their own time."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from svr_lightning.core.seeds import SeedContext, derive_seed
from svr_lightning.core.types import RemoteCompletion
from svr_lightning.endpoint.answers import AnswerJournal
from svr_lightning.endpoint.client import ChatClient, ServerGoneError, open_http
from svr_lightning.endpoint.progress import Progress
from svr_lightning.endpoint.protocol import request_body, request_key
from svr_lightning.endpoint.settings import EndpointSettings
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.base import PromptRequest
from svr_lightning.rollout.driver import Job, RequestError, draw_seed, limited

_REFUSALS = 8
"""Requests that a server may refuse before it has answered one: then it is asked wrongly."""


class RemoteDriver:
    """What :class:`svr_lightning.rollout.driver.Driver` is to an engine, to a server.

    A trajectory's next turn is sent the moment its previous turn has come, and trajectories are
    begun in order, as many at once as requests may be in flight.

    Args:
        settings: which server.
        journal: of the answers that are there already, and of those to come.
        run_seed: with the problem, the sample and the turn, it seeds each draw.
        chat_template_kwargs: for the server's chat template.
        progress: told of what happens.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        journal: AnswerJournal,
        *,
        run_seed: int,
        chat_template_kwargs: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._place = SeedContext(run_seed=run_seed)
        self._template_kwargs = chat_template_kwargs
        self._progress = progress
        self._refusals = 0

    def stream(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Any]]:
        """Run all jobs to their end, each begun when a request for it may be sent.

        Args:
            jobs: what to run; read as it is needed.

        Yields:
            A job's index and its return value, as soon as it ends; a :class:`RequestError`
            for a rollout one of whose prompts the server does not complete.

        Raises:
            ConfigError: if the server is gone, lets nobody in, or refuses everything.
        """
        try:
            with self._progress.showing(), asyncio.Runner() as runner:
                ended: asyncio.Queue[tuple[int, Any] | None] = asyncio.Queue()
                work = runner.get_loop().create_task(self._work(enumerate(jobs), ended))
                while (end := runner.run(ended.get())) is not None:
                    yield end
                runner.run(_outcome(work))
        except ServerGoneError as error:
            raise ConfigError(
                f"{error}. Start the server again and repeat the command: the "
                f"{len(self._journal)} answers in {self._journal.path} are not asked for again"
            ) from error

    async def _work(
        self, waiting: Iterator[tuple[int, Job]], ended: asyncio.Queue[tuple[int, Any] | None]
    ) -> None:
        """Put every job's end into the queue, and None after the last one or an error."""
        seed = derive_seed(self._place.run_seed, step=0, problem_id="", purpose="retry")
        slots = asyncio.Semaphore(self._settings.concurrency)
        try:
            async with open_http(self._settings) as http, asyncio.TaskGroup() as group:
                client = ChatClient(self._settings, http, seed)

                async def trajectories() -> None:
                    for index, job in waiting:
                        end = await self._trajectory(job, client, slots)
                        self._progress.done += 1
                        ended.put_nowait((index, end))

                for _ in range(self._settings.concurrency):
                    group.create_task(trajectories())
        except BaseExceptionGroup as several:  # the first; the other tasks are cancelled
            raise several.exceptions[0] from None
        finally:
            ended.put_nowait(None)

    async def _trajectory(self, job: Job, client: ChatClient, slots: asyncio.Semaphore) -> Any:
        program = job.program
        limit = job.decoding.max_completion_tokens
        try:
            asked = next(program)
            turn = 1
            while True:
                answers = await asyncio.gather(
                    *(
                        self._complete(job, turn, position, limited(prompt, limit), client, slots)
                        for position, prompt in enumerate(asked)
                    )
                )
                refusals = [answer for answer in answers if isinstance(answer, RequestError)]
                if refusals:
                    program.close()
                    return RequestError(f"turn {turn}: {refusals[0].reason}")
                asked = program.send(answers)
                turn += 1
        except StopIteration as end:
            return end.value

    async def _complete(
        self,
        job: Job,
        turn: int,
        position: int,
        prompt: PromptRequest,
        client: ChatClient,
        slots: asyncio.Semaphore,
    ) -> RemoteCompletion | RequestError:
        body = request_body(
            self._settings.model_name,
            prompt.messages,
            replace(job.decoding, max_completion_tokens=prompt.max_completion_tokens),
            seed=draw_seed(self._place, job, turn, position),
            chat_template_kwargs=self._template_kwargs,
        )
        key = request_key(body)
        known = self._journal.get(key)
        if known is not None:
            self._progress.turns += 1
            return known
        async with slots:
            with self._progress.request():
                answer = await client.complete(body)
        if isinstance(answer, RequestError):
            self._note_refusal(answer)
            return answer
        self._journal.add(key, answer)
        self._progress.turns += 1
        self._progress.tokens += answer.completion_tokens
        return answer

    def _note_refusal(self, refusal: RequestError) -> None:
        """One prompt may be too long; but who has answered nothing is asked in the wrong way."""
        self._refusals += 1
        if self._refusals >= _REFUSALS and not len(self._journal):
            raise ConfigError(
                f"{self._settings.base_url} completed none of the first {self._refusals} prompts: "
                f"{refusal.reason}; change what it objects to"
            )


async def _outcome(work: asyncio.Task[None]) -> None:
    """Raise what ended the work, if anything did."""
    await work
