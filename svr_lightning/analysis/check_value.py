"""What a policy's self-check is worth: ways to spend the same tokens, with it and without it.

Two recordings of one policy on the same problems are compared: turns that refine a draft, and fresh
turns, which are independent samples.
"""

from collections.abc import Callable
from typing import Any

from svr_lightning.analysis.choice import Options, choose, draw, joined, measured
from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.stops import families, options_of
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.stopping import FixedTurns, Majority, StopRule

FIRST = "first answer"
VOTE = "majority vote of samples"
FREE = "best stop without the self-check"
REFINING = "refining with the self-check"
FRESH = "fresh samples with the self-check"


def check_value(refined: TurnTable, fresh: TurnTable, answers: int = 3) -> Any:
    """Accuracy of each way within the tokens of some first answers.

    A way is a set of stopping rules with each T_max. The best one within the budget is chosen on
    other problems than it is measured on, see :mod:`svr_lightning.analysis.choice`.

    Args:
        refined: every turn of refinement on every problem.
        fresh: every fresh turn on the same problems.
        answers: the budget, as a multiple of the mean tokens of a first answer.

    Returns:
        ``budget`` in tokens per problem; ``rows`` of ``name``, ``accuracy``, ``ci95`` and
        ``tokens``, None where no rule is cheap enough; ``gap`` and ``gap_ci95``: fresh samples with
        the self-check minus the best stop without it, paired. Intervals include the choice.
    """

    def options(table: TurnTable, wanted: Callable[[StopRule], bool]) -> Options:
        most = table.correct.shape[1]
        every = [pair for family in families(table, most).values() for pair in family]
        rules = [(r, turns) for r, turns in every if isinstance(r, StopRule) and wanted(r)]
        return options_of([table], rules, most)

    def free(rule: StopRule) -> bool:
        return not rule.reads_self_check

    first = options(refined, lambda rule: rule == FixedTurns(turns=1))
    ways = {
        FIRST: first,
        VOTE: options(fresh, lambda rule: isinstance(rule, Majority)),
        FREE: joined([options(refined, free), options(fresh, free)]),
        REFINING: options(refined, lambda rule: rule.reads_self_check),
        FRESH: options(fresh, lambda rule: rule.reads_self_check),
    }
    budget = answers * float(first.tokens.mean())
    draws = draw(refined.cluster)
    found = {name: choose(way, [budget], draws)[0] for name, way in ways.items()}
    ours, rival = found[FRESH], found[FREE]
    gap = ours.accuracy - rival.accuracy if ours and rival else None
    return {
        "budget": budget,
        "rows": [{"name": name, **measured(one)} for name, one in found.items()],
        "gap": None if gap is None else float(gap[0]),
        "gap_ci95": None if gap is None else percentile_interval(gap[1:]),
    }
