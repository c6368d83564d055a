"""``table.md`` and ``commands.md``, from what ``results.json`` holds. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from svr_lightning.experiments import plan
from svr_lightning.experiments.plan import Settings
from svr_lightning.experiments.results import REFERENCE

Entry = Mapping[str, Any]

_NOTES = """\
Three trainings per row where all have been run, of the same number of optimizer steps, problems
and generations (Murphy's tree may make fewer); the learning rate was tuned once per family on other
problems, and SVR+ chosen there among six. The warm start is one policy, its interval over problems
alone. Brackets are 95 % intervals of a bootstrap over seeds and problems; with three seeds they
understate how much trainings differ, with one they leave it out. Greedy figures are under each
row's own protocol: one turn, ten turns, or SVR's stopping rule at most ten turns. Best fixed: the
number of turns with the highest accuracy, picked on these very problems. Any turn: over all
recorded turns. Tokens are prompts and completions of all turns. Paper: accuracy of Qwen3.5-2B over
seven benchmarks, another task, model and scale."""
_FEEDBACK = "Turn 2 of MLMT-RL is feedback, which has no answer."
_VERSUS = """\
SVR minus the row, on the same problems and seeds. p: two-sided permutation test that flips signs
problem by problem; it is about new problems, not about other trainings, and is not corrected for
the number of rows. Verdict of accuracy per token: SVR dominates a row where it is no less accurate
at no more tokens. At its cost: SVR under the threshold and the number of turns that are most
accurate within the row's tokens, chosen on one half of the problems and measured on the other; and
SVR minus the row there."""
_HEAD = (
    *("", "accuracy", "paper", "first turn", "any turn", "best fixed (turns)", "turns", "tokens"),
    *("tokens per right answer", "PSE", "ESR", "Brier", "AUROC", "overconfidence"),
)
_SAMPLED = ("", "turn 1", "turn 2", "turn 3", "AUROC", "Brier", "overconfidence")
_COMPARED = (
    *("", "accuracy", "p", "tokens", "p", "verdict"),
    *("SVR at its cost (tokens)", "accuracy there", "p"),
)


def table_md(entries: Sequence[Entry], missing: Sequence[str]) -> str:
    """All tables and what has to be known to read them."""
    parts = ["# The miniature experiment", "", _NOTES, "", *_grid(_HEAD, map(_greedy, entries))]
    if any(entry["privileged"] for entry in entries):
        parts += ["", "(+) privileged: its prompts show labels."]
    parts += [
        "",
        "## Sampled",
        "",
        f"Temperature {plan.TEMPERATURE}, no early stop. {_FEEDBACK}",
        "",
    ]
    parts += _grid(_SAMPLED, (_sampled(entry) for entry in entries if "sampled" in entry))
    if pairs := [_compared(entry) for entry in entries if entry.get(f"versus_{REFERENCE}")]:
        parts += ["", "## Compared with SVR", "", _VERSUS, "", *_grid(_COMPARED, pairs)]
    if missing:
        parts += ["", f"Not judged: {', '.join(missing)}."]
    return "\n".join([*parts, ""])


def commands_md(settings: Settings, seeds: Sequence[int]) -> str:
    """The command lines behind each row; its other seeds differ in the number alone."""
    parts = ["# The command of each row", ""]
    parts += [f"Seed {seeds[0]}; all seeds: {', '.join(map(str, seeds))}.", ""]
    for row in plan.ROWS:
        cell = plan.cell(row, seeds[0], settings, ("train", "judge"))
        parts += [f"## {row.title}", "", "```bash", *(c.line for c in cell.commands), "```", ""]
    return "\n".join(parts)


def _grid(head: Sequence[str], rows: Any) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def _greedy(entry: Entry) -> list[str]:
    values = entry["greedy"]
    paper = entry["paper"]
    best = entry.get("best_fixed")
    return [
        _title(entry),
        _interval(values["accuracy"]),
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
        *(_mean(values["turns"], str(turn)) for turn in (1, 2, 3)),
        *(_mean(values, name) for name in ("auroc", "brier", "overconfidence")),
    ]


def _compared(entry: Entry) -> list[str]:
    values = entry[f"versus_{REFERENCE}"]
    cost = values["at_its_cost"]
    cells = [_title(entry)]
    for name, form in (("accuracy", "+.3f"), ("tokens", "+.0f")):
        gap = values[name]
        cells += [_interval({"mean": gap["difference"], "ci95": gap["ci95"]}, form)]
        cells += [_p_value(gap["p_value"])]
    if cost is None:
        return [*cells, values["verdict"], "none as cheap", "", ""]
    gap = cost["gap"]
    return [
        *(*cells, values["verdict"], f"{cost['accuracy']:.3f} ({cost['tokens']:.0f})"),
        _interval({"mean": gap["difference"], "ci95": gap["ci95"]}, "+.3f"),
        _p_value(gap["p_value"]),
    ]


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


def _p_value(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
