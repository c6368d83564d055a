"""Labels during a rollout. Only recipes that import this file can read labels before it ends.

Privileged dialogues show them in prompts, in evaluation too: the oracle-guided reference does.
iGRPO and Murphy's tree choose by label, in training alone, which draft is refined.
"""

from collections.abc import Sequence

from svr_lightning.core.prompts import scored
from svr_lightning.core.types import Problem, ScoredTurn, Turn
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.dialogues import Dialogue, PlainRefinement, Prompt
from svr_lightning.tasks import get_task
from svr_lightning.tasks.grading import score_turns


class ScoreShown(PlainRefinement):
    """The label as a score in the prompt (appendix "Oracle-Guided Baseline Prompt")."""

    uses_labels = True

    def later(self, problem: Problem, turns: Sequence[Turn]) -> Prompt:
        """The score of the previous answer, and an instruction that depends on it."""
        correct = score(self, problem, turns[-1]).correct
        return scored(get_task(problem.task), problem, turns[-1], correct)


def score(dialogue: Dialogue, problem: Problem, turn: Turn) -> ScoredTurn:
    """Grade one turn.

    Raises:
        ConfigError: if the problem has no reference to grade by.
    """
    if not problem.has_reference:
        raise ConfigError(
            "model.recipe: this method needs reference answers while it solves, and problem "
            f"{problem.id or problem.question[:40]!r} has none; evaluate on a data set with "
            "references, or choose another recipe"
        )
    return score_turns(problem, [turn], dialogue.formats)[0]
