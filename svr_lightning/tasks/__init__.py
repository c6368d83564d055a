"""Tasks, found by name or by class path.

A :class:`Problem` carries its task's name, and :func:`get_task` finds the task again by that name
alone: in another process, and when recorded answers are graded again. A task from outside this
package is therefore named by its class path, ``my_package.sorting.Sorting``.
"""

import importlib
from functools import cache
from typing import Any

from svr_lightning.tasks.base import GradingError, Task
from svr_lightning.tasks.countdown import Countdown
from svr_lightning.tasks.gsm8k import GSM8K
from svr_lightning.tasks.math import Math

TASKS: dict[str, Task] = {task.name: task for task in (Countdown(), GSM8K(), Math())}
"""The tasks of this package by name."""

__all__ = ["TASKS", "GradingError", "Task", "get_task"]


def get_task(name: str) -> Task:
    """The task called ``name``: built in, or a class path.

    Raises:
        ValueError: if there is no such task, naming the known ones, or it cannot be made.
    """
    if name in TASKS:
        return TASKS[name]
    return _made(_find_class(name))


@cache
def _made(cls: type[Task]) -> Task:
    """The task of a class, made once."""
    class_path = f"{cls.__module__}.{cls.__qualname__}"
    try:
        task = cls()
    except Exception as error:  # the class is the user's own: it may raise anything
        raise ValueError(f"task {class_path!r} cannot be made: {error}") from error
    if task.name != class_path and type(TASKS.get(task.name)) is not cls:
        raise ValueError(
            f"{class_path}: name = {task.name!r} does not lead to this class; leave it out"
        )
    return task


def _find_class(path: str) -> type[Task]:
    """The task class that a class path names."""
    module, dot, name = path.rpartition(".")
    try:
        task_class: Any = getattr(importlib.import_module(module), name, None) if dot else None
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ValueError(f"task {path!r} cannot be imported: {error}") from error
    if task_class is None:
        names = ", ".join(TASKS)
        raise ValueError(
            f"unknown task {path!r}; known: {names}, or a class path like my_package.tasks.Sorting"
        )
    if not isinstance(task_class, type) or not issubclass(task_class, Task):
        raise ValueError(f"task {path!r} is not a subclass of svr_lightning.tasks.Task")
    return task_class
