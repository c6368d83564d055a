"""The table of the starts: each way's accuracy within the same tokens, before and after training.

Every start chooses its own rules, on other problems than it is measured on. There are two intervals
of a mean over starts: over starts (Student's t, what another start would give) and over problems (a
bootstrap over clusters of problems that all starts share, with the choice in every resample).

Shapes: S starts, R resamples.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.starts.outcomes import Outcomes
from svr_lightning.analysis.check_value import FREE, PROBABLE, STATED
from svr_lightning.analysis.choice import Chosen, choose, draw
from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.table import Floats

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)
"""The 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom."""
DIFFERENCES = {
    "stated: after - before": (STATED, "after", STATED, "before"),
    "stated - best free stop, after": (STATED, "after", FREE, "after"),
    "with the probability: after - before": (PROBABLE, "after", PROBABLE, "before"),
    "with the probability - best free stop, after": (PROBABLE, "after", FREE, "after"),
}


def table(outcomes: Outcomes) -> dict[str, Any]:
    """Every number of the table.

    Returns:
        ``starts``, ``problems`` and ``clusters``; ``budget``, the mean over starts; ``ways``:
        {way: {before or after: :func:`entry`}}; ``differences``: paired, by name.
    """
    draws = draw(outcomes.cluster)
    chosen: dict[tuple[str, str], list[Chosen]] = {}
    for start in outcomes.starts:
        for when, ways in (("after", start.after), ("before", start.before)):
            for way, options in ways.items():
                (best,) = choose(options, [start.budget], draws)
                if best is not None:
                    chosen.setdefault((way, when), []).append(best)
    by_way: dict[str, dict[str, Any]] = {}
    for (way, when), each in list(chosen.items()):
        if len(each) < len(outcomes.starts):  # over the budget of some start
            del chosen[way, when]
            continue
        accuracy = np.stack([one.accuracy for one in each])
        tokens = statistics.fmean(float(one.tokens[0]) for one in each)
        by_way.setdefault(way, {})[when] = {**entry(accuracy), "tokens": tokens}
    differences = {}
    for name, (way, when, other, then) in DIFFERENCES.items():
        if (way, when) in chosen and (other, then) in chosen:
            pairs = zip(chosen[way, when], chosen[other, then], strict=True)
            differences[name] = entry(np.stack([a.accuracy - b.accuracy for a, b in pairs]))
    return {
        "starts": [start.seed for start in outcomes.starts],
        "problems": len(outcomes.ids),
        "clusters": draws.size,
        "budget": statistics.fmean(start.budget for start in outcomes.starts),
        "ways": by_way,
        "differences": differences,
    }


def entry(values: Floats) -> dict[str, Any]:
    """The ``mean`` of [S, 1 + R] values over starts, ``by_start``, and both intervals."""
    by_start = values[:, 0].tolist()
    return {
        "mean": statistics.fmean(by_start),
        "over_starts": t_interval(by_start),
        "over_problems": percentile_interval(values[:, 1:].mean(0)),
        "by_start": by_start,
    }


def over(found: Mapping[str, Any]) -> str:
    """What :func:`bounds_of` gives intervals over: starts, where there are several."""
    return "starts" if len(found["starts"]) > 1 else "problems"


def bounds_of(values: Mapping[str, Any]) -> list[float]:
    """The interval over starts, or of a single start that over problems."""
    bounds: list[float] = values["over_starts"] or values["over_problems"]
    return bounds


def t_interval(values: Sequence[float]) -> list[float] | None:
    """The 95 % interval of the mean of independent values; None for fewer than two.

    Examples:
        >>> t_interval([0.0, 1.0])
        [-5.853, 6.853]
    """
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return [round(mean - half, 6), round(mean + half, 6)]
