"""Every number of a results.json, computed from the samples beside it by code of its own."""

import json
import math
from statistics import NormalDist

MATH_5 = ["math500", "aime26", "amc23", "olympiadbench", "minerva_math"]


def ratio(top, bottom):
    return top / bottom if bottom else None


def auroc(scores, labels):
    """Mann-Whitney through average ranks, so that ties share their ranks."""
    ordered = sorted(scores)
    ranks, start = {}, 0
    while start < len(ordered):
        end = start + ordered.count(ordered[start])
        ranks[ordered[start]] = (start + 1 + end) / 2
        start = end
    right = sum(labels)
    rank_sum = sum(ranks[s] for s, label in zip(scores, labels, strict=True) if label)
    return ratio(rank_sum - right * (right + 1) / 2, right * (len(labels) - right))


def aurc(scores, labels):
    """The mean error rate of the k surest answers, each with its share of the ones that tie."""
    rates = []
    for k in range(1, len(scores) + 1):
        last = sorted(scores, reverse=True)[k - 1]
        above = [not y for s, y in zip(scores, labels, strict=True) if s > last]
        equal = [not y for s, y in zip(scores, labels, strict=True) if s == last]
        rates.append((sum(above) + (k - len(above)) * sum(equal) / len(equal)) / k)
    return ratio(sum(rates), len(rates))


def worth(rows, right):
    """As how many independent problems these count: fewer than rows where clusters agree."""
    groups = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.get("cluster") or (place,), []).append(right[place])
    if len(groups) == len(rows):
        return len(rows)
    mean = sum(right) / len(rows)
    alone = sum((y - mean) ** 2 for y in right)
    if alone == 0:
        return len(groups)
    together = sum(sum(y - mean for y in group) ** 2 for group in groups.values())
    return len(rows) / max(1.0, together / alone)


def wilson(p, n):
    """The two q at which (p - q)^2 = z^2 q (1 - q) / n."""
    if n == 0:
        return None
    z2 = NormalDist().inv_cdf(0.975) ** 2
    a, b, c = 1 + z2 / n, -(2 * p + z2 / n), p * p
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return [(-b - root) / (2 * a), (-b + root) / (2 * a)]


def dataset_values(rows):
    n = len(rows)
    paths = [row["turns"][: row.get("observed_turns", row["returned_turn"])] for row in rows]
    turns = [turn for path in paths for turn in path]
    right = [
        bool(p) and p[r["returned_turn"] - 1]["correct"] for p, r in zip(paths, rows, strict=True)
    ]
    checked = [t for t in turns if t["verdict"] is not None]
    committed = [t for t in checked if t["verdict"] in ("CORRECT", "INCORRECT")]
    counted = all(t["prompt_tokens"] and t["completion_tokens"] for t in turns)
    prompt = sum(t["prompt_tokens"] for t in turns)
    completion = sum(t["completion_tokens"] for t in turns)
    premature = [r["stopped_early"] and not y for r, y in zip(rows, right, strict=True)]
    accepted = [row.get("accepted", row["stopped_early"]) for row in rows]
    firsts = [p[0] for p in paths if p and p[0]["verdict"] is not None]
    last = [p[r["returned_turn"] - 1] for p, r in zip(paths, rows, strict=True) if p]
    last = [t for t in last if t["verdict"] is not None]
    values = {
        "n": n,
        "accuracy": ratio(sum(right), n),
        "accuracy_ci95": wilson(ratio(sum(right), n), worth(rows, right)),
        "first_turn_accuracy": ratio(sum(p[0]["correct"] for p in paths if p), n),
        "any_turn_accuracy": ratio(sum(any(t["correct"] for t in p) for p in paths), n),
        "turns": ratio(len(turns), n),
        "avg_prompt_tokens": ratio(prompt, n * counted),
        "avg_completion_tokens": ratio(completion, n * counted),
        "avg_total_tokens": ratio(prompt + completion, n * counted),
        "esr": ratio(sum(row["stopped_early"] for row in rows), n),
        "pse": ratio(sum(premature), n),
        "accepted": ratio(sum(accepted), n),
        "accepted_accuracy": ratio(
            sum(a and y for a, y in zip(accepted, right, strict=True)), sum(accepted)
        ),
        "aurc": aurc([t["confidence"] for t in last], [t["correct"] for t in last]),
        "verdict_accuracy": ratio(
            sum((t["verdict"] == "CORRECT") == t["correct"] for t in committed), len(committed)
        ),
        **{
            name: auroc([t["confidence"] for t in some], [t["correct"] for t in some])
            for name, some in (
                ("auroc", checked),
                ("auroc_first_turn", firsts),
                ("auroc_returned", last),
            )
        },
        "brier": ratio(sum((t["confidence"] - t["correct"]) ** 2 for t in checked), len(checked)),
        "overconfidence": ratio(
            sum(t["verdict"] == "CORRECT" and not t["correct"] for t in checked), len(checked)
        ),
    }
    recorded = [turn for row in rows for turn in row["turns"]]
    if recorded and all(turn["verdict"] is None for turn in recorded):
        of_checks = ("verdict", "auroc", "aurc", "brier", "over")
        for name in [k for k in values if k.startswith(of_checks)]:
            del values[name]  # the method states no self-checks
    return values


def macro(datasets, names, metrics):
    present = [name for name in names if name in datasets]
    average, counts = {}, {}
    for metric in metrics:
        values = [datasets[d][metric] for d in present if datasets[d].get(metric) is not None]
        average[metric] = ratio(sum(values), len(values))
        counts[metric] = len(values)
    missing = [name for name in names if name not in datasets]
    return {**average, "n_datasets": counts, "datasets": present, "missing": missing}


def recompute(samples):
    """From the path of a samples.jsonl to the ``datasets`` and ``macro`` of its results."""
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines() if line]
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    datasets = {d: dataset_values([row for row in rows if row["dataset"] == d]) for d in names}
    named = datasets.values() or [dataset_values([])]
    metrics = dict.fromkeys(m for values in named for m in values)
    metrics = [m for m in metrics if m not in ("n", "accuracy_ci95")]
    averages = {"all": list(datasets), "math": MATH_5}
    return {
        "datasets": datasets,
        "macro": {part: macro(datasets, names, metrics) for part, names in averages.items()},
    }
