"""Tasks, found by name, by class path, or by an entry point of group ``svr_lightning.tasks``.

A :class:`Problem` carries its task's name, and :func:`get_task` finds the task again by that name
alone: in another process, and when recorded answers are graded again. A task from outside this
package is therefore named by its class path, ``my_package.sorting.Sorting``.
"""

import importlib
from collections.abc import Collection, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from svr_lightning.tasks.base import Column, GradingError, Task
from svr_lightning.tasks.countdown import Countdown
from svr_lightning.tasks.gsm8k import GSM8K
from svr_lightning.tasks.math import Math

TASKS: dict[str, Task] = {task.name: task for task in (Countdown(), GSM8K(), Math())}
"""The tasks of this package by name."""
ENTRY_POINTS = "svr_lightning.tasks"

__all__ = ["TASKS", "Column", "GradingError", "Task", "get_task", "require_trusted"]

_loaded: dict[str, Task] = {}


def get_task(name: str) -> Task:
    """The task called ``name``: built in, an entry point, or a class path.

    Raises:
        ValueError: if there is no such task, naming the known ones, or it cannot be made.
    """
    if name in TASKS:
        return TASKS[name]
    cls = _find_class(name)
    if name in _loaded and type(_loaded[name]) is cls:
        return _loaded[name]
    try:
        task = cls()
    except Exception as error:  # the class is the user's own: it may raise anything
        raise ValueError(f"task {name!r} cannot be made: {error}") from error
    _require_own_name(task)
    _loaded[name] = _loaded[task.name] = task
    return task


def _require_own_name(task: Task) -> None:
    """Refuse a name by which another task would be found, or none.

    Raises:
        ValueError: with what to do.
    """
    try:
        found = type(TASKS[task.name]) if task.name in TASKS else _find_class(task.name)
    except ValueError:
        found = None
    if found is not type(task):
        raise ValueError(
            f"{type(task).__module__}.{type(task).__qualname__}: name = {task.name!r} does not "
            f"lead to this class; leave it out, or make it an entry point of group {ENTRY_POINTS}"
        )


def require_trusted(names: Iterable[str], trusted: Collection[str]) -> None:
    """Refuse class paths among the tasks of recorded answers, since loading one runs its code.

    Raises:
        ValueError: naming the first class path that the user does not trust.
    """
    for path in sorted(set(names)):
        if "." in path and not path.startswith("svr_lightning.") and path not in trusted:
            raise ValueError(
                f"the task {path!r} is code outside svr_lightning, which grading would run; "
                f"allow it with --task {path} if you trust it"
            )


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _find_class(path: str) -> type[Task]:
    """The task class that a class path or an entry point names."""
    found: Any = None
    try:
        if "." in path:
            module, _, name = path.rpartition(".")
            found = getattr(importlib.import_module(module), name, None)
        elif path in _entry_points():
            found = _entry_points()[path].load()
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ValueError(f"task {path!r} cannot be imported: {error}") from error
    if found is None:
        known = ", ".join(sorted({*TASKS, *_entry_points()}))
        raise ValueError(
            f"unknown task {path!r}; known: {known}, or a class path like my_package.tasks.Sorting"
        )
    if not isinstance(found, type) or not issubclass(found, Task):
        raise ValueError(f"task {path!r} is not a subclass of svr_lightning.tasks.Task")
    return found
