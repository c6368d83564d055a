"""Labels of completions: in line where grading is cheap, else in threads beside the engine."""

import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from svr_lightning.core.types import Problem
from svr_lightning.errors import one_line
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import GradingError, Task
from svr_lightning.tasks.graders import Grader, get_grader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Label:
    """y_t of one completion."""

    correct: bool
    error: str | None = None
    """Why the grader could not decide; the completion then counts as wrong."""

    def fields(self) -> dict[str, Any]:
        """The fields of a record: ``correct``, and ``grading_error`` if there is one."""
        return {"correct": self.correct} | ({"grading_error": self.error} if self.error else {})


def label(task: Task, completion: str, problem: Problem, grader: Grader | None = None) -> Label:
    """Grade one completion; an answer that cannot be graded is wrong, and the label says why."""
    try:
        return Label((grader or get_grader("paper")).grade(task, completion, problem))
    except GradingError as error:
        told = one_line(f"problem {problem.id}: counted as wrong, not graded: {error}")
        log.warning("%s", told)
        return Label(correct=False, error=str(error))


class GradingPool:
    """Grades finished turns while the engine generates, in as many threads as their task asks for.

    A label depends on its completion and problem alone, and is asked for by its handle, so that the
    order in which threads finish changes nothing.
    """

    def __init__(self) -> None:
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def submit(
        self, problem: Problem, completions: Iterable[str], grader: Grader | None = None
    ) -> "list[Future[Label]]":
        """Begin to grade completions of one problem.

        Returns:
            One handle per completion. A task without grading workers is graded in this call.
        """
        task = get_task(problem.task)
        if not task.grading_workers:
            return [_done(label(task, text, problem, grader)) for text in completions]
        if task.name not in self._threads:
            self._threads[task.name] = ThreadPoolExecutor(task.grading_workers, "grading")
        threads = self._threads[task.name]
        return [threads.submit(label, task, text, problem, grader) for text in completions]

    def close(self) -> None:
        """Wait for answers that are being graded, drop those that wait, and end the threads."""
        for threads in self._threads.values():
            threads.shutdown(cancel_futures=True)
        self._threads.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _done(value: Label) -> "Future[Label]":
    future: Future[Label] = Future()
    future.set_result(value)
    return future
