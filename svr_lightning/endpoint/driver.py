"""Runs programs against a server, each program's turns in their own time."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from svr_lightning.core.seeds import derive_seed
from svr_lightning.core.types import Message, RemoteCompletion
from svr_lightning.endpoint.client import ChatClient, ServerGoneError, open_http
from svr_lightning.endpoint.journal import Journal
from svr_lightning.endpoint.progress import Progress
from svr_lightning.endpoint.protocol import request_body, request_key
from svr_lightning.endpoint.settings import EndpointSettings
from svr_lightning.errors import ConfigError
from svr_lightning.rollout import Job, Origin, Refused, draw_seed

_REFUSALS = 8
"""Requests that a server may refuse before it has answered one: then it is asked wrongly."""


class RemoteDriver:
    """What :class:`svr_lightning.rollout.Driver` is to an engine, to a server.

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
        journal: Journal,
        *,
        run_seed: int,
        chat_template_kwargs: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._origin = Origin(run_seed)
        self._template_kwargs = chat_template_kwargs
        self._progress = progress
        self._refusals = 0

    def run(
        self, jobs: Iterable[Job], on_done: Callable[[int, Any], None] | None = None
    ) -> list[Any]:
        """Run all jobs to their end.

        Args:
            jobs: what to run.
            on_done: called with a job's index and result as soon as it ends.

        Returns:
            The programs' return values in the order of ``jobs``; a :class:`Refused` for each
            program one of whose prompts the server does not complete.

        Raises:
            ConfigError: if the server is gone, lets nobody in, or refuses everything.
        """
        try:
            return asyncio.run(self._run(list(jobs), on_done))
        except ServerGoneError as error:
            raise ConfigError(
                f"{error}. Start the server again and repeat the command: the "
                f"{len(self._journal)} answers in {self._journal.path} are not asked for again"
            ) from error

    async def _run(self, jobs: list[Job], on_done: Callable[[int, Any], None] | None) -> list[Any]:
        results: dict[int, Any] = {}
        waiting = iter(enumerate(jobs))
        self._progress.begin(len(jobs))
        with _one_error(), self._progress.showing():
            async with open_http(self._settings) as http, asyncio.TaskGroup() as group:
                seed = derive_seed(self._origin.run_seed, step=0, problem_id="", purpose="retry")
                client = ChatClient(self._settings, http, seed)
                slots = asyncio.Semaphore(self._settings.concurrency)

                async def work() -> None:
                    for index, job in waiting:
                        results[index] = await self._trajectory(job, client, slots)
                        self._progress.done += 1
                        if on_done is not None:
                            on_done(index, results[index])

                for _ in range(min(self._settings.concurrency, len(jobs))):
                    group.create_task(work())
        return [results[index] for index in range(len(jobs))]

    async def _trajectory(self, job: Job, client: ChatClient, slots: asyncio.Semaphore) -> Any:
        program = job.program
        try:
            asked = next(program)
            turn = 1
            while True:
                answers = await asyncio.gather(
                    *(
                        self._complete(job, turn, position, messages, client, slots)
                        for position, messages in enumerate(asked)
                    )
                )
                refusals = [answer for answer in answers if isinstance(answer, Refused)]
                if refusals:
                    program.close()
                    return Refused(f"turn {turn}: {refusals[0].reason}")
                asked = program.send(answers)
                turn += 1
        except StopIteration as end:
            return end.value

    async def _complete(
        self,
        job: Job,
        turn: int,
        position: int,
        messages: list[Message],
        client: ChatClient,
        slots: asyncio.Semaphore,
    ) -> RemoteCompletion | Refused:
        body = request_body(
            self._settings.model_name,
            messages,
            job.decoding,
            seed=draw_seed(self._origin, job, turn, position),
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
        if isinstance(answer, Refused):
            self._note_refusal(answer)
            return answer
        self._journal.add(key, answer)
        self._progress.turns += 1
        self._progress.tokens += answer.completion_tokens
        return answer

    def _note_refusal(self, refusal: Refused) -> None:
        """One prompt may be too long; but who has answered nothing is asked in the wrong way."""
        self._refusals += 1
        if self._refusals >= _REFUSALS and not len(self._journal):
            raise ConfigError(
                f"{self._settings.base_url} completed none of the first {self._refusals} prompts: "
                f"{refusal.reason}; change what it objects to"
            )


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    """The first error of a task group instead of the group; the other tasks are cancelled."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
