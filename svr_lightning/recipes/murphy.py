"""Murphy (Ekbote et al. 2025, arXiv 2511.07833): later success credits the failed turns before it.

Differs from GRPO-MT in: failed nodes are expanded, as chains or as a tree; a node's credit is its
own reward or what its descendants made of it (MaRS, MeRS); nodes are compared with their siblings,
or where they have none with the others of their turn; every node is optimised. The original's
executor feedback is left out unless ``feedback: binary`` asks for it, which makes it privileged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from svr_lightning.core import baseline_prompts
from svr_lightning.core.credit import beyond_success, max_to_go, mean_to_go, sibling_advantages
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import Message, Problem, Sample, Turn
from svr_lightning.recipes.base import Group, PromptRequest, RolloutFn, sample_of
from svr_lightning.recipes.baseline import Baseline, LossTurns, learns, turns_learned
from svr_lightning.recipes.labels import oracle_state, score
from svr_lightning.recipes.options import check_range
from svr_lightning.recipes.tree import grow, nodes_of
from svr_lightning.tasks import get_task


@dataclass(frozen=True, kw_only=True)
class Murphy(Baseline):
    """Credit that flows back along chains or trees of attempts."""

    group_size: int = 8
    """G, attempts at each turn."""
    horizon: int = 3
    """S, turns."""
    shape: Literal["chain", "tree"] = "chain"
    """``chain``: G trajectories of S turns. ``tree``: the G attempts of a turn are dealt in turn to
    the failed attempts of the turn before; a problem that nobody fails ends there."""
    propagate: Literal["max", "mean"] = "max"
    """MaRS, the best of a node and its descendants, or MeRS, a discounted mean."""
    discount: float = 0.9
    """gamma of MeRS, for each step back; MaRS has none."""
    train_after_solved: bool = False
    """Whether a chain is optimised beyond the turn that solved the problem."""
    loss_turns: LossTurns = "all"
    """Which turns are optimised: ``all`` nodes, or those of the ``final`` turn."""
    feedback: Literal["none", "binary"] = "none"
    """``binary`` shows labels in prompts, in evaluation too."""

    def check(self, updates_per_rollout: int = 1) -> None:
        """Refuse options that are out of range."""
        super().check(updates_per_rollout)
        check_range("discount", self.discount, 0, 1)

    @property
    def uses_labels(self) -> bool:
        """Whether prompts show labels."""
        return self.feedback == "binary"

    @property
    def samples_per_problem(self) -> int:
        """Every node, where none is left out."""
        return self.group_size * turns_learned(self.horizon, self.loss_turns)

    def programs(self, problem: Problem, place: SeedContext = START) -> list[RolloutFn]:
        """G chains, or one program that grows the tree."""
        if self.shape == "tree":

            def failed(turn: Turn) -> bool:
                return not score(self, problem, turn).correct

            return [grow(self, problem, self.group_size, self.horizon, failed)]
        return [self.inference(problem, i, self.horizon) for i in range(self.group_size)]

    def later_messages(
        self, problem: Problem, turns: Sequence[Turn]
    ) -> list[Message] | PromptRequest:
        """The neutral prompt, or the oracle's."""
        if self.feedback == "none":
            return super().later_messages(problem, turns)
        style = get_task(problem.task).style
        state = oracle_state(self, problem, turns[-1])
        return baseline_prompts.scored(style, problem.question, state, turns[-1].index + 1)

    def credit(self, group: Group) -> list[Sample]:
        """Every node that is not beyond a solution, with its advantage among its siblings."""
        nodes = nodes_of(group)
        rewards = [n.reward for n in nodes]
        turns = [n.turn.index for n in nodes]
        solved = beyond_success([n.parent for n in nodes], [n.correct for n in nodes])
        # A solved node keeps its own reward: what a chain does after it is not an attempt at it.
        parents = [
            n.parent if n.parent is None or not nodes[n.parent].correct else None for n in nodes
        ]
        credited = (
            max_to_go(rewards, parents)
            if self.propagate == "max"
            else mean_to_go(rewards, parents, turns, self.horizon, self.discount)
        )
        kept = [
            i
            for i, node in enumerate(nodes)
            if (self.train_after_solved or not solved[i])
            and learns(node.turn, self.horizon, self.loss_turns)
        ]
        advantages = sibling_advantages(
            [credited[i] for i in kept],
            [(turns[i], nodes[i].parent) for i in kept],
            [turns[i] for i in kept],
            self.scale_rewards,
        )
        return [
            sample_of(nodes[i].turn, group.problem, advantage)
            for i, advantage in zip(kept, advantages, strict=True)
        ]
