"""Numbers of the experiment from its published recordings, as README.md defines them.

Shapes: N problems, T turns, K options of a rule, R resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.analysis.logs import read_recording
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.table import TurnTable
from svr_lightning.analysis.voting import majority_is_right
from svr_lightning.core.metrics import auroc
from svr_lightning.core.stopping import Confident
from svr_lightning.files import write_json

Array = NDArray[Any]
Tables = Mapping[str, TurnTable]
"""By data set."""
GATE = 0.85
RESAMPLES = 2000
LEVELS = 20


def says_correct(run: TurnTable) -> Array:
    """[N, T] P(CORRECT), from the probability of the sampled verdict; one half without."""
    probability = np.nan_to_num(run.verdict_probability, nan=0.5)
    return np.where(run.verdict == 1, probability, 1 - probability)


def adaptive(run: TurnTable) -> tuple[Array, Array]:
    """[N] right and [N] tokens under the paper's rule: the first accepted turn, else the last."""
    found = replay(run, Confident(threshold=GATE), run.correct.shape[1]).problems
    return found["final_correct"], found["total_tokens"]


def free_options(run: TurnTable) -> tuple[Array, Array]:
    """[N, K] right and tokens of every rule without a self-check, on independent attempts.

    Stop where the log-probability reaches a level, else return the most probable attempt; and
    the majority of the first k, the first of equals.
    """
    logprob, spent = run.completion_logprob, run.prompt_tokens + run.completion_tokens
    spent, turns = spent.cumsum(1), logprob.shape[1]
    levels = np.quantile(logprob, np.linspace(0, 1, LEVELS + 1))
    reached = logprob >= levels[:, None, None]  # [K, N, T]
    stops, first = reached.any(2), reached.argmax(2)
    returned = np.where(stops, first, logprob.argmax(1)).T
    end = np.where(stops, first, turns - 1).T
    voting = np.tril(np.ones((turns, turns), dtype=bool))
    voted = majority_is_right(run.answer - 1, run.correct, voting)
    right = np.concatenate([np.take_along_axis(run.correct, returned, 1), voted], 1)
    return right, np.concatenate([np.take_along_axis(spent, end, 1), spent], 1)


def fitted(right: Array, tokens: Array, budget: Array, half: Array) -> float:
    """Accuracy of the best option within a budget, chosen on one half and measured on the other.

    Args:
        right: [N, K].
        tokens: [N, K].
        budget: [N] tokens of what it is compared with; the mean of the half that chooses counts.
        half: [N].
    """
    total = 0
    for here in (0, 1):
        chooses, measures = half == here, half != here
        allowed = tokens[chooses].mean(0) <= budget[chooses].mean()
        allowed |= tokens[chooses].mean(0) == tokens[chooses].mean(0).min()
        option = np.where(allowed, right[chooses].mean(0), -1).argmax()
        total += right[measures, option].sum()
    return float(total / len(right))


Statistic = Callable[[int, Array], float]
"""Of a seed and [N] resampled problems."""


def compared(seeds: Sequence[int], problems: int, statistic: Statistic) -> dict[str, Any]:
    """The mean over seeds, its 95 % interval and two-sided p over problems and seeds."""
    rng = np.random.default_rng(0)
    everything = np.arange(problems)
    by_seed = {seed: statistic(seed, everything) for seed in seeds}
    draws = []
    for _ in range(RESAMPLES):
        rows = rng.integers(problems, size=problems)
        draws.append(np.mean([statistic(s, rows) for s in rng.choice(seeds, len(seeds))]))
    values = np.array(draws)
    tail = min((values <= 0).mean(), (values >= 0).mean())
    return {
        "value": float(np.mean([*by_seed.values()])),
        "ci95": percentile_interval(values),
        "p": float(min(1.0, 2 * max(tail, 1 / RESAMPLES))),
        "by_seed": by_seed,
    }


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


def first_auroc(run: TurnTable, rows: Array | slice = slice(None)) -> float:
    """AUROC of the stated confidence at the first turn."""
    return auroc(run.confidence[rows, 0], run.correct[rows, 0])


def verdict_auroc(run: TurnTable, rows: Array | slice = slice(None)) -> float:
    """AUROC of P(CORRECT) at the first turn."""
    return auroc(says_correct(run)[rows, 0], run.correct[rows, 0])


def row_of(modes: Mapping[str, Tables]) -> dict[str, Any]:
    """The numbers of one policy."""
    run = modes["sampled"]["test"]
    first = run.correct[:, 0]
    believed: Array = run.verdict[:, 0] == 1
    accepted: Array = believed & (run.confidence[:, 0] >= GATE)
    right, tokens = adaptive(run)
    found = {
        "right": first.mean(),
        "auroc": first_auroc(run),
        "auroc_verdict": verdict_auroc(run),
        "auroc_logprob": auroc(run.completion_logprob[:, 0], first),
        "says_correct": believed.mean(),
        "accepted": accepted.mean(),
        "adaptive_right": right.mean(),
        "adaptive_tokens": tokens.mean(),
        "last_turn_right": run.correct[:, -1].mean(),
        "control_auroc": first_auroc(modes["sampled"]["control"]),
    }
    return {name: float(value) for name, value in found.items()}


def comparisons(runs: Mapping[tuple[int, str], Any], arm: str) -> dict[str, Any]:
    """Comparisons of ``arm`` with the control, over the seeds that have both; the primary first."""
    seeds = [s for s, name in runs if name == arm and "fresh" in runs.get((s, "control"), ())]
    if not seeds:
        return {}
    tests = {s: runs[s, arm]["sampled"]["test"] for s in seeds}
    own = {s: adaptive(run) for s, run in tests.items()}
    free = {s: free_options(runs[s, "control"]["fresh"]["test"]) for s in seeds}
    half = np.arange(len(tests[seeds[0]].ids)) % 2  # of the problems, for choices

    def over_free(s: int, rows: Array) -> float:
        (right, tokens), (rights, spent) = own[s], free[s]
        best = fitted(rights[rows], spent[rows], tokens[rows], half[rows])
        return float(right[rows].mean()) - best

    def over_fixed(s: int, rows: Array) -> float:
        fixed = tests[s].correct[rows]
        best = fitted(fixed, np.zeros(fixed.shape), np.ones(len(rows)), half[rows])
        return float(own[s][0][rows].mean()) - best

    def gain(of: Callable[..., float], dataset: str = "test") -> dict[str, Any]:
        def over_control(s: int, rows: Array) -> float:
            ours, control = (runs[s, name]["sampled"][dataset] for name in (arm, "control"))
            return of(ours, rows) - of(control, rows)

        return compared(seeds, len(runs[seeds[0], arm]["sampled"][dataset].ids), over_control)

    secondary = {
        "adaptive - best fixed turn": compared(seeds, len(half), over_fixed),
        "negative control: AUROC": gain(first_auroc, "control"),
        "adaptive - best free rule of the control at its tokens": compared(
            seeds, len(half), over_free
        ),
    }
    for name, p in holm({name: found["p"] for name, found in secondary.items()}).items():
        secondary[name]["p_holm"] = p
    return {
        "primary: AUROC": gain(first_auroc),
        **secondary,
        "not planned: AUROC of P(CORRECT)": gain(verdict_auroc),
    }


def report(results: Path) -> Path:
    """Write ``summary.json`` beside the recordings: policies, and arms against the control."""
    runs: dict[tuple[int, str], dict[str, Tables]] = {}
    for path in sorted(results.glob("seed*.jsonl.gz")):
        seed, arm, mode = path.name.removesuffix(".jsonl.gz").split("-")
        runs.setdefault((int(seed.removeprefix("seed")), arm), {})[mode] = read_recording(
            path
        ).tables
    table = {
        f"seed {s}, {arm}": row_of(modes) for (s, arm), modes in runs.items() if "sampled" in modes
    }
    arms = dict.fromkeys(arm for _, arm in runs if arm not in ("start", "control"))
    found = {arm: comparisons(runs, arm) for arm in arms}
    out = results / "summary.json"
    write_json(out, {"policies": table, "comparisons": found})
    return out
