"""Numbers in tables of README, results and the miniature are those of published files."""

from statistics import fmean
from typing import Any

import numpy as np
import pytest

from experiments.qwen import __main__ as qwen
from experiments.qwen.certificates import certificates
from experiments.starts import pages
from experiments.starts.picture import draw
from svr_lightning.__main__ import main
from svr_lightning.files import to_json
from svr_lightning.report.drawing import svg
from tests.commands import ROOT, read_json, screen
from tests.pages import blocks, flowing, page, tables

SEEDS = ("42", "43", "44")
FRESH = 4
"""The place of fresh samples with the self-check in the main job's table."""


def published(path: str) -> Any:
    return read_json(ROOT / path)


RUNS = published("tools/results/main_job.json")
STARTS = {task: published(f"experiments/starts/results/{task}.json") for task in pages.TASKS}
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


def three(values: list[float], form: str = ".3f") -> str:
    """Values of three seeds in a sentence."""
    one, two, last = (f"{value:{form}}" for value in values)
    return f"{one}, {two} and {last}"


@pytest.mark.parametrize("name", pages.PARTS)
def test_the_headline_and_the_table_of_starts_are_those_of_the_published_outcomes(name):
    """``python -m experiments.starts`` writes them."""
    assert page(name) == pages.page(name, STARTS)


def test_the_picture_is_drawn_from_the_same_table():
    assert page(str(pages.PICTURE)) == svg(draw, STARTS["countdown"])


def test_what_the_readme_shows_of_make_run_is_in_the_guide():
    (shown,) = (block for block in blocks(page("README.md"), "text") if "before   after" in block)
    (whole,) = (
        block for block in blocks(page("docs/index.md"), "text") if "before   after" in block
    )
    rows = {" ".join(line.split()) for line in whole.splitlines()}
    assert {" ".join(line.split()) for line in shown.splitlines()} <= rows


def test_the_start_that_ships_has_the_numbers_of_its_runs():
    said = flowing("docs/results.md")
    plus = [RUNS["svr_plus"][seed]["check_value"] for seed in SEEDS]
    assert f"is worth {three([one['gap'] for one in plus], '+.3f')} and training" in said
    assert f"training {three([one['gain'] for one in plus], '+.3f')}" in said
    svr = [RUNS["svr"][seed]["check_value"]["rows"][FRESH]["accuracy"] for seed in SEEDS]
    assert f"the paper's SVR solve {three(svr)}" in said


KEYS = ("accuracy", "avg_total_tokens", "pse", "auroc", "brier", "overconfidence")


def shown(runs: list[Any]) -> list[str]:
    means = [fmean(run[key] for run in runs) for key in KEYS]
    return [f"{mean:.0f}" if mean > 1 else f"{mean:.3f}" for mean in means]


def embedded(task: str, method: str, when: str) -> list[Any]:
    return [r[when][task] for r in EMBEDDED if (r["task"], r["method"]) == (task, method)]


def test_no_change_of_the_check_is_shown_to_help():
    for one in published("tools/results/levers.json")["changes"].values():
        low, high = one["difference_ci98.3"]
        assert low < 0 < high  # Holm: the smallest of three p-values is above 0.05 / 3


def test_the_embedded_tasks_are_means_of_published_runs():
    (found,) = (rows for rows in tables(page("docs/results.md")) if "Brier" in rows[0])
    rows = (("svr", "before"), ("svr", "after"), ("svr_plus, every turn", "after"))
    assert [row[1:] for row in found[1:]] == [
        shown(embedded(task, method, when))
        for task in ("countdown_tiny", "arithmetic_tiny")
        for method, when in rows
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
    text = flowing("docs/miniature.md")
    for name in ("svr_plus_fresh", "rlcr_fresh", "svr_fresh"):
        assert gap(pair("countdown", name, "the warm start's fresh turns", 400)) in text


def within(task: str, name: str, budget: int) -> Any:
    """What one method reaches within a budget of tokens."""
    curves = RESULTS[task]["budgets"]["curves"]
    (curve,) = (one for one in curves if name in (one["name"], one["title"]))
    (point,) = (point for point in curve["points"] if point["budget"] == budget)
    return point


TITLES = {
    "GRPO, one turn or votes": "GRPO",
    "SVR without verification rewards": "w/o R_verify",
    "SVR+ with 8 sequences": "SVR+, 8 sequences",
}
"""Of rows that the page spells out."""
BUDGETS = (70, 140, 400, 800)


def test_accuracies_within_equal_tokens_are_the_published_ones():
    (found,) = (r for r in tables(page("docs/miniature.md")) if r[0][1] == "Countdown, 70")
    assert len(found) == 15
    for title, *cells in found[1:]:
        name = TITLES.get(title, title)
        accuracies = [within(task, name, b)["accuracy"] for task in RESULTS for b in BUDGETS]
        assert [cell.strip("*") for cell in cells] == [f"{one:.3f}" for one in accuracies]
    text = flowing("docs/stopping.md")
    for task, fresh, refining in (("countdown", 280, 560), ("arithmetic", 70, 140)):
        one, other = within(task, "svr_plus_fresh", fresh), within(task, "svr_plus", refining)
        assert (
            f"{one['accuracy']:.3f} with {one['tokens']:.0f} tokens by fresh turns, and "
            f"{other['accuracy']:.3f} with {other['tokens']:.0f} by refinement"
        ) in text


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
        runs = [
            run for name, run in found["policies"].items() if name.endswith(f", {arm}, sampled")
        ]
        means.append([f"{fmean(run[key] for run in runs):.3f}" for key in keys])
    assert [*map(list, table("docs/results.md", "first turns, seeds 1 to 3").values())] == means
    text = flowing("docs/results.md")
    for arm in ("svr", "supervised", "labelled"):
        primary = found["comparisons"][arm]["primary: AUROC"]
        assert gap(primary, "value") in text
    of_verdicts = found["comparisons"]["supervised"]["not planned: AUROC of P(CORRECT)"]
    assert gap(of_verdicts, "value") in text
    checked = [
        found["policies"][f"seed 1, {arm}, checked"] for arm in ("warm", "warm_exact_20_steps")
    ]
    warm, further = (f"{run['auroc']:.3f}" for run in checked)
    free, then = (f"{run['auroc_logprob']:.3f}" for run in checked)
    warmer = gap(found["comparisons"]["warm"]["AUROC - start"], "value")
    assert f"an AUROC of {warm}, {warmer}, and 20 steps" in text
    assert f"to {further}; log-probabilities have {free}, and then {then}." in text
    trained, control = means[1], means[2]
    first_screen = flowing("README.md")
    assert f"teaches it: {warm}, log-probabilities {free}" in first_screen
    assert f"its stated confidence is {trained[2]}, and {control[2]} without" in first_screen
    assert f"log-probabilities reach {trained[4]}" in first_screen


CERTIFIED = {
    "equal answers": "equal answers",
    "repeated answer": "an answer repeated in a row",
    "votes and log-probabilities": "votes and log-probabilities",
    "votes and confidences": "votes and confidences",
    "votes and P(CORRECT)": "votes and P(CORRECT)",
}


def test_the_qwen_has_the_numbers_of_its_recordings():
    keys = ("right", "stated", "p_correct", "logprob_mean", "logprob_sum")
    runs = qwen.recordings()
    rows = [
        [*(f"{found[key]:.3f}" for key in keys), gap(found["over_sum"], "value")]
        for found in map(qwen.numbers, runs)
    ]
    assert [*table("docs/results.md", "start").values()] == rows
    text = flowing("docs/results.md")
    held_out = [
        published(f"experiments/qwen/results/{start}.json")["held_out"]
        for start in ("fourth1-again", "fifth1")
    ]
    fourth, fifth = ({name: f"{value:.3f}" for name, value in one.items()} for one in held_out)
    assert f"{fourth['auroc_confidence']} on 200 held-out problems" in text
    assert f"the sum has {fourth['auroc_logprob_sum']}" in text
    stated, mean, total = (
        fifth[f"auroc_{score}"] for score in ("confidence", "logprob_mean", "logprob_sum")
    )
    assert f"an AUROC of {stated}: above the mean ({mean}) and the sum ({total})" in text
    _, stated, verdict, _, total, _ = rows[-2]
    assert (
        f"{stated} on test questions, the best of these starts, where the sum has {total}" in text
    )
    known = f"has an AUROC of {stated} (its verdict's probability {verdict}, log-prob"
    assert f"{known}abilities {total};" in flowing("README.md")
    found = {(row["way"], row["limit"]): row for row in certificates(runs[-1])}
    row = found["equal answers", 0.2]
    assert (
        f"in {row['certified']:.2f} of 40 halves; it then accepts {row['accepted']:.3f} of the "
        f"other questions, {row['wrong']:.3f} wrongly"
    ) in text
    sure = {name for (name, _), one in found.items() if one["certified"]}
    assert sure - {"oracle (reads labels)"} == set(CERTIFIED)
    rows = table("experiments/qwen/README.md", "at most 20 % wrong")
    for name, title in CERTIFIED.items():
        values = (found[name, 0.2][key] for key in ("certified", "accepted", "wrong"))
        assert [f"{value:.{digits}f}" for value, digits in zip(values, (2, 3, 3), strict=True)] == (
            rows[title]
        )


@pytest.mark.parametrize("in_a_row", [True, False])
def test_with_all_questions_three_answers_of_the_qwen_are_certified(in_a_row, tmp_path):
    stop = to_json({"class_path": "RepeatedAnswer", "init_args": {"in_a_row": in_a_row}})
    words = ["--max-wrong-accepted", "0.2", "--calibrate-on", "1", "--out", str(tmp_path)]
    file = str(qwen.RESULTS / "worked15-fresh.jsonl.gz")
    assert main(["certify", file, "--stop", stop, *words]) == 0
    chosen = read_json(tmp_path / "certificate.json")["certified"]
    accepted = f"accepts {chosen['rates']['accepted']:.3f}"
    text = flowing("experiments/qwen/README.md")
    assert (chosen["threshold"], accepted in text) == (3.0, True)


COLLAPSE = published("tools/results/collapse.json")


def ends(condition: Any, when: str, key: str) -> tuple[float, float, float]:
    """The least, the mean and the greatest value of its seeds, of the first or last steps."""
    values = [run[when][key] for run in condition["runs"].values()]
    return min(values), fmean(values), max(values)


def test_the_collapse_into_doubt_has_the_published_course():
    svr, informative, *_ = COLLAPSE["conditions"]
    (unrewarded,) = (one for one in COLLAPSE["conditions"] if "without verif" in one["name"])
    says = [step["verdict/correct"] for step in svr["mean_log"]]
    text = flowing("docs/results.md")
    assert (
        f"CORRECT on {100 * ends(svr, 'first', 'verdict/correct')[1]:.0f} % of the turns at first "
        f"and on {100 * fmean(says[55:65]):.0f} % after about sixty steps"
    ) in text
    low, _, high = ends(informative, "last", "auroc")
    known = ends(informative, "first", "auroc")[1]
    assert (
        f"(AUROC {known:.2f}), the same method ends at an AUROC of {low:.2f} to {high:.2f}" in text
    )
    low, _, high = ends(unrewarded, "last", "verdict/correct")
    assert f"the share of CORRECT ends at {low:.2f} to {high:.2f}" in text


def test_what_refining_and_adapters_cost_is_published():
    start, plus = (RUNS["svr_plus"]["42"][when] for when in ("before", "after"))
    cost = f"[{plus['avg_total_tokens']:.0f} tokens](tools/results/main_job.json) per puzzle and"
    assert f"{cost} one answer {start['avg_total_tokens']:.0f}" in flowing("README.md")
    tiny = "countdown_tiny"
    adapters = [run["after"] for run in published("tools/results/lora.json")["runs"]]
    found = [
        " and ".join(f"{fmean(run[key] for run in runs):.3f}" for key in ("accuracy", "auroc"))
        for runs in (adapters, embedded(tiny, "svr", "after"))
    ]
    text = flowing("docs/train.md").replace("and an AUROC of", "and")
    assert f"reach an accuracy of {found[0]}. Training all weights reaches {found[1]}" in text


def test_a_turn_of_the_qwen_without_a_verdict_ranks_last_in_every_score():
    (run,) = qwen.read_recording(qwen.RESULTS / "way3-fresh.jsonl.gz").tables.values()
    silent = np.isnan(run.verdict_probability)
    assert silent.sum() == 38
    for name, score in qwen.scores(run).items():
        assert score[silent].max() < score[~silent].min(), name


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


def test_what_the_benchmarks_say_of_their_tables_is_published():
    text = flowing("docs/benchmarks.md")
    vllm, plain = BENCH["rollout_vllm"], BENCH["rollout_transformers"]
    steps = " or ".join(f"{found['steps_ratio']:.2f}" for found in (vllm, plain))
    assert f"takes {steps} of the engine steps" in text
    for found in (vllm, plain):
        speeds = [found[way]["tokens_per_second"] for way in ("pipelined", "lock-step")]
        assert f"{speeds[0] / speeds[1]:.2f} times as many tokens per second" in text
    update, serve = (published(f"tools/bench/results/{name}.json") for name in ("update", "serve"))
    peak = update["peak_gib"]
    assert f"need {peak['plain']:.2f} GiB" in text
    assert f"but {peak['blocks']:.2f} GiB" in text
    times = [one["wall"]["ratio"] for one in update["timing"]]
    assert f"takes {min(times):.2f} to {max(times):.2f} of the time" in text
    server = serve["server"]
    assert (
        f"{server['turns_per_second']:.1f} turns per second, which is "
        f"{serve['share']['turns_per_second']:.2f} of what the same rollouts reach without a "
        f"server ({serve['driver']['turns_per_second']:.1f}). Of {server['answers']['right']:,}"
    ) in text
    assert f"stays at {server['memory_mb']['end']:.0f} MB" in text


def test_the_shipped_policy_answers_the_question_of_the_readme(tmp_path, monkeypatch, capsys):
    """What the trained one answers is shown beside it, and takes a training to see."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    question = "4 12 8 = 8"
    assert f'--question "{question}"' in page("README.md")
    assert main(["predict", "--config", "countdown_tiny", "--question", question]) == 0
    printed = screen(capsys)
    (shown,) = (block for block in blocks(page("README.md"), "text") if "turn 1" in block)
    first_answer = "\n".join(shown.splitlines()[1:3])
    assert f"turn 1 CORRECT 0.95 29 tokens {' '.join(first_answer.split())}" in printed
    assert "(12-4)+8, incorrect" in printed
