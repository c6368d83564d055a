"""Tasks by name. To add one, subclass :class:`Task` in a file of its own and list it here."""

from svr_lightning.tasks.base import Task
from svr_lightning.tasks.countdown import Countdown
from svr_lightning.tasks.gsm8k import GSM8K
from svr_lightning.tasks.math import Math

TASKS: dict[str, Task] = {task.name: task for task in (Countdown(), GSM8K(), Math())}

__all__ = ["TASKS", "Task", "get_task"]


def get_task(name: str) -> Task:
    """The task called ``name``.

    Raises:
        ValueError: naming the known tasks.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known: {', '.join(sorted(TASKS))}")
    return TASKS[name]
