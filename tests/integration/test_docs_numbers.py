"""Numbers in tables of README, results and the miniature are those of published files."""

import json
import re
from statistics import fmean
from typing import Any

from svr_lightning.__main__ import main
from svr_lightning.report.drawing import svg
from svr_lightning.report.figures import draw_check_value
from tests.commands import ROOT
from tests.pages import blocks, page, tables

SEEDS = ("42", "43", "44")
FREE_STOP, FRESH, UNTRAINED = 2, 4, 5
"""Places of these ways in the main job's table."""


def published(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


RUNS = published("tools/results/main_job.json")
MAIN_JOB = RUNS["svr_plus"]
EMBEDDED = published("tools/results/embedded.json")["runs"]
RESULTS = {
    task: published(f"experiments/miniature/results/{task}/results.json")
    for task in ("countdown", "arithmetic")
}


def table(name: str, corner: str) -> dict[str, list[str]]:
    """The rows of the one table of a page with this first cell, by their own first cell."""
    (found,) = (rows for rows in tables(page(name)) if rows[0][0] == corner)
    return {row[0]: row[1:] for row in found[1:]}


def interval(low: float, high: float, form: str = ".3f") -> str:
    return f"[{low:{form}}, {high:{form}}]"


def gap(value: Any, name: str = "difference") -> str:
    """A difference with its interval, as the pages write it."""
    return f"{value[name]:+.3f} {interval(*value['ci95'], form='+.3f')}"


def main_gap(seed: str, key: str = "gap", method: str = "svr_plus") -> str:
    worth = RUNS[method][seed]["check_value"]
    return f"{worth[key]:+.3f} {interval(*worth[f'{key}_ci95'], form='+.3f')}"


def ways(seed: str) -> list[tuple[str, str, str]]:
    """Accuracy, interval and tokens of each way of the main job."""
    rows = MAIN_JOB[seed]["check_value"]["rows"]
    return [(f"{r['accuracy']:.3f}", interval(*r["ci95"]), f"{r['tokens']:.0f}") for r in rows]


def accuracies(way: int, method: str = "svr_plus") -> list[float]:
    return [RUNS[method][seed]["check_value"]["rows"][way]["accuracy"] for seed in SEEDS]


def test_the_first_screen_has_the_numbers_of_the_main_job():
    rows = table("README.md", "within 199 tokens per problem, seed 42")
    assert [tuple(row) for row in rows.values()] == ways("42")
    text = page("README.md").replace("\n", " ")
    assert all(main_gap(seed, key) in text for seed in SEEDS for key in ("gap", "gain"))
    best, free = (fmean(accuracies(way)) for way in (FRESH, FREE_STOP))
    assert f"**{best:.2f} instead of {free:.2f}**" in text
    assert f"Before training the check reaches {fmean(accuracies(UNTRAINED)):.2f}" in text
    (shown,) = (block for block in blocks(page("docs/index.md"), "text"))
    assert all(" ".join(way) in " ".join(shown.split()) for way in ways("42"))
    assert main_gap("42") in shown
    assert main_gap("42", "gain") in shown


def test_the_picture_is_drawn_from_them():
    assert page("docs/check-value.svg") == svg(draw_check_value, MAIN_JOB["42"]["check_value"])


def test_the_page_of_results_has_them_for_each_seed():
    rows = list(table("docs/results.md", "accuracy, 95 % interval, tokens").values())
    columns = [map(" ".join, ways(seed)) for seed in SEEDS]
    expected = [list(row) for row in zip(*columns, strict=True)]
    differences = [[main_gap(seed, key) for seed in SEEDS] for key in ("gap", "gain")]
    assert rows == [*expected, *differences]
    text = page("docs/results.md")
    for method in ("svr", "without_verify"):
        gaps = [RUNS[method][seed]["check_value"]["gap"] for seed in SEEDS]
        assert "{:+.3f}, {:+.3f} and {:+.3f}".format(*gaps) in text
    assert "{:.3f}, {:.3f} and {:.3f}".format(*accuracies(FRESH, "svr")) in text


KEYS = ("accuracy", "avg_total_tokens", "pse", "auroc", "brier", "overconfidence")


def shown(runs: list[Any]) -> list[str]:
    means = [fmean(run[key] for run in runs) for key in KEYS]
    return [f"{mean:.0f}" if mean > 1 else f"{mean:.3f}" for mean in means]


def embedded(task: str, method: str, when: str) -> list[Any]:
    return [r[when][task] for r in EMBEDDED if (r["task"], r["method"]) == (task, method)]


def test_changes_of_the_check_and_other_warm_starts_are_told_as_published():
    said = " ".join(page("docs/results.md").split())
    changes = published("tools/results/levers.json")["changes"].values()
    ends = [interval(*one["difference_ci95"], form="+.3f") for one in changes]
    for one, shown in zip(changes, ends, strict=True):
        assert f"{one['difference']:+.3f} {shown}" in said
        low, high = one["difference_ci98.3"]
        assert low < 0 < high  # Holm: the smallest of three p-values is above 0.05 / 3
    starts = published("tools/results/main_job_starts.json")
    worth = [run["check_value"] for run in starts.values()]
    gaps, gains = ([one[key] for one in worth] for key in ("gap", "gain"))
    for key, values, place in (
        ("gap", gaps, "is worth {} on average over the best stop without it: from {} to {}, {}"),
        ("gain", gains, "Training adds {} on average, from {} to {}, {}"),
    ):
        ends = [f"{value:+.3f}" for value in (fmean(values), min(values), max(values))]
        sure = sum(one[f"{key}_ci95"][0] > 0 for one in worth)
        assert place.format(*ends, f"above zero with its interval for {sure}") in said
    assert list(starts) == [str(seed) for seed in range(1, 11)]
    assert f"the mean gap is {fmean(gaps):+.3f}" in " ".join(page("README.md").split())


def test_the_embedded_tasks_are_means_of_published_runs():
    (found,) = (rows for rows in tables(page("docs/results.md")) if "Brier" in rows[0])
    svr = [RUNS["svr"][seed] for seed in SEEDS]
    tasks = ("countdown_tiny", "arithmetic_tiny")
    plus = [shown(embedded(task, "svr_plus, every turn", "after")) for task in tasks]
    assert [row[1:] for row in found[1:]] == [
        shown([run["before"] for run in svr]),
        shown([run["after"] for run in svr]),
        plus[0],
        shown(embedded(tasks[1], "svr", "before")),
        shown(embedded(tasks[1], "svr", "after")),
        plus[1],
    ]


FREE = "the best method without self-check under a free stop"


def pair(task: str, name: str, against: str, budget: int) -> Any:
    (found,) = (
        point["gap"]
        for one in RESULTS[task]["budgets"]["pairs"]
        if (one["name"], one["against"]) == (name, against)
        for point in one["points"]
        if point["budget"] == budget
    )
    return found


def test_gaps_within_equal_tokens_are_the_published_ones():
    (found,) = (r for r in tables(page("docs/miniature.md")) if r[0][1] == "Countdown, 140")
    names = ("svr", "svr_plus", "rlcr_fresh", "svr_fresh", "svr_plus_fresh")
    where = [("countdown", b) for b in (140, 400, 800)] + [("arithmetic", b) for b in (140, 800)]
    expected = [[gap(pair(task, name, FREE, b)) for task, b in where] for name in names]
    assert [row[1:] for row in found[1:]] == expected
    text = " ".join(page("docs/miniature.md").split())
    for name in ("svr_plus_fresh", "rlcr_fresh", "svr_fresh"):
        assert gap(pair("countdown", name, "the warm start's fresh turns", 400)) in text


CLAIMS = (
    ("SVR, adaptive minus its best fixed number of turns", "greedy"),
    *(
        ("SVR+, adaptive minus its best fixed number of turns", kind)
        for kind in ("greedy", "sampled")
    ),
    *((f"AUROC of first turns, {m} minus warm start", "sampled") for m in ("SVR", "SVR+", "RLCR")),
    ("PSE, SVR minus warm start", "sampled"),
    *((f"SVR minus {row}", "greedy") for row in ("GRPO-MT", "w/o R_verify", "Single-turn SVR")),
    *((f"SVR minus {field}-only", "greedy") for field in ("Verdict", "Confidence")),
    *((f"SVR+ minus SVR{rate}", "within 400 tokens") for rate in ("", " at its rate")),
)
"""Of the page's table, line by line: as ``results.json`` has them."""


def test_each_claim_has_its_label_after_correction_and_its_interval():
    said = table("docs/miniature.md", "claim").values()
    for cells, name in zip(said, CLAIMS, strict=True):
        for cell, task in zip(cells, ("countdown", "arithmetic"), strict=True):
            found = [c for c in RESULTS[task]["claims"] if (c["claim"], c["turns"]) == name]
            labels = [f"{c['corrected'] or c['label']}: {gap(c)}" for c in found]
            assert [cell] == (labels or ["not run"])


def test_the_pretrained_model_has_the_numbers_of_its_recordings():
    found = published("experiments/real/results/summary.json")
    keys = ("right", "says_correct", "auroc", "auroc_verdict", "auroc_logprob")
    means = []
    for arm in ("start", "svr", "control", "supervised", "labelled"):
        runs = [run for name, run in found["policies"].items() if name.endswith(f", {arm}")]
        means.append([f"{fmean(run[key] for run in runs):.3f}" for key in keys])
    assert [*map(list, table("docs/results.md", "first turns, seeds 1 to 3").values())] == means
    text = " ".join(page("docs/results.md").split())
    for arm in ("svr", "supervised", "labelled"):
        primary = found["comparisons"][arm]["primary: AUROC"]
        assert gap(primary, "value") in text
    of_verdicts = found["comparisons"]["supervised"]["not planned: AUROC of P(CORRECT)"]
    assert gap(of_verdicts, "value") in text
    columns = [row[2:] for row in means]
    both = [f"{one} / {other}" for one, other in zip(columns[1], columns[2], strict=True)]
    shown = table("README.md", "AUROC on first answers, means of three seeds")
    assert [*shown.values()] == [columns[0], both, columns[3]]


def test_every_table_of_results_is_checked_here():
    numbers = {
        name: sum(bool(re.search(r"\d\.\d{3}", str(rows))) for rows in tables(page(name)))
        for name in ("README.md", "docs/results.md", "docs/miniature.md")
    }
    # The miniature's table of budgets: tests/experiments/test_miniature_published.py.
    assert numbers == {"README.md": 2, "docs/results.md": 3, "docs/miniature.md": 3}


BENCH = {
    name: published(f"tools/bench/results/{name}.json")
    for name in ("rollout_vllm", "rollout_transformers", "step")
}


def test_the_benchmarks_have_the_published_figures():
    engines = {"vLLM": BENCH["rollout_vllm"], "transformers": BENCH["rollout_transformers"]}
    expected = {
        f"{engine}, {way}": [
            str(found[way]["steps"]),
            f"{found[way]['seconds']:.2f}",
            f"{found[way]['tokens_per_second']:.0f}",
        ]
        for engine, found in engines.items()
        for way in ("pipelined", "lock-step")
    }
    assert table("docs/benchmarks.md", "") == expected
    median = BENCH["step"]["median"]
    for shown, key in zip(
        table("docs/benchmarks.md", "seconds").values(),
        ("seconds", "rollout", "update"),
        strict=True,
    ):
        assert shown == [f"{median[one][key]:.2f}" for one in ("ours", "trl", "ratio")]


def test_the_shipped_policy_answers_the_question_of_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    command = 'svr predict --config countdown_tiny --question "9 2 6 = 5"'
    assert command in page("README.md")
    assert main(["predict", "--config", "countdown_tiny", "--question", "9 2 6 = 5"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    (answer,) = (block for block in blocks(page("README.md"), "text") if "turn 1" in block)
    assert " ".join(answer.split()) in printed
