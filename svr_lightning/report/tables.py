"""The tables of the paper's section 4 and its appendices, from measured runs.

Values are means over a method's seeds; with several seeds the sample standard deviation follows.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from svr_lightning.analysis.replay import THRESHOLDS
from svr_lightning.core.metrics import DEFINITIONS
from svr_lightning.report.numbers import (
    NONE,
    Datasets,
    Numbers,
    average,
    averages,
    columns_of,
    display,
    mean_of,
    text_of,
    values_of,
)
from svr_lightning.report.runs import Method, Votes, data_sets
from svr_lightning.report.text import Mark, Rows, Table, ranked

_COST = ("accuracy", "avg_total_tokens")
_ABLATION = ("turns", "esr", "pse", "brier", "overconfidence")
_OPERATING = ("accuracy", "turns", "avg_total_tokens", "esr", "pse")
Columns = Sequence[tuple[Sequence[str], str]]
"""The data sets and the metric of each column."""


def all_tables(
    methods: Sequence[Method], votes: Votes, rules: Mapping[int, Numbers] | None = None
) -> list[Table]:
    """Every table that the runs allow, the paper's main ones first.

    ``votes`` may be empty; ``rules`` are of :func:`~svr_lightning.report.runs.compare_rules`.
    """
    tables = [main_results(methods), results(methods)]
    if rules:
        tables.append(stopping_rules(methods, rules))
    if votes:
        tables.append(majority_vote(methods, votes))
    if len(methods) > 1:
        tables.append(ablations(methods))
    for number, method in enumerate(methods, start=1):
        tables += _of_method(method, number)
    return tables


def _of_method(method: Method, number: int) -> Iterator[Table]:
    run = method.runs[0]
    if run.complete:
        yield fixed_budgets(method, number)
    if run.has_thresholds:
        sets = columns_of(run.tables)
        yield thresholds(method, f"threshold_accuracy_{number}", ("accuracy",), sets)
        sets = averages(run.tables)
        yield thresholds(method, f"threshold_operating_{number}", _OPERATING, sets)
    if len(method.runs) > 1:
        yield seeds(method, number)
        yield seeds_per_dataset(method, number)


def headline(methods: Sequence[Method]) -> str:
    """One sentence: accuracy and tokens of the first method, and those to compare them with.

    These are all turns of the same policy if they were recorded, else the most accurate of the
    other methods.
    """
    method, run = methods[0], methods[0].runs[0]
    label, names = next(iter(averages(run.tables).items()))
    sentence = f"{method.name}: {_cost(method, names)}"
    others = {mean_of(m.seeds, names, "accuracy"): m for m in reversed(methods[1:])}
    known = [accuracy for accuracy in others if accuracy is not None]
    if run.complete and run.stops:
        fixed = average(run.budgets[-1], names)
        sentence += (
            f" instead of {fixed['accuracy']:.3f} at {fixed['avg_total_tokens']:,.0f} with "
            f"{len(run.budgets)} fixed turns"
        )
    elif known:
        best = others[max(known)]
        sentence += f"; {best.name}: {_cost(best, names)}"
    problems = sum(len(run.tables[name].ids) for name in names)
    return f"{sentence} ({label}, {problems:,} problems)."


def _cost(method: Method, names: Sequence[str]) -> str:
    accuracy, tokens = (fmean(values_of(method.seeds, names, metric)) for metric in _COST)
    return f"{accuracy:.3f} accuracy at {tokens:,.0f} tokens per problem"


def _row(labels: Sequence[str], seeds: Sequence[Datasets], columns: Columns) -> list[str]:
    return [*labels, *(text_of(seeds, names, metric) for names, metric in columns)]


def _heads(metrics: Sequence[str]) -> list[str]:
    return [DEFINITIONS[metric].head for metric in metrics]


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else form.format(value)


def _interval(edges: Sequence[float] | None, form: str) -> str:
    return NONE if edges is None else " to ".join(map(form.format, edges))


def _notes(methods: Sequence[Method], columns: Mapping[str, Sequence[str]]) -> str:
    """Which columns are averages, and the meaning of plus-minus if it occurs."""
    names = [name for name, sets in columns.items() if len(sets) > 1]
    verb = "is the unweighted average" if len(names) == 1 else "are unweighted averages"
    text = f" {' and '.join(names)} {verb} over data sets." if names else ""
    several = any(len(method.runs) > 1 for method in methods)
    return text + " Of several seeds, mean \u00b1 sample standard deviation." * several


# --- methods side by side ---------------------------------------------------------------------


def main_results(methods: Sequence[Method]) -> Table:
    """Table 1: accuracy of every method on every data set; best bold, second-best underlined."""
    sets = columns_of(data_sets(methods))
    columns = [(names, "accuracy") for names in sets.values()]
    best = " Best values are bold, second-best ones underlined." if len(methods) > 1 else ""
    return Table(
        name="main_results",
        main=True,
        caption=f"Final-answer accuracy.{_notes(methods, sets)}{best}",
        head=("Method", *sets),
        rows=[_row([method.name], method.seeds, columns) for method in methods],
        marks=ranked([[mean_of(m.seeds, *column) for m in methods] for column in columns]),
    )


def results(methods: Sequence[Method]) -> Table:
    """Appendix: all metrics of every method on each data set, with intervals of accuracy."""
    rows: Rows = []
    shown = [name for name, one in DEFINITIONS.items() if one.in_tables and name != "accuracy"]
    for method in methods:
        rows += [None] if rows else []
        found = method.runs[0].datasets
        for name, sets in columns_of(data_sets([method])).items():
            interval = None if len(method.runs) > 1 else average(found, sets)["accuracy_ci95"]
            texts = [
                f"{sum(found[one]['n'] for one in sets if one in found):,}",
                text_of(method.seeds, sets, "accuracy"),
                _interval(interval, "{:.3f}"),
            ]
            labels = ["" if rows and rows[-1] else method.name, name, *texts]
            rows.append(_row(labels, method.seeds, [(sets, metric) for metric in shown]))
    rules = "; ".join(f"{method.name}: {method.runs[0].rule_text}" for method in methods)
    return Table(
        name="results",
        main=True,
        caption=f"Results. Intervals are 95 % over problems. {rules}."
        + _notes(methods, averages(data_sets(methods))),
        head=("Method", "Data set", "n", "Final", "95 % interval", *_heads(shown)),
        rows=rows,
    )


def winners(methods: Sequence[Method], rules: Mapping[int, Numbers]) -> list[str]:
    """One sentence for each method of ``rules``: its best stopping rule at the budget."""
    sentences = []
    for number, found in rules.items():
        method = methods[number]
        best = next((row for row in found["rows"] if row["name"] == found["winner"]), None)
        said = "no stopping rule is cheap enough"
        if best is not None:
            rule = f"the best stopping rule that reads no labels is {best['name']!r}"
            together = " over all problems together" if len(method.runs[0].tables) > 1 else ""
            said = f"{rule}, with {best['accuracy']:.3f} accuracy{together}"
        budget = f"{found['budget']:,.0f} tokens per problem"
        sentences.append(f"{method.name}, seed {method.runs[0].seed}: within {budget} {said}.")
    return sentences


def stopping_rules(methods: Sequence[Method], rules: Mapping[int, Numbers]) -> Table:
    """Families of stopping rules at equal tokens; the best that reads no labels is bold."""
    rows: Rows = []
    marks: dict[tuple[int, int], Mark] = {}
    for number, found in rules.items():
        rows += [None] if rows else []
        for row in found["rows"]:
            gap = (row["gap"], row["gap_ci95"])
            if row["name"] == found["winner"]:
                marks[len(rows), 2], gap = "best", (None, None)
            rows.append(
                [
                    "" if rows and rows[-1] else methods[number].name,
                    row["name"],
                    _number(row["accuracy"], "{:.3f}"),
                    _interval(row["ci95"], "{:.3f}"),
                    _number(row["tokens"], "{:,.0f}"),
                    _number(gap[0], "{:+.3f}"),
                    _interval(gap[1], "{:+.3f}"),
                ]
            )
    budget = next(iter(rules.values()))["budget"]
    return Table(
        name="stopping_rules",
        main=True,
        caption=f"Stopping rules at equal tokens: at most {budget:,.0f} per problem on average. "
        "The best setting of a rule on one half of the problems is measured on the other half. "
        "Intervals are 95 % over problems; the gap is to the best rule that reads no labels. "
        + " ".join(winners(methods, rules)),
        head=("Method", "Rule", "Acc.", "95 % interval", "Tokens", "Gap", "95 % interval"),
        rows=rows,
        marks=marks,
    )


def majority_vote(methods: Sequence[Method], votes: Votes) -> Table:
    """Table 2: accuracy and tokens of majority voting, then of the methods."""
    first_seeds = (name for method in methods for name in method.runs[0].tables)
    sets = averages([*(name for row in votes.values() for name in row), *first_seeds])
    columns = [(names, metric) for names in sets.values() for metric in _COST]
    return Table(
        name="majority_vote",
        caption="Comparison with majority voting over k independent samples. Tokens per problem "
        "count the prompt once per sample or turn.",
        head=("Method", *(f"{name} {head}" for name in sets for head in _heads(_COST))),
        rows=[
            *(_row([f"Maj@{k}"], [row], columns) for k, row in votes.items()),
            None,
            *(_row([method.name], method.seeds, columns) for method in methods),
        ],
    )


def ablations(methods: Sequence[Method]) -> Table:
    """Tables 3 and 4: accuracy on the averages, and diagnostics of the first average."""
    sets = averages(data_sets(methods))
    first = next(iter(sets))
    columns = [(names, "accuracy") for names in sets.values()]
    columns += [(sets[first], metric) for metric in _ABLATION]
    return Table(
        name="ablations",
        caption=f"Variants under adaptive inference. Accuracy is on {' and '.join(sets)}; the "
        f"other columns are on {first}.{_notes(methods, sets)}",
        head=("Variant", *sets, *_heads(_ABLATION)),
        rows=[_row([method.name], method.seeds, columns) for method in methods],
    )


# --- one method -------------------------------------------------------------------------------


def _first_seed(method: Method) -> str:
    """Which seed a sweep is of, where there are several."""
    return f" Seed {method.runs[0].seed} alone." if len(method.runs) > 1 else ""


def fixed_budgets(method: Method, number: int) -> Table:
    """Appendix: accuracy of every fixed budget; the best of each column is bold."""
    run = method.runs[0]
    sets = columns_of(run.tables)
    columns = [(names, "accuracy") for names in sets.values()]
    rows: Rows = [
        _row([f"K = {budget}"], [row], columns) for budget, row in enumerate(run.budgets, start=1)
    ]
    marks = ranked([[mean_of([row], *column) for row in run.budgets] for column in columns])
    note = ""
    if run.self_checks:
        rows += [None, _row(["Adaptive"], [run.datasets], columns)]
        note = f" The adaptive row, with {run.rule_text}, takes no part in that."
    return Table(
        name=f"fixed_budget_sweep_{number}",
        caption=f"Final-answer accuracy of {method.name} under fixed-budget inference: every "
        "problem runs exactly K turns, and the answer of turn K is returned. The best budget of a "
        f"column is bold.{note}{_first_seed(method)}",
        head=("Budget", *sets),
        rows=rows,
        marks={place: mark for place, mark in marks.items() if mark == "best"},
    )


def thresholds(
    method: Method, name: str, metrics: Sequence[str], sets: Mapping[str, Sequence[str]]
) -> Table:
    """Appendix: some metrics over thresholds."""
    run = method.runs[0]
    columns = [(names, metric) for metric in metrics for names in sets.values()]
    groups = [("", 1), *((head, len(sets)) for head in _heads(metrics))]
    what = "Operating characteristics" if len(metrics) > 1 else "Final-answer accuracy"
    return Table(
        name=name,
        caption=f"{what} of adaptive {method.name} at other thresholds, with at most "
        f"{run.max_turns} turns.{_first_seed(method)}",
        groups=groups if len(metrics) > 1 else (),
        head=("\u03b3", *(column for _ in metrics for column in sets)),
        rows=[
            _row([f"{threshold:.2f}"], [row], columns)
            for threshold, row in zip(THRESHOLDS, run.at_thresholds, strict=True)
        ],
    )


def seeds(method: Method, number: int) -> Table:
    """Appendix: the averages of each seed, their mean and sample standard deviation."""
    sets = averages(data_sets([method]))
    columns = [(names, metric) for names in sets.values() for metric in _OPERATING]
    rows = _seed_rows(method, columns)
    return Table(
        name=f"seed_robustness_{number}",
        caption=f"Robustness of {method.name} across {len(method.runs)} training seeds: mean and "
        "sample standard deviation in the last row.",
        groups=[("", 1), *((name, len(_OPERATING)) for name in sets)],
        head=("Seed", *(head for _ in sets for head in _heads(_OPERATING))),
        rows=[*rows[:-1], None, rows[-1]],
    )


def seeds_per_dataset(method: Method, number: int) -> Table:
    """Appendix: the same on each data set, metric by metric."""
    names = data_sets([method])
    rows: Rows = []
    for metric in _OPERATING:
        rows += [None] if rows else []
        for row in _seed_rows(method, [([name], metric) for name in names]):
            rows.append(["" if rows and rows[-1] else DEFINITIONS[metric].head, *row])
    return Table(
        name=f"seed_robustness_per_dataset_{number}",
        caption=f"Per-dataset robustness of {method.name} across {len(method.runs)} seeds.",
        head=("Metric", "Seed", *map(display, names)),
        rows=rows,
    )


def _seed_rows(method: Method, columns: Columns) -> list[list[str]]:
    """A row for each seed and one for their mean."""
    return [
        *(_row([run.seed], [run.datasets], columns) for run in method.runs),
        _row(["Mean \u00b1 Std."], method.seeds, columns),
    ]
