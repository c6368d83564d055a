"""Trees of attempts: grown turn by turn, and read back with parents before their children."""

from collections.abc import Callable
from typing import NamedTuple

from svr_lightning.core.types import Problem, Turn
from svr_lightning.recipes.base import Group, RolloutFn
from svr_lightning.recipes.baseline import Baseline, node, turn_of


class Node(NamedTuple):
    """One turn of a tree or a chain."""

    turn: Turn
    reward: float
    correct: bool
    parent: int | None
    """Its place among the nodes; None for a first turn."""


def grow(
    recipe: Baseline, problem: Problem, width: int, horizon: int, failed: Callable[[Turn], bool]
) -> RolloutFn:
    """``width`` attempts at each turn, dealt in turn to the failed ones of the turn before.

    Ends early where none failed.

    Args:
        recipe: writes the prompts.
        problem: what to solve.
        width: attempts at each turn.
        horizon: turns.
        failed: which attempts have children.
    """
    completions = yield [recipe.first_messages(problem)] * width
    level = [node(problem, i, turn_of(c, 1)) for i, c in enumerate(completions)]
    nodes = list(level)
    for index in range(2, horizon + 1):
        open_ends = [n for n in level if failed(n.turns[0])]
        if not open_ends:
            break
        parents = [open_ends[i % len(open_ends)] for i in range(width)]
        completions = yield [recipe.later_messages(problem, parent.turns) for parent in parents]
        level = [
            node(problem, len(nodes) + i, turn_of(completion, index), parent)
            for i, (completion, parent) in enumerate(zip(completions, parents, strict=True))
        ]
        nodes += level
    return nodes


def nodes_of(group: Group) -> list[Node]:
    """Every turn of a group, parents before their children."""
    nodes: list[Node] = []
    last: dict[int, int] = {}
    for trajectory, scored, rewards in zip(
        group.trajectories, group.scored, group.rewards, strict=True
    ):
        parent = None if trajectory.parent is None else last[trajectory.parent]
        for turn, label, reward in zip(trajectory.turns, scored, rewards, strict=True):
            nodes.append(Node(turn, reward.total, label.correct, parent))
            parent = len(nodes) - 1
        last[trajectory.sample] = len(nodes) - 1
    return nodes
