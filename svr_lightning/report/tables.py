"""The tables of the paper's section 4 and its appendices, from measured runs.

Values are means over a method's seeds; with several seeds the sample standard deviation follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pandas import DataFrame  # comes with datasets

from svr_lightning.analysis.metrics import Summary, Value, columns_of, groups
from svr_lightning.core.metrics import DEFINITIONS, NONE
from svr_lightning.display import plain
from svr_lightning.report.runs import Method, data_sets

_COST = ("accuracy", "avg_total_tokens")
_OPERATING = ("accuracy", "turns", "avg_total_tokens", "esr", "pse")
Columns = Mapping[str, tuple[str, str]]
"""The part and the metric under each heading."""
Rows = Sequence[tuple[str, Summary]]
"""What stands in a row: its label, and the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Plain text throughout: each form escapes it."""

    name: str
    """For its label."""
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def all_tables(methods: Sequence[Method]) -> list[Table]:
    """Every table that the runs allow, the paper's main ones first."""
    tables = [main_results(methods), results(methods)]
    if any(method.votes for method in methods):
        tables.append(majority_vote(methods))
    for number, method in enumerate(methods, start=1):
        if len(method.runs) > 1:
            tables.append(seeds(method, number))
    return tables


def headlines(methods: Sequence[Method]) -> list[str]:
    """Accuracy and tokens of each method on each data set, one line each.

    Beside them stand all turns of the same policy, if they were recorded. Where the paper's
    averages can be formed they stand for their data sets.
    """
    lines: dict[str, list[str]] = {}
    for method in methods:
        run = method.runs[0]
        for part, names in groups(run.tables).items():
            accuracy, tokens = (method.summary(part, metric).mean or 0.0 for metric in _COST)
            line = f"{part}, {method.name}: {accuracy:.3f} accuracy at {tokens:,.0f} tokens"
            if run.complete and run.stops:
                fixed = method.first.budgets[-1]
                accuracy, tokens = (fixed(part, metric).mean or 0.0 for metric in _COST)
                line += f", {accuracy:.3f} at {tokens:,.0f} with {run.budget} fixed turns"
            problems = sum(len(run.tables[name].ids) for name in names)
            lines.setdefault(part, []).append(f"{line} ({problems:,} problems)")
    return [line for some in lines.values() for line in some]


def _columns(parts: Sequence[str], metrics: Sequence[str]) -> Columns:
    """Each metric on each of ``parts``, whose name stands where there are several."""
    columns = {}
    for part in parts:
        for metric in metrics:
            head = DEFINITIONS[metric].head
            columns[f"{part} {head}" if len(parts) > 1 else head] = (part, metric)
    return columns


def _table(name: str, caption: str, first: str, columns: Columns, rows: Rows) -> Table:
    cells = [
        [label, *(summary(part, metric).text for part, metric in columns.values())]
        for label, summary in rows
    ]
    return Table(name=name, caption=caption, head=(first, *columns), rows=cells)


def _notes(methods: Sequence[Method]) -> str:
    if any(len(method.runs) > 1 for method in methods):
        return " Of several seeds, mean \u00b1 sample standard deviation."
    return ""


# --- methods side by side ---------------------------------------------------------------------


def main_results(methods: Sequence[Method]) -> Table:
    """Table 1: accuracy of every method on every data set."""
    parts = columns_of(data_sets(methods))
    caption = f"Final-answer accuracy.{_notes(methods)}"
    columns = {part: (part, "accuracy") for part in parts}
    rows = [(method.name, method.summary) for method in methods]
    return _table("main_results", caption, "Method", columns, rows)


def results(methods: Sequence[Method]) -> Table:
    """Appendix: all metrics of every method on each data set, with intervals of accuracy."""
    rows: list[list[str]] = []
    shown = [name for name, one in DEFINITIONS.items() if one.in_tables and name != "accuracy"]
    for method in methods:
        tables = method.runs[0].tables
        for part, names in columns_of(data_sets([method])).items():
            problems = sum(len(tables[name].ids) for name in names if name in tables)
            accuracy = method.summary(part, "accuracy")
            others = [method.summary(part, metric).text for metric in shown]
            rows.append(
                [method.name, part, f"{problems:,}", accuracy.text, _bounds(accuracy), *others]
            )
    rules = "; ".join(f"{method.name}: {method.runs[0].rule_text}" for method in methods)
    heads = [DEFINITIONS[metric].head for metric in shown]
    return Table(
        name="results",
        caption=f"Results. Intervals are 95 % over problems. {rules}.{_notes(methods)}",
        head=("Method", "Data set", "n", "Final", "95 % interval", *heads),
        rows=rows,
    )


def _bounds(value: Value) -> str:
    if value.interval is None:
        return NONE
    low, high = value.interval
    return f"{low:.3f} to {high:.3f}"


def majority_vote(methods: Sequence[Method]) -> Table:
    """Table 2: accuracy and tokens of voting over recordings of fresh turns, then of the rest."""
    parts = groups(name for method in methods for name in method.runs[0].tables)
    caption = (
        "Comparison with majority voting over k independent samples. Tokens per problem count the "
        "prompt once per sample or turn."
    )
    rows = []
    for method in methods:
        rows += [(f"{method.name} Maj@{k}", votes) for k, votes in method.votes.items()]
    rows += [(method.name, method.summary) for method in methods if not method.votes]
    return _table("majority_vote", caption, "Method", _columns([*parts], _COST), rows)


# --- one method -------------------------------------------------------------------------------


def seeds(method: Method, number: int) -> Table:
    """Appendix: each seed, their mean and sample standard deviation."""
    columns = _columns([*columns_of(data_sets([method]))], _OPERATING)
    caption = (
        f"Robustness of {method.name} across {len(method.runs)} training seeds: mean and sample "
        "standard deviation in the last row."
    )
    rows = [(run.seed, replace(method, runs=[run]).summary) for run in method.runs]
    mean = ("Mean \u00b1 Std.", method.summary)
    return _table(f"seed_robustness_{number}", caption, "Seed", columns, [*rows, mean])


# --- LaTeX ------------------------------------------------------------------------------------

_ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def tables_tex(tables: Sequence[Table]) -> str:
    """Every table as a float over both columns with a label of its own; needs booktabs. ASCII."""
    return "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    head, *rows = ([_escaped(text) for text in row] for row in (table.head, *table.rows))
    form = {"environment": "table*", "position_float": "centering", "hrules": True}
    form |= {"caption": _escaped(table.caption), "label": f"tab:{table.name}"}
    form["column_format"] = "l" + "r" * (len(head) - 1)
    return str(DataFrame(rows, columns=head).style.hide().to_latex(**form))


def _escaped(text: str) -> str:
    """LaTeX for a text on one line, in ASCII."""
    known = plain(" ".join(text.split())).replace("\u00b1", "+-").replace("\u03b3", "gamma")
    characters = known.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(_ESCAPED.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in characters)
