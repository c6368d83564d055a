"""Murphy (Ekbote et al. 2025, arXiv 2511.07833): later success credits the failed turns before it.

Differs from GRPO in: failed answers are tried again, as chains or as a tree; a node's credit is its
own reward or the best of its descendants' (MaRS); nodes are compared with their siblings, or,
without siblings, with the others of their turn; every node is optimised. The original's
MeRS, a discounted mean, and its executor feedback, which shows labels, are left out.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from svr_lightning.core.credit import max_to_go, sibling_advantages
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import Problem, Sample, Turn
from svr_lightning.recipes.base import Group, MultiTurn, sample_of
from svr_lightning.recipes.dialogues import RolloutGenerator, tree
from svr_lightning.recipes.labels import score


class Node(NamedTuple):
    """One turn of a tree or a chain."""

    turn: Turn
    reward: float
    correct: bool
    parent: int | None
    """The parent's index among the nodes; None for a first turn."""


@dataclass(frozen=True, kw_only=True)
class Murphy(MultiTurn):
    """Credit is propagated back along chains or trees of attempts."""

    shape: Literal["chain", "tree"] = "chain"
    """``chain``: G trajectories of S turns. ``tree``: the G attempts of a turn are distributed over
    the failed attempts of the previous turn; a problem without failed attempts ends there."""

    def rollouts(self, problem: Problem, seeds: SeedContext = START) -> list[RolloutGenerator]:
        """G chains, or one rollout that grows the tree."""
        if self.shape == "chain":
            return super().rollouts(problem, seeds)
        dialogue = self.dialogue

        def failed(turn: Turn) -> bool:
            return not score(dialogue, problem, turn).correct

        return [tree(dialogue, problem, self.group_size, self.horizon, failed)]

    def credit(self, group: Group) -> list[Sample]:
        """Every node without a solved ancestor, with its advantage among its siblings."""
        nodes = nodes_of(group)
        rewards = [n.reward for n in nodes]
        turns = [n.turn.index for n in nodes]
        # A solved node keeps its own reward: later turns of its chain do not count.
        parents = [
            n.parent if n.parent is None or not nodes[n.parent].correct else None for n in nodes
        ]
        solved: list[bool] = []  # whether an ancestor is
        for n, open_parent in zip(nodes, parents, strict=True):
            solved.append(n.parent is not None and (open_parent is None or solved[open_parent]))
        credited = max_to_go(rewards, parents)
        optimised = [i for i in range(len(nodes)) if not solved[i]]
        advantages = sibling_advantages(
            [credited[i] for i in optimised],
            [(turns[i], nodes[i].parent) for i in optimised],
            [turns[i] for i in optimised],
            self.scale_rewards,
        )
        return [
            sample_of(nodes[i].turn, group.problem, advantage)
            for i, advantage in zip(optimised, advantages, strict=True)
        ]


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
