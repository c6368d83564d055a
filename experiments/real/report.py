"""Numbers of the experiment from its published recordings, as README.md defines them.

Shapes: N problems, T turns, K options of a rule, R resamples.
"""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svr_lightning.analysis.intervals import percentile_interval
from svr_lightning.core.metrics import auroc
from svr_lightning.files import write_json

Array = NDArray[Any]
GATE = 0.85
RESAMPLES = 2000
LEVELS = 20


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A policy's turns on the problems of one data set; every field is [N, T]."""

    right: Array
    accepted: Array
    """Whether the turn says CORRECT with a confidence of at least :data:`GATE`."""
    believed: Array
    """Whether it says CORRECT."""
    confidence: Array
    says_correct: Array
    """P(CORRECT), from the probability of the sampled verdict; one half without a verdict."""
    logprob: Array
    """Mean log-probability of the completion's tokens."""
    answer_logprob: Array
    """The same of the answer's tokens; nan where there is no answer."""
    tokens: Array
    """Prompt and completion."""
    answer: Array
    """Equal numbers for equal answers to a problem; 0 for none."""


def read(path: Path) -> dict[str, Recording]:
    """The recordings of a file, by data set."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    return {
        name: recorded([r for r in rows if r["dataset"] == name])
        for name in dict.fromkeys(row["dataset"] for row in rows)
    }


def recorded(rows: Sequence[Mapping[str, Any]]) -> Recording:
    """The lines of one data set."""

    def column(value: Callable[[Mapping[str, Any]], Any], kind: type = float) -> Array:
        return np.array([[value(turn) for turn in row["turns"]] for row in rows], dtype=kind)

    return Recording(
        right=column(lambda t: t["correct"], bool),
        accepted=column(lambda t: t["verdict"] == "CORRECT" and t["confidence"] >= GATE, bool),
        believed=column(lambda t: t["verdict"] == "CORRECT", bool),
        confidence=column(lambda t: t["confidence"]),
        says_correct=column(_probability_of_correct),
        logprob=column(lambda t: t["completion_logprob"]),
        answer_logprob=column(lambda t: t.get("answer_logprob")),
        tokens=column(lambda t: t["prompt_tokens"] + t["completion_tokens"], int),
        answer=column(lambda t: t["answer_group"], int),
    )


def _probability_of_correct(turn: Mapping[str, Any]) -> float:
    probability = float(turn.get("verdict_probability", 0.5))
    return probability if turn["verdict"] == "CORRECT" else 1 - probability


def stopped(run: Recording, accepted: Array, fallback: Array) -> tuple[Array, Array]:
    """[N] whether the returned answer is right, and [N] tokens.

    Args:
        run: the turns.
        accepted: [N, T] where a trajectory ends, at the first one.
        fallback: [N] the turn that is returned if it does not, from 0.
    """
    row, last = np.arange(len(accepted)), accepted.shape[1] - 1
    ends = accepted.any(1)
    end = np.where(ends, accepted.argmax(1), last)
    chosen = np.where(ends, end, fallback)
    return run.right[row, chosen], run.tokens.cumsum(1)[row, end]


def adaptive(run: Recording) -> tuple[Array, Array]:
    """The paper's rule: stop at the first accepted turn, else return the last one."""
    return stopped(run, run.accepted, np.full(len(run.right), run.right.shape[1] - 1))


def free_options(run: Recording) -> tuple[Array, Array]:
    """[N, K] right and tokens of every rule without a self-check, on independent attempts.

    Stop where the log-probability reaches a level, else return the most probable attempt; and
    the majority of the first k, the first of equals.
    """
    levels = np.quantile(run.logprob, np.linspace(0, 1, LEVELS + 1))
    best = run.logprob.argmax(1)
    options = [stopped(run, run.logprob >= level, best) for level in levels]
    row, spent = np.arange(len(run.right)), run.tokens.cumsum(1)
    for k in range(1, run.right.shape[1] + 1):
        votes = run.answer[:, :k]
        counts = ((votes[:, :, None] == votes[:, None]) & (votes > 0)[:, :, None]).sum(2)
        options.append((run.right[row, counts.argmax(1)], spent[:, k - 1]))
    return np.stack([r for r, _ in options], 1), np.stack([t for _, t in options], 1)


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
    for number, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        least = max(least, min(1.0, (len(p_values) - number) * p_values[name]))
        adjusted[name] = round(least, 6)
    return adjusted


def first_auroc(run: Recording, rows: Array | slice) -> float:
    """AUROC of the stated confidence at the first turn."""
    return auroc(run.confidence[rows, 0], run.right[rows, 0])


def row_of(modes: Mapping[str, dict[str, Recording]]) -> dict[str, Any]:
    """The numbers of one policy."""
    run = modes["sampled"]["test"]
    known = ~np.isnan(run.answer_logprob[:, 0])
    right, tokens = adaptive(run)
    found = {
        "right": run.right[:, 0].mean(),
        "auroc": first_auroc(run, slice(None)),
        "auroc_verdict": auroc(run.says_correct[:, 0], run.right[:, 0]),
        "auroc_logprob": auroc(run.logprob[:, 0], run.right[:, 0]),
        "auroc_answer_logprob": auroc(run.answer_logprob[known, 0], run.right[known, 0]),
        "says_correct": run.believed[:, 0].mean(),
        "accepted": run.accepted[:, 0].mean(),
        "levels": len(np.unique(run.confidence[:, 0])),
        "adaptive_right": right.mean(),
        "adaptive_tokens": tokens.mean(),
        "last_turn_right": run.right[:, -1].mean(),
        "control_auroc": first_auroc(modes["sampled"]["control"], slice(None)),
    }
    if "greedy" in modes:
        right, tokens = adaptive(modes["greedy"]["test"])
        found |= {"greedy_adaptive_right": right.mean(), "greedy_tokens": tokens.mean()}
        found["greedy_right"] = modes["greedy"]["test"].right[:, 0].mean()
    return {name: float(value) for name, value in found.items()}


def comparisons(runs: Mapping[tuple[int, str], Any], arm: str) -> dict[str, Any]:
    """Primary and secondary comparisons of ``arm`` with the control, over the seeds that have both.

    One that needs recordings which are not there is left out.
    """
    tests, others = (
        {key: modes["sampled"][name] for key, modes in runs.items() if "sampled" in modes}
        for name in ("test", "control")
    )
    seeds = [s for s, name in tests if name == arm and (s, "control") in tests]
    if not seeds:
        return {}
    own = {s: adaptive(tests[s, arm]) for s in seeds}
    fresh = {s: runs[s, "control"]["fresh"]["test"] for s in seeds if "fresh" in runs[s, "control"]}
    free = {s: free_options(run) for s, run in fresh.items()}
    size = len(tests[seeds[0], arm].right)
    half = np.arange(size) % 2  # of the problems, for choices

    def gain(runs: Mapping[tuple[int, str], Recording]) -> Statistic:
        return lambda s, rows: (
            first_auroc(runs[s, arm], rows) - first_auroc(runs[s, "control"], rows)
        )

    def over_free(s: int, rows: Array) -> float:
        (right, tokens), (rights, spent) = own[s], free[s]
        best = fitted(rights[rows], spent[rows], tokens[rows], half[rows])
        return float(right[rows].mean()) - best

    def over_fixed(s: int, rows: Array) -> float:
        fixed = tests[s, arm].right[rows]
        best = fitted(fixed, np.zeros(fixed.shape), np.ones(len(rows)), half[rows])
        return float(own[s][0][rows].mean()) - best

    secondary = {
        "adaptive - best fixed turn": compared(seeds, size, over_fixed),
        "negative control: AUROC": compared(seeds, len(others[seeds[0], arm].right), gain(others)),
    }
    if len(free) == len(seeds):
        name = "adaptive - best free rule of the control at its tokens"
        secondary[name] = compared(seeds, size, over_free)
    for name, p in holm({name: found["p"] for name, found in secondary.items()}).items():
        secondary[name]["p_holm"] = p
    return {"primary": compared(seeds, size, gain(tests)), "secondary": secondary}


def report(results: Path) -> str:
    """Tables in Markdown; ``summary.json`` beside the recordings has the same."""
    runs: dict[tuple[int, str], dict[str, dict[str, Recording]]] = {}
    for path in sorted(results.glob("seed*.jsonl.gz")):
        seed, arm, mode = path.name.removesuffix(".jsonl.gz").split("-")
        runs.setdefault((int(seed.removeprefix("seed")), arm), {})[mode] = read(path)
    table = {
        f"seed {s}, {arm}": row_of(modes) for (s, arm), modes in runs.items() if "sampled" in modes
    }
    arms = dict.fromkeys(arm for _, arm in runs if arm not in ("start", "control"))
    found = {arm: comparisons(runs, arm) for arm in arms}
    write_json(results / "summary.json", {"policies": table, "comparisons": found})
    names = dict.fromkeys(name for row in table.values() for name in row)
    lines = [f"| | {' | '.join(table)} |", f"|---|{'---|' * len(table)}"]
    for name in names:
        cells = (f"{row[name]:.3f}" if name in row else "-" for row in table.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for arm, blocks in found.items():
        named = {"primary: AUROC": blocks["primary"], **blocks["secondary"]} if blocks else {}
        for name, one in named.items():
            low, high = one["ci95"]
            p = f", p {one['p_holm']:.3f} (Holm)" if "p_holm" in one else ""
            seeds = ", ".join(f"{value:+.3f}" for value in one["by_seed"].values())
            lines += [
                "",
                f"{arm}, {name}: {one['value']:+.3f} [{low:+.3f}, {high:+.3f}]{p}; {seeds}",
            ]
    return "\n".join(lines)
