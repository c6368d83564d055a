"""The tables of the paper's section 4 and its appendices, from measured runs.

Values are means over a method's seeds; with several seeds the sample standard deviation follows.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from svr_lightning.analysis.averages import Datasets, average, columns_of, groups
from svr_lightning.analysis.replay import THRESHOLDS
from svr_lightning.core.metrics import DEFINITIONS
from svr_lightning.report.numbers import NONE, text_of, values_of
from svr_lightning.report.runs import Method, Rules, data_sets
from svr_lightning.report.text import Rows, Table

_COST = ("accuracy", "avg_total_tokens")
_OPERATING = ("accuracy", "turns", "avg_total_tokens", "esr", "pse")
Columns = Sequence[tuple[Sequence[str], str]]
"""The data sets and the metric of each column."""


def all_tables(methods: Sequence[Method], rules: Rules | None = None) -> list[Table]:
    """Every table that the runs allow, the paper's main ones first.

    ``rules`` are of :func:`~svr_lightning.report.runs.compare_rules`.
    """
    tables = [main_results(methods), results(methods)]
    if rules:
        tables.append(stopping_rules(methods, rules))
    if any(method.runs[0].votes for method in methods):
        tables.append(majority_vote(methods))
    for number, method in enumerate(methods, start=1):
        tables += _of_method(method, number)
    return tables


def _of_method(method: Method, number: int) -> Iterator[Table]:
    run = method.runs[0]
    if run.complete:
        yield fixed_budgets(method, number)
    if run.has_thresholds:
        yield thresholds(method, number)
    if len(method.runs) > 1:
        yield seeds(method, number)


def headline(methods: Sequence[Method]) -> str:
    """Accuracy and tokens of the first method on each data set, and what to compare them with.

    These are all turns of the same policy if they were recorded, else the most accurate of the
    other methods. Where the paper's averages can be formed they stand for their data sets.
    """
    method, run = methods[0], methods[0].runs[0]
    sentences = []
    for label, names in groups(run.tables).items():
        sentence = f"{method.name}, {label}: {_cost(method, names)}"
        others = {
            fmean(values): other
            for other in reversed(methods[1:])
            if (values := values_of(other.seeds, names, "accuracy"))
        }
        if run.complete and run.stops:
            fixed = average(run.budgets[-1], names)
            sentence += (
                f" instead of {fixed['accuracy']:.3f} at {fixed['avg_total_tokens']:,.0f} with "
                f"{len(run.budgets)} fixed turns"
            )
        elif others:
            best = others[max(others)]
            sentence += f"; {best.name}: {_cost(best, names)}"
        problems = sum(len(run.tables[name].ids) for name in names)
        sentences.append(f"{sentence} ({problems:,} problems).")
    return " ".join(sentences)


def _cost(method: Method, names: Sequence[str]) -> str:
    accuracy, tokens = (fmean(values_of(method.seeds, names, metric)) for metric in _COST)
    return f"{accuracy:.3f} accuracy at {tokens:,.0f} tokens per problem"


def _row(labels: Sequence[str], seeds: Sequence[Datasets], columns: Columns) -> list[str]:
    return [*labels, *(text_of(seeds, names, metric) for names, metric in columns)]


def _heads(sets: Mapping[str, Sequence[str]], metrics: Sequence[str]) -> list[str]:
    """The head of each metric on each of ``sets``, whose name stands where there are several."""
    heads = [DEFINITIONS[metric].head for metric in metrics]
    return [f"{name} {head}" if len(sets) > 1 else head for name in sets for head in heads]


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else form.format(value)


def _interval(edges: Sequence[float] | None, form: str) -> str:
    return NONE if edges is None else " to ".join(map(form.format, edges))


def _notes(methods: Sequence[Method]) -> str:
    several = any(len(method.runs) > 1 for method in methods)
    return " Of several seeds, mean \u00b1 sample standard deviation." * several


# --- methods side by side ---------------------------------------------------------------------


def main_results(methods: Sequence[Method]) -> Table:
    """Table 1: accuracy of every method on every data set."""
    sets = columns_of(data_sets(methods))
    columns = [(names, "accuracy") for names in sets.values()]
    return Table(
        name="main_results",
        main=True,
        caption=f"Final-answer accuracy.{_notes(methods)}",
        head=("Method", *sets),
        rows=[_row([method.name], method.seeds, columns) for method in methods],
    )


def results(methods: Sequence[Method]) -> Table:
    """Appendix: all metrics of every method on each data set, with intervals of accuracy."""
    rows: Rows = []
    shown = [name for name, one in DEFINITIONS.items() if one.in_tables and name != "accuracy"]
    for method in methods:
        found = method.runs[0].datasets
        for name, sets in columns_of(data_sets([method])).items():
            interval = None if len(method.runs) > 1 else average(found, sets)["accuracy_ci95"]
            labels = [
                *(method.name, name),
                f"{sum(found[one]['n'] for one in sets if one in found):,}",
                text_of(method.seeds, sets, "accuracy"),
                _interval(interval, "{:.3f}"),
            ]
            rows.append(_row(labels, method.seeds, [(sets, metric) for metric in shown]))
    rules = "; ".join(f"{method.name}: {method.runs[0].rule_text}" for method in methods)
    heads = [DEFINITIONS[metric].head for metric in shown]
    return Table(
        name="results",
        main=True,
        caption=f"Results. Intervals are 95 % over problems. {rules}.{_notes(methods)}",
        head=("Method", "Data set", "n", "Final", "95 % interval", *heads),
        rows=rows,
    )


def winners(methods: Sequence[Method], rules: Rules) -> list[str]:
    """One sentence for each part of ``rules``: its best stopping rule at the budget."""
    sentences = []
    for number, parts in rules.items():
        method = methods[number]
        for part, found in parts.items():
            best = next((row for row in found["rows"] if row["name"] == found["winner"]), None)
            result = "every stopping rule is over budget"
            if best is not None:
                result = (
                    f"the best stopping rule that reads no labels is {best['name']!r}, with "
                    f"{best['accuracy']:.3f} accuracy"
                )
            budget = f"within {found['budget']:,.0f} tokens per problem {result}."
            sentences.append(f"{method.name}, seed {method.runs[0].seed}, {part}: {budget}")
    return sentences


def stopping_rules(methods: Sequence[Method], rules: Rules) -> Table:
    """Families of stopping rules at equal tokens."""
    rows = [
        [
            *(methods[number].name, part, f"{found['budget']:,.0f}", row["name"]),
            _number(row["accuracy"], "{:.3f}"),
            _interval(row["ci95"], "{:.3f}"),
            _number(row["tokens"], "{:,.0f}"),
            "best" if row["name"] == found["winner"] else _number(row["gap"], "{:+.3f}"),
            _interval(None if row["name"] == found["winner"] else row["gap_ci95"], "{:+.3f}"),
        ]
        for number, parts in rules.items()
        for part, found in parts.items()
        for row in found["rows"]
    ]
    heads = ("Method", "Problems", "Budget", "Rule", "Acc.", "95 % interval", "Tokens", "Gap")
    return Table(
        name="stopping_rules",
        main=True,
        caption="Stopping rules within the same mean tokens per problem. "
        "The best setting of a rule on one half of the problems is measured on the other half. "
        "Intervals are 95 % over problems; the gap is to the best rule that reads no labels. "
        + " ".join(winners(methods, rules)),
        head=(*heads, "95 % interval"),
        rows=rows,
    )


def majority_vote(methods: Sequence[Method]) -> Table:
    """Table 2: accuracy and tokens of voting over recordings of fresh turns, then of the rest."""
    sets = groups(name for method in methods for name in method.runs[0].tables)
    columns = [(names, metric) for names in sets.values() for metric in _COST]
    return Table(
        name="majority_vote",
        caption="Comparison with majority voting over k independent samples. Tokens per problem "
        "count the prompt once per sample or turn.",
        head=("Method", *_heads(sets, _COST)),
        rows=[
            *(
                _row([f"{method.name} Maj@{k}"], [row], columns)
                for method in methods
                for k, row in method.runs[0].votes.items()
            ),
            *(_row([m.name], m.seeds, columns) for m in methods if not m.runs[0].votes),
        ],
    )


# --- one method -------------------------------------------------------------------------------


def _first_seed(method: Method) -> str:
    """Which seed a replay is of, where there are several."""
    return f" Seed {method.runs[0].seed} alone." if len(method.runs) > 1 else ""


def fixed_budgets(method: Method, number: int) -> Table:
    """Appendix: accuracy of every fixed budget."""
    run = method.runs[0]
    sets = columns_of(run.tables)
    columns = [(names, "accuracy") for names in sets.values()]
    rows = [_row([f"K = {k}"], [row], columns) for k, row in enumerate(run.budgets, start=1)]
    note = ""
    if run.self_checks:
        rows.append(_row(["Adaptive"], [run.datasets], columns))
        note = f" The adaptive row is with {run.rule_text}."
    return Table(
        name=f"fixed_budget_sweep_{number}",
        caption=f"Final-answer accuracy of {method.name} under fixed-budget inference: every "
        f"problem runs exactly K turns, and the answer of turn K is returned.{note}"
        f"{_first_seed(method)}",
        head=("Budget", *sets),
        rows=rows,
    )


def thresholds(method: Method, number: int) -> Table:
    """Appendix: accuracy on each data set over thresholds, and operating characteristics."""
    run = method.runs[0]
    sets, parts = columns_of(run.tables), groups(run.tables)
    others = [metric for metric in _OPERATING if metric != "accuracy"]
    columns = [(names, "accuracy") for names in sets.values()]
    columns += [(names, metric) for names in parts.values() for metric in others]
    return Table(
        name=f"thresholds_{number}",
        caption=f"Final-answer accuracy and operating characteristics of adaptive {method.name} at "
        f"other thresholds, with at most {run.max_turns} turns.{_first_seed(method)}",
        head=("\u03b3", *sets, *_heads(parts, others)),
        rows=[
            _row([f"{threshold:.2f}"], [row], columns)
            for threshold, row in zip(THRESHOLDS, run.at_thresholds, strict=True)
        ],
    )


def seeds(method: Method, number: int) -> Table:
    """Appendix: each seed, their mean and sample standard deviation."""
    sets = columns_of(data_sets([method]))
    columns = [(names, metric) for names in sets.values() for metric in _OPERATING]
    return Table(
        name=f"seed_robustness_{number}",
        caption=f"Robustness of {method.name} across {len(method.runs)} training seeds: mean and "
        "sample standard deviation in the last row.",
        head=("Seed", *_heads(sets, _OPERATING)),
        rows=[
            *(_row([run.seed], [run.datasets], columns) for run in method.runs),
            _row(["Mean \u00b1 Std."], method.seeds, columns),
        ],
    )
