"""Writes ``table.md`` from results. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.miniature.results import REFERENCE
from experiments.miniature.rows import TEMPERATURE

Entry = Mapping[str, Any]

_NOTES = """\
What the rows are: docs/train.md. How they were trained, and what came out: docs/miniature.md.

Every training takes as many optimizer steps, problems and generations (Murphy's tree may make
fewer); learning rates were tuned on other problems, and SVR+ was chosen there among six. The warm
start is one policy, its interval over problems alone. Brackets are 95 % intervals of a bootstrap
over seeds and over clusters of problems; with few seeds they understate how much trainings differ,
with one they leave it out.

Answers are greedy, under each row's own protocol: one turn, ten turns (MLMT-RL nine), or SVR's
stopping rule at most ten turns. Sampled: the same at temperature 0.9. Maj@k is the majority of k
samples at temperature 0.6, drawn again and again from sixteen; Maj@1 is one sample, and its prompt
counts k times. Best fixed: the number of turns with the highest accuracy, picked on these very
problems. Any turn: over all recorded turns.
Tokens are prompts and completions of all turns. Paper: accuracy of Qwen3.5-2B over seven
benchmarks, another task, model and scale.

Better lower: PSE, the share of problems that stop with a wrong answer; Brier, the mean square of
confidence minus correctness over turns; overconfidence, the share of turns that call a wrong answer
CORRECT. Better higher: AUROC, how well confidence tells right turns from wrong ones. ESR: the share
of problems that stop before the turns run out."""
_FEEDBACK = "Turn 2 of MLMT-RL is feedback, whose text is graded as an answer."
_STOPS = """\
Families of stopping rules on the same recordings, within the mean tokens of the row's own rule: of
a family's settings, with at most three turns or all, the most accurate one on half of the clusters
is measured on the other half. In brackets: its difference to the row's own rule, with a 95 %
interval. Empty: no setting is as cheap, or the score was not recorded. The oracle reads labels and
is no rule that can be used. What the rules are: docs/stopping.md."""
_VERSUS = """\
SVR minus the row, on the same problems and seeds. Seeds ahead: on how many of them SVR is more
accurate."""
_COSTS = """\
SVR at the row's cost: under the stopping rule, of all but the oracle, that is most accurate within
the row's tokens, chosen on one half of the clusters of problems and measured on the other. The row
at SVR's cost likewise. The differences are there. Their intervals hold the chosen rules fixed."""
_BUDGETS = """\
Either takes the stopping rule, threshold, number of turns or votes that is best within the budget
of tokens per problem, with greedy turns or turns sampled at temperature 0.9, chosen on one half of
the clusters of problems and measured on the other; results.json has the choices. A free stop needs
no self-check. Fresh turns answer the question anew and see no draft. The gap is ours minus theirs
on common seeds, with a 95 % interval over seeds and clusters that holds the choice fixed."""
_HEAD = (
    *("", "seeds", "accuracy", "sampled", "paper", "first turn", "any turn"),
    *("best fixed (turns)", "turns", "tokens", "tokens per right answer"),
    *("PSE", "ESR", "Brier", "AUROC", "overconfidence"),
)
_SAMPLED = ("", "turn 1", "turn 2", "turn 3", "AUROC", "Brier", "overconfidence")
_BUDGET_HEAD = ("budget", "ours (tokens)", "theirs (tokens)", "gap", "theirs, chosen on one half")
_COMPARED = ("", "accuracy", "seeds ahead", "tokens")
_AT_COST = (
    *("", "SVR at the row's cost (tokens)", "SVR minus the row"),
    *("the row at SVR's cost (tokens)", "the row minus SVR"),
)


def table_md(entries: Sequence[Entry], budgets: Entry) -> str:
    """All tables with the notes that explain them."""
    parts = ["# The miniature experiment", "", _NOTES, "", *_grid(_HEAD, map(_greedy, entries))]
    if any(entry["privileged"] for entry in entries):
        parts += ["", "(+) privileged: its prompts show labels."]
    judged = [entry for entry in entries if "sampled" in entry]
    if stopped := [entry for entry in judged if entry["stops"]]:
        names = list(dict.fromkeys(one["name"] for entry in stopped for one in entry["stops"]))
        rows = (_stops(entry, names) for entry in stopped)
        parts += ["", "## Stopping rules at equal tokens", "", _STOPS, ""]
        parts += _grid(("", "own rule", *names), rows)
    if budgets["pairs"]:
        parts += ["", "## Within equal budgets", "", _BUDGETS]
    for one in budgets["pairs"]:
        seeds = ", ".join(map(str, one["seeds"]))
        parts += ["", f"### {one['title']} against {one['against']}, seeds {seeds}", ""]
        parts += _grid(_BUDGET_HEAD, map(_budget, one["points"]))
    parts += [
        "",
        "## Each sampled turn",
        "",
        f"Temperature {TEMPERATURE}, no early stop. {_FEEDBACK}",
        "",
    ]
    parts += _grid(_SAMPLED, map(_sampled, judged))
    if pairs := [entry for entry in entries if entry.get(f"versus_{REFERENCE}")]:
        parts += ["", "## Compared with SVR", "", _VERSUS, ""]
        parts += _grid(_COMPARED, map(_compared, pairs))
        parts += ["", "## At equal cost", "", _COSTS, "", *_grid(_AT_COST, map(_at_cost, pairs))]
    return "\n".join([*parts, ""])


def _stops(entry: Entry, names: Sequence[str]) -> list[str]:
    found = {one["name"]: one["at_own_cost"] for one in entry["stops"]}
    cells = [_title(entry), f"{entry['greedy']['accuracy']['mean']:.3f}"]
    for name in names:
        at_cost = found.get(name)
        cells.append(
            "" if at_cost is None else f"{at_cost['accuracy']:.3f} ({_gap(at_cost['gap'])})"
        )
    return cells


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
    paper = entry["paper"]
    best = entry.get("best_fixed")
    return [
        _title(entry),
        str(len(entry["trained_seeds"]) or ""),
        _interval(values["accuracy"]),
        _interval(entry["sampled"]["accuracy"]) if "sampled" in entry else "",
        "" if paper is None else f"{paper['all7_accuracy']:.3f}",
        *(_mean(values, name) for name in ("first_turn_accuracy", "any_turn_accuracy")),
        "" if best is None else f"{best['mean']:.3f} ({best['budget']})",
        _mean(values, "turns", ".2f"),
        _interval(values["tokens"], ".0f"),
        _mean(values, "tokens_per_correct", ".0f"),
        *(_mean(values, name) for name in ("pse", "esr", "brier", "auroc", "overconfidence")),
    ]


def _sampled(entry: Entry) -> list[str]:
    values = entry["sampled"]
    return [
        _title(entry),
        *(_mean(values["each_turn"], str(turn)) for turn in (1, 2, 3)),
        *(_mean(values, name) for name in ("auroc", "brier", "overconfidence")),
    ]


def _compared(entry: Entry) -> list[str]:
    values = entry[f"versus_{REFERENCE}"]
    gap = values["accuracy"]
    ahead = sum(difference > 0 for difference in gap["seeds"])
    return [
        *(_title(entry), _gap(gap), f"{ahead}/{len(gap['seeds'])}"),
        _gap(values["tokens"], "+.0f"),
    ]


def _at_cost(entry: Entry) -> list[str]:
    values = entry[f"versus_{REFERENCE}"]
    cells = [_title(entry)]
    for key in (f"{REFERENCE}_at_its_cost", f"at_{REFERENCE}s_cost"):
        found = values[key]
        if found is None:
            cells += ["none as cheap", ""]
            continue
        cells += [f"{found['accuracy']:.3f} ({found['tokens']:.0f})", _gap(found["gap"])]
    return cells


def _gap(value: Entry, form: str = "+.3f") -> str:
    return _interval({"mean": value["difference"], "ci95": value["ci95"]}, form)


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
