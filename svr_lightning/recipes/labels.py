"""Labels before a rollout is over. Only a recipe that imports this file can know one that early.

These are the oracle-guided reference, Murphy and ScRPO, whose prompts show labels where
``privileged`` says so, and those that choose by label what to go on with in training: iGRPO its
draft, Murphy's tree the nodes it expands.
"""

from svr_lightning.core.types import OracleState, Problem, ScoredTurn, Turn
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.base import Recipe
from svr_lightning.scoring import score_turns


def score(recipe: Recipe, problem: Problem, turn: Turn) -> ScoredTurn:
    """Grade one turn.

    Raises:
        ConfigError: if the problem has no reference to grade by.
    """
    if not problem.has_reference:
        raise ConfigError(
            f"model.recipe {type(recipe).__name__} needs reference answers while it solves, and "
            f"problem {problem.id or problem.question[:40]!r} has none; evaluate on a data set "
            "with references, or choose another recipe"
        )
    return score_turns(problem, [turn], recipe.formats)[0]


def oracle_state(recipe: Recipe, problem: Problem, turn: Turn) -> OracleState:
    """What a privileged prompt knows of a turn."""
    return OracleState(
        draft=turn.completion.text,
        truncated=turn.completion.truncated,
        correct=score(recipe, problem, turn).correct,
    )
