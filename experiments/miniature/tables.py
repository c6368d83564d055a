"""The tables and the figure of ``results.json``. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.miniature.summary import AUROCS
from svr_lightning.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    LIGHT_BLUE,
    ORANGE,
    PURPLE,
    RED,
    new_figure,
)

Entry = Mapping[str, Any]

_NOTES = """\
What the rows are: docs/train.md. How they were trained, and what came out: docs/miniature.md.

Every training takes as many optimizer steps, problems and generations (Murphy's tree may make
fewer); learning rates were tuned on other problems, and SVR+ was chosen there among six. All start
from one warm start, which was chosen among three; its interval is over problems alone. Brackets are
95 % intervals of a bootstrap over seeds and over clusters of problems; with few seeds they
understate how much trainings differ, with one they leave it out. Where an option is chosen within
a budget (a stopping rule, threshold, number of turns or votes), it is chosen on one half of the
clusters and measured on the other, averaged over 20 splits, and every resample chooses anew."""
_CLAIMS = """\
The first claim is the primary comparison. *Above* and *below*: the interval lies above or below
zero; else the claim is *not decided*. The last column is the same after Holm's correction over all
claims but the first. Adaptive inference is under the row's own rule. PSE is better below zero."""
_GREEDY = """\
Answers are greedy, under each row's own protocol: one turn, ten turns (MLMT-RL nine), or SVR's
stopping rule at most ten turns. Sampled: the same at temperature 0.9. Maj@k is the majority of k
samples at temperature 0.6, drawn again and again from sixteen; Maj@1 is one sample, and its prompt
counts k times. Best fixed: the number of turns with the highest accuracy, picked on these very
problems. Any turn: over all recorded turns.
Tokens are prompts and completions of all turns. PSE: the share of problems that stop early with a
wrong answer. ESR: the share of problems that stop before the turns run out."""
_CHECKS = """\
How well a self-check tells right answers from wrong ones. The paper's AUROC is over all observed
turns, and greedy refinement repeats a doubted answer up to ten times; over first or returned turns
every problem counts once. Sampled: at temperature 0.9. Brier: the mean square of confidence minus
correctness over observed turns. Overconfidence: the share of observed turns that call a wrong
answer CORRECT."""
_BUDGETS = """\
Either side takes its best option within the budget of tokens per problem, with greedy turns or
turns sampled at temperature 0.9; results.json has the options chosen. A free stop needs no
self-check. Fresh turns answer the question anew and see no draft. The gap is ours minus theirs on
common seeds. These intervals are not corrected for their number."""
_HEAD = (
    "",
    "seeds",
    "accuracy",
    "sampled",
    "first turn",
    "any turn",
    "best fixed (turns)",
    "turns",
    "tokens",
    "tokens per right answer",
    "PSE",
    "PSE, sampled",
    "ESR",
)
_CHECK_HEAD = (
    "",
    "AUROC",
    "first turns",
    "returned turns",
    "sampled: AUROC",
    "first turns",
    "returned turns",
    "Brier",
    "sampled",
    "overconfidence",
    "sampled",
)
_BUDGET_HEAD = ("budget", "ours (tokens)", "theirs (tokens)", "gap", "theirs, chosen most often")


def table_md(results: Entry) -> str:
    """All tables with the notes that explain them."""
    entries, budgets = results["rows"], results["budgets"]
    parts = ["# The miniature experiment", "", _NOTES]

    def section(title: str, notes: str, head: Sequence[str], rows: Iterable[list[str]]) -> None:
        parts.extend(["", f"## {title}", "", notes, "", *_grid(head, rows)])

    if results["claims"]:
        head = ("claim", "turns", "difference", "", "corrected")
        section("Claims", _CLAIMS, head, map(_claim, results["claims"]))
    section("Accuracy and cost", _GREEDY, _HEAD, map(_greedy, entries))
    if any(entry["privileged"] for entry in entries):
        parts += ["", "(+) privileged: its prompts show labels."]
    judged = [entry for entry in entries if "sampled" in entry]
    checked = (entry for entry in judged if entry["self_check"])
    section("Self-checks", _CHECKS, _CHECK_HEAD, map(_check, checked))
    if budgets["pairs"]:
        parts += ["", "## Within equal budgets", "", _BUDGETS]
    for one in budgets["pairs"]:
        seeds = ", ".join(map(str, one["seeds"]))
        parts += ["", f"### {one['title']} against {one['against']}, seeds {seeds}", ""]
        parts += _grid(_BUDGET_HEAD, map(_budget, one["points"]))
    return "\n".join([*parts, ""])


def _claim(entry: Entry) -> list[str]:
    corrected = "primary" if entry["corrected"] is None else entry["corrected"]
    return [entry["claim"], entry["turns"], _gap(entry), entry["label"], corrected]


def _check(entry: Entry) -> list[str]:
    both = [entry[how] for how in ("greedy", "sampled")]
    areas = [_mean(values, name) for values in both for name in AUROCS]
    others = [_mean(values, name) for name in ("brier", "overconfidence") for values in both]
    return [_title(entry), *areas, *others]


def _budget(point: Entry) -> list[str]:
    ours, pair = (
        f"{point[k]['accuracy']:.3f} ({point[k]['tokens']:.0f})" for k in ("ours", "pair")
    )
    return [str(point["budget"]), ours, pair, _gap(point["gap"]), point["pair"]["options"][0]]


def _grid(head: Sequence[str], rows: Any) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def _greedy(entry: Entry) -> list[str]:
    values = entry["greedy"]
    best = entry.get("best_fixed")
    return [
        _title(entry),
        str(len(entry["trained_seeds"]) or ""),
        _interval(values["accuracy"]),
        _interval(entry["sampled"]["accuracy"]) if "sampled" in entry else "",
        *(_mean(values, name) for name in ("first_turn_accuracy", "any_turn_accuracy")),
        "" if best is None else f"{best['mean']:.3f} ({best['budget']})",
        _mean(values, "turns", ".2f"),
        _interval(values["avg_total_tokens"], ".0f"),
        _mean(values, "tokens_per_correct", ".0f"),
        _mean(values, "pse"),
        _mean(entry["sampled"], "pse") if "sampled" in entry else "",
        _mean(values, "esr"),
    ]


def _gap(value: Entry) -> str:
    return _interval({"mean": value["difference"], "ci95": value["ci95"]}, "+.3f")


def _title(entry: Entry) -> str:
    return f"{entry['title']} (+)" if entry["privileged"] else str(entry["title"])


def _mean(values: Entry, name: str, form: str = ".3f") -> str:
    found = values.get(name)
    return "" if found is None or found["mean"] is None else format(found["mean"], form)


def _interval(value: Entry, form: str = ".3f") -> str:
    if value["mean"] is None:
        return ""
    low, high = (format(bound, form) for bound in value["ci95"])
    return f"{value['mean']:{form}} [{low}, {high}]"


# --- the figure -----------------------------------------------------------------------------------

_LOOKS = {
    "warm_start": (GREY, "P"),
    "grpo": (GREEN, "s"),
    "grpo_mt": (PURPLE, "D"),
    "murphy": (RED, "^"),
    "svr": (BLUE, "o"),
    "svr_plus": (LIGHT_BLUE, "X"),
    "rlcr": (ORANGE, "v"),
}
"""Colour and marker of each policy."""
_SHOWN = {*_LOOKS, "rlcr_fresh", "svr_fresh", "svr_plus_fresh"} - {"rlcr"}
"""More rows would make it unreadable."""


def budgets(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """A policy has one colour and marker; its fresh turns are dashed."""
    figure = new_figure(4.6)
    axes = figure.add_subplot()
    for curve in curves:
        if curve["name"] not in _SHOWN:
            continue
        policy = curve["name"].removesuffix("_fresh")
        colour, marker = _LOOKS[policy]
        axes.plot(
            [point["tokens"] for point in curve["points"]],
            [point["accuracy"] for point in curve["points"]],
            color=colour,
            linestyle="--" if policy != curve["name"] else "-",
            marker=marker,
            markersize=6,
            label=curve["title"],
        )
    axes.set_xscale("log")
    axes.set_xticks(ticks := (50, 100, 200, 400, 800), [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens per problem")
    axes.set_ylabel("accuracy")
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=3, handlelength=3)
    return figure
