"""Every training trajectory in ``rollouts.jsonl``, and the best and the worst on the screen."""

import json
import os
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from svr_lightning.core.ranges import WholeNumber, check_arguments
from svr_lightning.display import Line, print_turn, say
from svr_lightning.recipes.base import Group, Recipe
from svr_lightning.training.logs import gather_lists

SCHEMA_VERSION = 1


class RolloutLog(Callback):
    """Writes and shows rollouts. A resumed run first cuts the file back to its checkpoint.

    Args:
        every: optimizer steps between two pairs of printed trajectories; 0 prints none.
    """

    @check_arguments
    def __init__(self, every: WholeNumber = 20) -> None:
        self.every = every
        self._bytes = 0

    def state_dict(self) -> dict[str, Any]:
        """The length of the file at the checkpoint."""
        return {"bytes": self._bytes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember it until training starts."""
        self._bytes = int(state_dict["bytes"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Cut the file back to the current step."""
        if not trainer.is_global_zero:
            return
        path = _path(trainer)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, min(self._bytes, path.stat().st_size))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log a rollout before it is trained on, under the step that it leads to."""
        groups: list[Group] = batch.groups
        step = trainer.global_step + 1
        recipe: Recipe = pl_module.recipe
        lines = gather_lists(
            [line for group in groups for line in group_lines(group, step, recipe)]
        )
        if not trainer.is_global_zero:
            return
        with _path(trainer).open("a", encoding="utf-8") as stream:
            stream.write("".join(json.dumps(line) + "\n" for line in lines))
        self._bytes = _path(trainer).stat().st_size
        if self.every and self._is_due(step, pl_module.updates_per_rollout):
            with Line.external_write_mode():
                print_extremes(groups, step, recipe)

    def _is_due(self, step: int, updates: int) -> bool:
        """Whether a multiple of ``every`` is among the optimizer steps of a rollout."""
        return (step + updates - 1) // self.every > (step - 1) // self.every


def group_lines(group: Group, step: int, recipe: Recipe) -> list[dict[str, Any]]:
    """One line per trajectory of a group, marked where its prompts showed labels.

    A turn that is feedback has no label.
    """
    answers = recipe.dialogue.answers
    return [
        {
            "schema_version": SCHEMA_VERSION,
            "step": step,
            "id": group.problem.id,
            "question": group.problem.question,
            "sample": trajectory.sample,
            **({} if trajectory.parent is None else {"parent": trajectory.parent}),
            **({"privileged": True} if recipe.uses_labels else {}),
            "return": group.returns[index],
            "turns": [
                {
                    "turn": turn.index,
                    "text": turn.completion.text,
                    "correct": scored.correct if answers(turn.index) else None,
                    **({} if answers(turn.index) else {"feedback": True}),
                    "verdict": turn.check.verdict.value if turn.check else None,
                    "confidence": turn.check.confidence if turn.check else None,
                    "truncated": turn.completion.truncated,
                    "completion_tokens": scored.completion_tokens,
                    "reward": reward.total,
                }
                for turn, scored, reward in zip(
                    trajectory.turns, group.scored[index], group.rewards[index], strict=True
                )
            ],
        }
        for index, trajectory in enumerate(group.trajectories)
    ]


def print_extremes(groups: list[Group], step: int, recipe: Recipe) -> None:
    """Print the trajectory with the highest return and the one with the lowest."""
    answers = recipe.dialogue.answers
    ranked = sorted(
        ((r, group, i) for group in groups for i, r in enumerate(group.returns)),
        key=lambda entry: entry[0],
    )
    for name, (value, group, index) in (("best", ranked[-1]), ("worst", ranked[0])):
        title = f"step {step}  {name}  {group.problem.id}  R={value:+.2f}"
        title += "  privileged: labels in prompts" if recipe.uses_labels else ""
        say(title, style="bold underline")
        say(group.problem.question, style="italic")
        trajectory = group.trajectories[index]
        for turn, scored in zip(trajectory.turns, group.scored[index], strict=True):
            label = f"y={int(scored.correct)}" if answers(turn.index) else "feedback"
            print_turn(turn, f"{label}  {scored.completion_tokens} tokens", lines=6)


def _path(trainer: Trainer) -> Path:
    return Path(trainer.default_root_dir) / "rollouts.jsonl"
