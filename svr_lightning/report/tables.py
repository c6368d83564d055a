"""The tables of the paper's section 4 and its appendices, from measured runs.

Values are means over a method's seeds; with several seeds the sample standard deviation follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pandas import DataFrame  # comes with datasets

from svr_lightning.analysis.metrics import Datasets, average, columns_of, groups, text_of, values_of
from svr_lightning.core.metrics import DEFINITIONS, NONE
from svr_lightning.display import plain
from svr_lightning.report.runs import Method, data_sets

_COST = ("accuracy", "avg_total_tokens")
_OPERATING = ("accuracy", "turns", "avg_total_tokens", "esr", "pse")
Columns = Mapping[str, tuple[Sequence[str], str]]
"""The data sets and the metric under each heading."""
Rows = Sequence[tuple[str, Sequence[Datasets]]]
"""What stands in a row: its label, and the metrics of each seed."""


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
    if any(method.runs[0].votes for method in methods):
        tables.append(majority_vote(methods))
    several = ((n, one) for n, one in enumerate(methods, start=1) if len(one.runs) > 1)
    return tables + [seeds(method, number) for number, method in several]


def headlines(methods: Sequence[Method]) -> list[str]:
    """Accuracy and tokens of each method on each data set, one line each.

    Beside them stand all turns of the same policy, if they were recorded. Where the paper's
    averages can be formed they stand for their data sets.
    """
    lines: dict[str, list[str]] = {}
    for method in methods:
        run = method.runs[0]
        for label, names in groups(run.tables).items():
            accuracy, tokens = (fmean(values_of(method.seeds, names, m)) for m in _COST)
            line = f"{label}, {method.name}: {accuracy:.3f} accuracy at {tokens:,.0f} tokens"
            if run.complete and run.stops:
                fixed = average(run.budgets[-1], names)
                line += f", {fixed['accuracy']:.3f} at {fixed['avg_total_tokens']:,.0f} with "
                line += f"{len(run.budgets)} fixed turns"
            problems = sum(len(run.tables[name].ids) for name in names)
            lines.setdefault(label, []).append(f"{line} ({problems:,} problems)")
    return [line for some in lines.values() for line in some]


def _columns(sets: Mapping[str, Sequence[str]], metrics: Sequence[str]) -> Columns:
    """Each metric on each of ``sets``, whose name stands where there are several."""
    return {
        f"{part} " * (len(sets) > 1) + DEFINITIONS[metric].head: (names, metric)
        for part, names in sets.items()
        for metric in metrics
    }


def _table(name: str, caption: str, first: str, columns: Columns, rows: Rows) -> Table:
    cells = [
        [label, *(text_of(seeds, names, metric) for names, metric in columns.values())]
        for label, seeds in rows
    ]
    return Table(name=name, caption=caption, head=(first, *columns), rows=cells)


def _notes(methods: Sequence[Method]) -> str:
    several = any(len(method.runs) > 1 for method in methods)
    return " Of several seeds, mean \u00b1 sample standard deviation." * several


# --- methods side by side ---------------------------------------------------------------------


def main_results(methods: Sequence[Method]) -> Table:
    """Table 1: accuracy of every method on every data set."""
    sets = columns_of(data_sets(methods))
    caption = f"Final-answer accuracy.{_notes(methods)}"
    columns = {name: (names, "accuracy") for name, names in sets.items()}
    rows = [(method.name, method.seeds) for method in methods]
    return _table("main_results", caption, "Method", columns, rows)


def results(methods: Sequence[Method]) -> Table:
    """Appendix: all metrics of every method on each data set, with intervals of accuracy."""
    rows: list[list[str]] = []
    shown = [name for name, one in DEFINITIONS.items() if one.in_tables and name != "accuracy"]
    for method in methods:
        found = method.runs[0].datasets
        for name, sets in columns_of(data_sets([method])).items():
            interval = None if len(method.runs) > 1 else average(found, sets)["accuracy_ci95"]
            n = sum(found[one]["n"] for one in sets if one in found)
            final = text_of(method.seeds, sets, "accuracy")
            bounds = NONE if interval is None else "{:.3f} to {:.3f}".format(*interval)
            others = (text_of(method.seeds, sets, metric) for metric in shown)
            rows.append([method.name, name, f"{n:,}", final, bounds, *others])
    rules = "; ".join(f"{method.name}: {method.runs[0].rule_text}" for method in methods)
    heads = [DEFINITIONS[metric].head for metric in shown]
    return Table(
        name="results",
        caption=f"Results. Intervals are 95 % over problems. {rules}.{_notes(methods)}",
        head=("Method", "Data set", "n", "Final", "95 % interval", *heads),
        rows=rows,
    )


def majority_vote(methods: Sequence[Method]) -> Table:
    """Table 2: accuracy and tokens of voting over recordings of fresh turns, then of the rest."""
    sets = groups(name for method in methods for name in method.runs[0].tables)
    caption = "Comparison with majority voting over k independent samples. Tokens per problem "
    caption += "count the prompt once per sample or turn."
    voting = [(f"{m.name} Maj@{k}", [row]) for m in methods for k, row in m.runs[0].votes.items()]
    others = [(m.name, m.seeds) for m in methods if not m.runs[0].votes]
    return _table("majority_vote", caption, "Method", _columns(sets, _COST), [*voting, *others])


# --- one method -------------------------------------------------------------------------------


def seeds(method: Method, number: int) -> Table:
    """Appendix: each seed, their mean and sample standard deviation."""
    columns = _columns(columns_of(data_sets([method])), _OPERATING)
    caption = f"Robustness of {method.name} across {len(method.runs)} training seeds: mean and "
    caption += "sample standard deviation in the last row."
    rows = [(run.seed, [run.datasets]) for run in method.runs]
    mean = ("Mean \u00b1 Std.", method.seeds)
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
