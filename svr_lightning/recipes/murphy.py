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
    """Its index among the nodes; None for a first turn."""


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
        parents = [n.parent for n in nodes]
        advantages = sibling_advantages(
            max_to_go([n.reward for n in nodes], parents),
            parents,
            [n.turn.index for n in nodes],
            self.scale_rewards,
        )
        return [
            sample_of(n.turn, group.problem, advantage)
            for n, advantage in zip(nodes, advantages, strict=True)
        ]


def nodes_of(group: Group) -> list[Node]:
    """The turns of a group that follow no solved one, parents before their children."""
    nodes: list[Node] = []
    last: dict[int | None, int | None] = {None: None}  # the last node of each trajectory
    for trajectory, scored, rewards in zip(
        group.trajectories, group.scored, group.rewards, strict=True
    ):
        parent = last[trajectory.parent]
        for turn, label, reward in zip(trajectory.turns, scored, rewards, strict=True):
            if parent is not None and nodes[parent].correct:
                break
            nodes.append(Node(turn, reward.total, label.correct, parent))
            parent = len(nodes) - 1
        last[trajectory.sample] = parent
    return nodes
