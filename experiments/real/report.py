"""Numbers of the experiment from its published recordings, as README.md defines them.

Shapes: N problems, T turns, S seeds, R resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.choice import Draws, Options, choose, draw
from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.logs import read_recording
from svr_lightning.analysis.stops import families, options_of
from svr_lightning.analysis.table import TurnTable, pool
from svr_lightning.core.metrics import auroc
from svr_lightning.core.stopping import Confident
from svr_lightning.files import write_json

Array = NDArray[Any]
Runs = Mapping[tuple[int, str], Mapping[str, Mapping[str, TurnTable]]]
"""Recordings by seed and arm, by mode, by data set."""
ALL = slice(None)
Metric = Callable[[TurnTable, Array | slice], float]
"""On some problems."""
FREE = ("repeated answer", "equal answers", "majority", "completion's log-probability")
"""Families of rules that need no self-check."""
RESAMPLES = 2000


def says_correct(run: TurnTable) -> Array:
    """[N, T] P(CORRECT), from the probability of the sampled verdict; one half without."""
    probability = np.nan_to_num(run.verdict_probability, nan=0.5)
    return np.where(run.verdict == 1, probability, 1 - probability)


def at_first_turn(score: Callable[[TurnTable], Array]) -> Metric:
    """AUROC of an [N, T] score at the first turn."""
    return lambda run, rows: auroc(score(run)[rows, 0], run.correct[rows, 0])


stated_auroc = at_first_turn(attrgetter("confidence"))
verdict_auroc = at_first_turn(says_correct)
logprob_auroc = at_first_turn(attrgetter("completion_logprob"))
"""Of the completion's mean."""


def adaptive(runs: Sequence[TurnTable]) -> Options:
    """The paper's rule on every seed: the first accepted turn, else the last."""
    return options_of(runs, [(Confident(), runs[0].max_turns)])


def options_in(runs: Sequence[TurnTable], names: Sequence[str]) -> Options:
    """Every rule of some families, on every seed."""
    together = pool({str(seed): run for seed, run in enumerate(runs)})
    rules = families(together, together.max_turns)
    return options_of(runs, [rule for name in names for rule in rules[name]])


# --- comparisons --------------------------------------------------------------------------------


Statistic = Callable[[Sequence[int], Draws], Array]
"""[1 + R] values on some seeds, by their places: of the sample itself, then of its resamples."""


def compared(seeds: Sequence[int], cluster: Array, statistic: Statistic) -> dict[str, Any]:
    """The mean over seeds, its 95 % interval and two-sided p over problems and seeds."""
    values = statistic(range(len(seeds)), draw(cluster, len(seeds), RESAMPLES))
    resampled = values[1:]
    tail = min((resampled <= 0).mean(), (resampled >= 0).mean())
    alone = draw(cluster, 1, 1)
    return {
        "value": float(values[0]),
        "ci95": percentile_interval(resampled),
        "p": float(min(1.0, 2 * max(tail, 1 / RESAMPLES))),
        "by_seed": {s: float(statistic([place], alone)[0]) for place, s in enumerate(seeds)},
    }


def differing(
    ours: Sequence[TurnTable], of: Metric, theirs: Sequence[TurnTable], of_theirs: Metric
) -> Statistic:
    """A metric of our recordings minus one of theirs, each by seed, on the same problems."""

    def statistic(places: Sequence[int], draws: Draws) -> Array:
        problems = np.arange(draws.counts.shape[1])
        rows = [np.repeat(problems, counts.astype(int)) for counts in draws.counts]
        values = [[of(ours[p], r) - of_theirs(theirs[p], r) for p in places] for r in rows]
        return np.asarray(np.average(values, axis=1, weights=draws.seeds))

    return statistic


def over_best(ours: Options, rivals: Options, budget: Array) -> Statistic:
    """Accuracy minus that of the best rival within a budget, chosen on other problems.

    Args:
        ours: one option.
        rivals: to choose from.
        budget: [S, N] tokens, whose mean counts.
    """

    def statistic(places: Sequence[int], draws: Draws) -> Array:
        accuracy = []
        for each in (ours, rivals):
            some = replace(each, right=each.right[:, places], tokens=each.tokens[:, places])
            chosen = choose(some, budget[places], draws)
            assert chosen is not None, "a first turn is within the budget"
            accuracy.append(chosen.accuracy)
        return accuracy[0] - accuracy[1]

    return statistic


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values.

    Examples:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    adjusted, least = {}, 0.0
    for number, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - number) * p_values[name]))
        adjusted[name] = round(least, 6)
    return adjusted


def shared_seeds(runs: Runs, *recordings: tuple[str, str]) -> list[int]:
    """Seeds that have all of these recordings, each an arm and a mode."""
    seeds = dict.fromkeys(seed for seed, _ in runs)
    return [s for s in seeds if all(mode in runs.get((s, arm), ()) for arm, mode in recordings)]


def over_control(runs: Runs, arm: str) -> dict[str, Any]:
    """Comparisons of ``arm`` with the control, over the seeds that have both; the primary first."""
    seeds = shared_seeds(runs, (arm, "sampled"), ("control", "fresh"))
    if not seeds:
        return {}

    def recorded(name: str, mode: str = "sampled", dataset: str = "test") -> list[TurnTable]:
        return [runs[s, name][mode][dataset] for s in seeds]

    def gain(of: Metric, dataset: str = "test") -> dict[str, Any]:
        ours, control = (recorded(name, dataset=dataset) for name in (arm, "control"))
        return compared(seeds, ours[0].cluster, differing(ours, of, control, of))

    run = recorded(arm)
    cluster, own = run[0].cluster, adaptive(run)
    turns = options_in(run, ["fixed turns"])
    over_turns = over_best(own, turns, turns.tokens.max(0))
    over_free = over_best(own, options_in(recorded("control", "fresh"), FREE), own.tokens[0])
    secondary = {
        "adaptive - best fixed turn": compared(seeds, cluster, over_turns),
        "negative control: AUROC": gain(stated_auroc, "control"),
        "adaptive - best free rule of the control at its tokens": compared(
            seeds, cluster, over_free
        ),
    }
    for name, p in holm({name: found["p"] for name, found in secondary.items()}).items():
        secondary[name]["p_holm"] = p
    return {
        "primary: AUROC": gain(stated_auroc),
        **secondary,
        "not planned: AUROC of P(CORRECT)": gain(verdict_auroc),
    }


def over_others(runs: Runs, arm: str) -> dict[str, Any]:
    """``arm`` and the other policies, all with self-checks that are decoded greedily."""
    rivals = {f"AUROC - {name}": (name, stated_auroc) for _, name in runs if name != arm}
    rivals["stated - log-probability"] = arm, logprob_auroc
    found = {}
    for title, (other, of) in rivals.items():
        if seeds := shared_seeds(runs, (arm, "checked"), (other, "checked")):
            ours, theirs = (
                [runs[s, one]["checked"]["test"] for s in seeds] for one in (arm, other)
            )
            over = differing(ours, stated_auroc, theirs, of)
            found[title] = compared(seeds, ours[0].cluster, over)
    return found


# --- the report ---------------------------------------------------------------------------------


def row_of(run: TurnTable) -> dict[str, float]:
    """The numbers of one policy in one mode, on the held-out problems."""
    claims: Array = run.verdict[:, 0] == 1
    ended = adaptive([run])
    return {
        "right": run.correct[:, 0].mean(),
        "auroc": stated_auroc(run, ALL),
        "auroc_verdict": verdict_auroc(run, ALL),
        "auroc_logprob": logprob_auroc(run, ALL),
        "says_correct": claims.mean(),
        "adaptive_right": ended.right.mean(),
        "adaptive_tokens": ended.tokens.mean(),
    }


def report(results: Path) -> Path:
    """Write ``summary.json`` beside the recordings: policies, and arms against their rivals."""
    runs: dict[tuple[int, str], dict[str, Mapping[str, TurnTable]]] = {}
    for path in sorted(results.glob("seed*.jsonl.gz")):
        seed, arm, mode = path.name.removesuffix(".jsonl.gz").split("-")
        tables = read_recording(path).tables
        runs.setdefault((int(seed.removeprefix("seed")), arm), {})[mode] = tables
    policies = {
        f"seed {s}, {arm}, {mode}": row_of(modes[mode]["test"])
        for (s, arm), modes in runs.items()
        for mode in ("sampled", "checked")
        if mode in modes
    }
    arms = dict.fromkeys(arm for _, arm in runs if arm not in ("start", "control"))
    found = {arm: over_control(runs, arm) | over_others(runs, arm) for arm in arms}
    out = results / "summary.json"
    write_json(out, {"policies": policies, "comparisons": found})
    return out
