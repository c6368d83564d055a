"""Recompute every number of a results.json from the samples.jsonl beside it.

Shares no code with the package. Usage: python tests/recompute_results.py eval/after
Exits with 1 and names each number that differs, is missing or is not accounted for.
"""

import json
import math
import sys
from pathlib import Path
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


def wilson(k, n):
    """The two p at which (k/n - p)^2 = z^2 p (1 - p) / n."""
    if n == 0:
        return None
    z2, p = NormalDist().inv_cdf(0.975) ** 2, k / n
    a, b, c = 1 + z2 / n, -(2 * p + z2 / n), p * p
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return [(-b - root) / (2 * a), (-b + root) / (2 * a)]


def dataset_values(rows):
    n = len(rows)
    paths = [row["turns"][: row["returned_turn"]] for row in rows]
    turns = [turn for path in paths for turn in path]
    right = [bool(path) and path[-1]["correct"] for path in paths]
    committed = [t for t in turns if t["verdict"] in ("CORRECT", "INCORRECT")]
    prompt = sum(t["prompt_tokens"] for t in turns)
    completion = sum(t["completion_tokens"] for t in turns)
    premature = [r["stopped_early"] and not y for r, y in zip(rows, right, strict=True)]
    return {
        "n": n,
        "accuracy": ratio(sum(right), n),
        "accuracy_ci95": wilson(sum(right), n),
        "first_turn_accuracy": ratio(sum(p[0]["correct"] for p in paths if p), n),
        "any_turn_accuracy": ratio(sum(any(t["correct"] for t in p) for p in paths), n),
        "turns": ratio(len(turns), n),
        "avg_prompt_tokens": ratio(prompt, n),
        "avg_completion_tokens": ratio(completion, n),
        "avg_total_tokens": ratio(prompt + completion, n),
        "esr": ratio(sum(row["stopped_early"] for row in rows), n),
        "pse": ratio(sum(premature), n),
        "verdict_accuracy": ratio(
            sum((t["verdict"] == "CORRECT") == t["correct"] for t in committed), len(committed)
        ),
        "auroc": auroc([t["confidence"] for t in turns], [t["correct"] for t in turns]),
        "brier": ratio(sum((t["confidence"] - t["correct"]) ** 2 for t in turns), len(turns)),
        "overconfidence": ratio(
            sum(t["verdict"] == "CORRECT" and not t["correct"] for t in turns), len(turns)
        ),
    }


def macro(datasets, names):
    present = [name for name in names if name in datasets]
    metrics = [m for m in dataset_values([]) if m not in ("n", "accuracy_ci95")]
    average, counts = {}, {}
    for metric in metrics:
        values = [datasets[d][metric] for d in present if datasets[d][metric] is not None]
        average[metric] = ratio(sum(values), len(values))
        counts[metric] = len(values)
    missing = [name for name in names if name not in datasets]
    return {**average, "n_datasets": counts, "datasets": present, "missing": missing}


def recompute(samples):
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    datasets = {d: dataset_values([r for r in rows if r["dataset"] == d]) for d in names}
    return {
        "datasets": datasets,
        "macro": {"all": macro(datasets, names), "math": macro(datasets, MATH_5)},
    }


def differences(path, stored, found):
    if isinstance(stored, dict) and isinstance(found, dict):
        for key in sorted(stored.keys() | found.keys()):
            if key not in stored or key not in found:
                yield f"{path}.{key} is only in {'results.json' if key in stored else 'samples'}"
            else:
                yield from differences(f"{path}.{key}", stored[key], found[key])
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for index, pair in enumerate(zip(stored, found, strict=True)):
            yield from differences(f"{path}[{index}]", *pair)
    elif isinstance(stored, int | float) and isinstance(found, int | float):
        if not math.isclose(stored, found, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{path} is {stored} in results.json and {found} from samples"
    elif stored != found:
        yield f"{path} is {stored} in results.json and {found} from samples"


def main(folder):
    stored = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    found = recompute(folder / "samples.jsonl")
    stated = {key: stored.get(key) for key in ("datasets", "macro")}
    lines = list(differences("results", stated, found))
    print("\n".join(lines) or f"{folder}: every number agrees")
    return 1 if lines else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
