"""What a policy's self-check is worth: ways to spend the same tokens, with it and without it.

A way is a set of stopping rules, each with every T_max. The best of them within a budget is chosen
on other problems than it is measured on, see :mod:`svr_lightning.analysis.choice`.

Two families read the self-check. One reads what the policy *states*, its verdict and confidence,
which are in its text. The other also reads the *probability of the verdict's tokens*, which is not.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from svr_lightning.analysis.choice import Chosen, Options, choose, draw, gap, joined, measured
from svr_lightning.analysis.replay import Row, replay
from svr_lightning.analysis.stops import families, options_of
from svr_lightning.analysis.table import Bools, FirstRight, TurnTable
from svr_lightning.core.stopping import Confident, FixedTurns, Majority, StopRule

FIRST = "first answer"
VOTE = "majority vote of samples"
FREE = "best stop without the self-check"
REFINING = "refining with the self-check"
STATED = "fresh samples, stated check"
PROBABLE = "fresh samples, verdict probability"
PAPER = "fresh samples, by the paper's rule"
TRACE = "fresh samples, reading the trace"
PROGRAM = "fresh samples, a program evaluates"
WITH_CHECK = (REFINING, STATED, PROBABLE, PAPER)
"""The ways that read the self-check."""
Ways = Mapping[str, Options]


class Samples(NamedTuple):
    """Fresh turns of a policy on every problem: independent samples."""

    table: TurnTable
    agrees: Bools | None = None
    """[N, T] whether a turn's own trace ends in two equal results; None if there are no traces."""


def ways_of(samples: Samples, refined: TurnTable | None = None) -> dict[str, Options]:
    """What each way returns, from fresh turns and, if there are some, turns of refinement.

    Of options that return the same, only the first is kept.
    """
    table = samples.table
    fresh = _tried(table)
    free = [fresh(lambda rule: not rule.reads_self_check)]
    ways = {}
    if refined is not None:
        refining = _tried(refined)
        ways[FIRST] = refining(lambda rule: rule == FixedTurns(turns=1))
        ways[REFINING] = refining(lambda rule: rule.reads_self_check)
        free.insert(0, refining(lambda rule: not rule.reads_self_check))
    ways[VOTE] = fresh(lambda rule: isinstance(rule, Majority))
    ways[FREE] = joined(free)
    ways[STATED] = fresh(lambda rule: rule.reads_self_check and not rule.needs_tokens)
    ways[PROBABLE] = fresh(lambda rule: rule.reads_self_check)
    limits = range(1, table.correct.shape[1] + 1)
    ways[PAPER] = options_of([table], [(Confident(), turns) for turns in limits])
    if samples.agrees is not None:
        ways[TRACE] = _first_that(samples.agrees, table)
    ways[PROGRAM] = options_of([table], [(FirstRight(), turns) for turns in limits])
    return {name: joined([options]) for name, options in ways.items()}


def _tried(table: TurnTable) -> Callable[[Callable[[StopRule], bool]], Options]:
    """Chooses among the options of every rule without labels, with every T_max."""
    pairs = []
    for family in families(table, table.correct.shape[1]).values():
        pairs += [(rule, turns) for rule, turns in family if isinstance(rule, StopRule)]
    options = options_of([table], pairs)

    def those(wanted: Callable[[StopRule], bool]) -> Options:
        rows = [row for row, (rule, _) in enumerate(pairs) if wanted(rule)]
        return Options(
            names=tuple(options.names[row] for row in rows),
            right=options.right[rows],
            tokens=options.tokens[rows],
        )

    return those


def _first_that(holds: Bools, table: TurnTable) -> Options:
    """The first turn of which something holds, else the last, with each T_max."""
    limits = range(1, table.correct.shape[1] + 1)
    agreeing = replace(table, correct=holds)
    ended = [replay(agreeing, FirstRight(), turns) for turns in limits]
    return Options(
        names=tuple(
            f"the first turn whose trace agrees, at most {turns} turns" for turns in limits
        ),
        right=np.array([[table.right_at(one.returned)] for one in ended]),
        tokens=np.array([[one.total_tokens] for one in ended]),
    )


def check_value(
    refined: TurnTable, fresh: Samples, untrained: Samples | None = None, answers: int = 3
) -> Row:
    """What a policy's self-check is worth within the tokens of some first answers.

    Args:
        refined: every turn of refinement on every problem.
        fresh: of the same policy on the same problems.
        untrained: the same of the policy before its training.
        answers: the budget, as a multiple of the mean tokens of a first answer.

    Returns:
        ``budget`` in tokens per problem; ``rows`` of ``name``, ``accuracy``, ``ci95`` and
        ``tokens``, None where no rule is cheap enough, and ``before``, the same three before
        training or None; and the paired differences of :func:`differences`.
    """
    after = ways_of(fresh, refined)
    before = {} if untrained is None else ways_of(untrained)
    budget = answers * float(after[FIRST].tokens.mean())
    draws = draw(refined.cluster)
    now, then = (
        {name: choose(options, budget, draws) for name, options in ways.items()}
        for ways in (after, before)
    )
    rows = []
    for name, chosen in now.items():
        earlier = measured(then[name]) if name in then else None
        rows.append({"name": name, **measured(chosen), "before": earlier})
    return {"budget": budget, "rows": rows, **differences(now, then)}


def differences(
    after: Mapping[str, Chosen | None], before: Mapping[str, Chosen | None]
) -> dict[str, Any]:
    """Paired differences with their intervals, which include the choice.

    ``gap``: what the self-check states over the best stop without it; ``gain``: over the same
    before training, if that is known. ``probable_gap`` and ``probable_gain``: with the verdict's
    probability.
    """
    found = {}
    for prefix, way in (("", STATED), ("probable_", PROBABLE)):
        rivals = {"gap": after[FREE]}
        if before:
            rivals["gain"] = before[way]
        for name, rival in rivals.items():
            difference = gap(after[way], rival)
            found[f"{prefix}{name}"] = difference["gap"]
            found[f"{prefix}{name}_ci95"] = difference["gap_ci95"]
    return found
