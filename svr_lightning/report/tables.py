"""The tables of the paper's section 4 and its appendices, from measured runs.

Values are means over a method's seeds; with several seeds the sample standard deviation follows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from svr_lightning.analysis.metrics import Summary, Value, averages, columns_of, groups
from svr_lightning.core.metrics import DEFINITIONS, NONE
from svr_lightning.report.runs import Method, can_stop, data_sets

_COST = ("accuracy", "avg_total_tokens")
_OPERATING = ("accuracy", "turns", "avg_total_tokens", "esr", "pse")
_DIAGNOSTIC = ("turns", "esr", "pse", "brier", "overconfidence")
Columns = Mapping[str, tuple[str, str]]
"""The part and the metric under each heading."""
Rows = Sequence[tuple[str, Summary]]
"""Of each row: its label, and its values."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Plain text throughout: each form escapes it."""

    name: str
    """For its label."""
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    titles: Mapping[str, str] = field(default_factory=dict)
    """What abbreviated headings mean."""
    marks: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """By row and column, which values are ``best`` and ``second`` in the columns that compare."""


def all_tables(methods: Sequence[Method]) -> list[Table]:
    """Every table that the runs allow, the paper's main ones first."""
    tables = [main_results(methods), results(methods)]
    if len(methods) > 1 and averages(data_sets(methods)):
        tables += [variants(methods), diagnostics(methods)]
    if any(method.votes for method in methods):
        tables.append(majority_vote(methods))
    for number, method in enumerate(methods, start=1):
        if method.budgets:
            tables.append(fixed_budgets(method, number))
        if method.at_thresholds:
            tables += thresholds(method, number)
        if len(method.runs) > 1:
            tables += seeds(method, number)
    return tables


def _accuracies(methods: Sequence[Method]) -> dict[str, tuple[str, str]]:
    """Accuracy on every data set and average."""
    return {part: (part, "accuracy") for part in columns_of(data_sets(methods))}


def _columns(parts: Sequence[str], metrics: Sequence[str]) -> Columns:
    """Each metric on each of ``parts``, which headings name if there are several."""
    columns = {}
    for part in parts:
        for metric in metrics:
            head = DEFINITIONS[metric].head
            columns[f"{part} {head}" if len(parts) > 1 else head] = (part, metric)
    return columns


def _table(
    name: str, caption: str, first: str, columns: Columns, rows: Rows, *, compared: int = 0
) -> Table:
    """A table of summaries, whose first ``compared`` rows compete."""
    values = [[summary(*column) for column in columns.values()] for _, summary in rows]
    marks = {}
    for place, (_, metric) in enumerate(columns.values()):
        if metric == "accuracy":  # the best and the second-best values are marked
            for row, mark in _marks([one[place] for one in values[:compared]]).items():
                marks[row, place + 1] = mark
    return Table(
        name=name,
        caption=caption,
        head=(first, *columns),
        rows=[
            [label, *(value.text for value in row)]
            for (label, _), row in zip(rows, values, strict=True)
        ],
        titles={head: DEFINITIONS[metric].words for head, (_, metric) in columns.items()},
        marks=marks,
    )


def _marks(column: Sequence[Value]) -> dict[int, str]:
    """The places of the best and the second-best values as printed; none if all are equal."""
    printed = {
        place: float(DEFINITIONS[value.metric].text(value.mean))
        for place, value in enumerate(column)
        if value.mean is not None
    }
    levels = sorted(set(printed.values()), reverse=True)
    if len(levels) < 2:
        return {}
    mark = dict(zip(levels, ("best", "second"), strict=False))
    return {place: mark[value] for place, value in printed.items() if value in mark}


def _rows(methods: Iterable[Method]) -> Rows:
    return [(method.name, method.summary) for method in methods]


_MARKS = " The best values are bold, the second-best underlined."


def _notes(methods: Sequence[Method]) -> str:
    if any(len(method.runs) > 1 for method in methods):
        return " With several seeds, mean \u00b1 sample standard deviation."
    return ""


# --- methods side by side ---------------------------------------------------------------------


def main_results(methods: Sequence[Method]) -> Table:
    """Table 1: accuracy of every method on every data set."""
    caption = f"Final-answer accuracy.{_MARKS}{_notes(methods)}"
    rows = _rows(methods)
    return _table("main_results", caption, "Method", _accuracies(methods), rows, compared=len(rows))


def results(methods: Sequence[Method]) -> Table:
    """Appendix: all metrics of every method on each data set, with intervals of accuracy."""
    rows: list[list[str]] = []
    shown = [name for name, one in DEFINITIONS.items() if one.in_tables and name != "accuracy"]
    for method in methods:
        for part, names in columns_of(data_sets([method])).items():
            whole = [run.tables for run in method.runs if set(names) <= run.tables.keys()]
            counts = {sum(len(tables[name].ids) for name in names) for tables in whole}
            problems = " or ".join(f"{count:,}" for count in sorted(counts)) or NONE
            accuracy = method.summary(part, "accuracy")
            others = [method.summary(part, metric).text for metric in shown]
            interval = NONE
            if accuracy.interval is not None:
                low, high = accuracy.interval
                interval = f"{low:.3f} to {high:.3f}"
            rows.append([method.name, part, problems, accuracy.text, interval, *others])
    rules = "; ".join(f"{method.name}: {method.rule_text}" for method in methods)
    heads = [DEFINITIONS[metric].head for metric in shown]
    return Table(
        name="results",
        caption=f"Results. Intervals are 95 % over problems. {rules}.{_notes(methods)}",
        head=("Method", "Data set", "n", "Final", "95 % interval", *heads),
        rows=rows,
        titles={DEFINITIONS[metric].head: DEFINITIONS[metric].words for metric in shown}
        | {"n": "problems", "Final": "accuracy"},
    )


def variants(methods: Sequence[Method]) -> Table:
    """Tables 3 and 4: accuracy of every method on the averages; of the first, also how it stops."""
    parts = [*averages(data_sets(methods))]
    accuracies = {part: (part, "accuracy") for part in parts}
    columns = {**accuracies, **_columns(parts[:1], _DIAGNOSTIC)}
    caption = f"Accuracy on {' and '.join(parts)}, and how methods stop on {parts[0]}."
    rows = _rows(methods)
    caption += f"{_MARKS}{_notes(methods)}"
    return _table("variants", caption, "Method", columns, rows, compared=len(rows))


def diagnostics(methods: Sequence[Method]) -> Table:
    """Appendix: accuracy and how it stops of every method, on every data set and average."""
    metrics = ("accuracy", *_DIAGNOSTIC)
    caption = f"How methods stop, and how far their confidences are from labels.{_notes(methods)}"
    return _by_metric("diagnostics", caption, "Method", methods, metrics, _rows(methods))


def _by_metric(
    name: str,
    caption: str,
    second: str,
    methods: Sequence[Method],
    metrics: Sequence[str],
    rows: Rows,
) -> Table:
    """A table with a row for each metric of each of ``rows``; ``second`` heads their labels."""
    parts = columns_of(data_sets(methods))
    cells = []
    for metric in metrics:
        for label, summary in rows:
            values = [summary(part, metric).text for part in parts]
            cells.append([DEFINITIONS[metric].head, label, *values])
    return Table(name=name, caption=caption, head=("Metric", second, *parts), rows=cells)


def majority_vote(methods: Sequence[Method]) -> Table:
    """Table 2: accuracy and tokens of voting over recordings of fresh turns, then of the rest."""
    parts = groups(data_sets(methods))
    caption = (
        "Comparison with majority voting over k independent samples. Tokens per problem count the "
        "prompt once per sample or turn."
    )
    rows = []
    for method in methods:
        rows += [(f"{method.name} Maj@{k}", votes) for k, votes in method.votes.items()]
    rows += _rows(method for method in methods if not method.votes)
    columns = _columns([*parts], _COST)
    return _table("majority_vote", caption + _MARKS, "Method", columns, rows, compared=len(rows))


# --- one method -------------------------------------------------------------------------------


def fixed_budgets(method: Method, number: int) -> Table:
    """Appendix: the answer of turn K of every problem; below, for reference, adaptive inference."""
    rows = [(f"K={turns}", budget) for turns, budget in enumerate(method.budgets, start=1)]
    compared = len(rows)
    caption = (
        f"Final-answer accuracy of {method.name} with a fixed budget: every problem has K turns, "
        f"and the answer of the last is returned.{_MARKS}"
    )
    if any(map(can_stop, method.tables)):
        rows.append(("Adaptive", method.summary))
        caption += f" The last row is not ranked: {method.rule_text}."
    return _table(
        f"fixed_budget_sweep_{number}",
        caption + _notes([method]),
        "Budget",
        _accuracies([method]),
        rows,
        compared=compared,
    )


def thresholds(method: Method, number: int) -> list[Table]:
    """Appendix: accuracy at every threshold of the grid; then what each costs and stops."""
    operating: dict[str, tuple[str, str]] = {}
    for metric in _OPERATING:
        operating |= _columns([*groups(data_sets([method]))], [metric])
    of_rule = f"of {method.name} at other thresholds \u03b3 of its rule, {method.rule_text}."
    end = f"{of_rule}{_MARKS}{_notes([method])}"
    rows = [(f"{gamma:.2f}", summary) for gamma, summary in method.at_thresholds.items()]
    return [
        _table(
            f"confidence_threshold_{name}_{number}",
            f"{title} {end}",
            "\u03b3",
            columns,
            rows,
            compared=len(rows),
        )
        for name, title, columns in (
            ("accuracy", "Final-answer accuracy", _accuracies([method])),
            ("operating", "Operating characteristics", operating),
        )
    ]


def seeds(method: Method, number: int) -> list[Table]:
    """Appendix: each seed, their mean and sample standard deviation; then so by data set."""
    parts = groups(data_sets([method]))
    caption = (
        f"Robustness of {method.name} across {len(method.runs)} training seeds: below them their "
        "mean and sample standard deviation."
    )
    rows = [(run.seed, replace(method, runs=[run]).summary) for run in method.runs]
    rows.append(("Mean \u00b1 Std.", method.summary))
    name = f"seed_robustness_{number}"
    tables = [_table(name, caption, "Seed", _columns([*parts], _OPERATING), rows)]
    if averages(data_sets([method])):
        name = f"seed_robustness_by_data_set_{number}"
        tables.append(_by_metric(name, caption, "Seed", [method], _OPERATING, rows))
    return tables
