"""Tasks, found by name, by class path, or by an entry point of group ``svr_lightning.tasks``.

A :class:`Problem` carries its task's name, and :func:`get_task` finds the task again by that name
alone: in another process, and when recorded answers are graded again. A task from outside this
package is therefore named by its class path, followed by its init arguments as JSON if it has any:
``my_package.sorting.Sorting {"timeout": 2}``.
"""

import importlib
import json
from collections.abc import Collection, Iterable, Mapping
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

TaskSpec = str | Mapping[str, Any]
"""A name, or ``{"class_path": ..., "init_args": {...}}`` as configurations write it."""

__all__ = [
    "TASKS",
    "Column",
    "GradingError",
    "Task",
    "TaskSpec",
    "get_task",
    "require_trusted",
    "resolve_task",
]

_loaded: dict[str, Task] = {}


def get_task(name: str) -> Task:
    """The task called ``name``: built in, an entry point, or a class path with its arguments.

    Raises:
        ValueError: if there is no such task, naming the known ones, or it cannot be made.

    Examples:
        >>> get_task("countdown").name
        'countdown'
    """
    if name in TASKS:
        return TASKS[name]
    if name in _loaded and type(_loaded[name]) is _find_class(name.partition(" ")[0]):
        return _loaded[name]
    path, _, arguments = name.partition(" ")
    try:
        init_args = json.loads(arguments or "{}")
    except ValueError:
        init_args = None
    if not isinstance(init_args, dict):
        raise ValueError(f"task {name!r}: what follows the class path must be a JSON object")
    cls = _find_class(path)
    try:
        task = cls(**init_args)
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
    own = task.name.partition(" ")[0]
    try:
        found = type(TASKS[own]) if own in TASKS else _find_class(own)
    except ValueError:
        found = None
    if found is not type(task):
        raise ValueError(
            f"{type(task).__module__}.{type(task).__qualname__}: name = {task.name!r} does not "
            f"lead to this class; leave it out, or make it an entry point of group {ENTRY_POINTS}"
        )


def resolve_task(spec: TaskSpec) -> Task:
    """The task that a configuration names.

    Raises:
        ValueError: if the mapping has other keys, or there is no such task.

    Examples:
        >>> resolve_task({"class_path": "svr_lightning.tasks.countdown.Countdown"}).name
        'countdown'
    """
    if isinstance(spec, str):
        return get_task(spec)
    path, init_args = spec.get("class_path"), spec.get("init_args") or {}
    unknown = set(spec) - {"class_path", "init_args"}
    if not isinstance(path, str) or not isinstance(init_args, Mapping) or unknown:
        raise ValueError(
            f"task: expected a name or {{class_path: ..., init_args: {{...}}}}, not {spec!r}"
        )
    return get_task(f"{path} {json.dumps(dict(init_args), sort_keys=True)}" if init_args else path)


def require_trusted(names: Iterable[str], trusted: Collection[str]) -> None:
    """Refuse class paths among the tasks of recorded answers, since loading one runs its code.

    Raises:
        ValueError: naming the first class path that the user does not trust.
    """
    for path in sorted({name.partition(" ")[0] for name in names}):
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
