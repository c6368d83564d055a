"""The tables of the paper's sections 4 and "Additional Experimental Results", from measured runs.

Values are means over a method's seeds; with several seeds the sample standard deviation follows.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from svr_lightning.evaluation.sweep import THRESHOLDS
from svr_lightning.report.figure_data import average
from svr_lightning.report.figure_names import averages, display, ordered
from svr_lightning.report.runs import Method, Run
from svr_lightning.report.settings import settings_tables
from svr_lightning.report.table import NONE, Cell, Row, Table, cells, ranked
from svr_lightning.report.values import (
    FORMS,
    Form,
    average_note,
    first_seed_note,
    joined,
    mean_of,
    printed,
    rule_note,
    seed_name,
    seed_note,
    text_of,
    value_of,
)

Numbers = Mapping[str, Any]


def all_tables(methods: Sequence[Method], votes: Numbers | None) -> list[Table]:
    """Every table that the runs allow, the paper's main ones first."""
    tables = [main_results(methods), results(methods)]
    if votes:
        tables.append(majority_vote(methods, votes))
    if len(methods) > 1:
        tables.append(
            _variants(methods, "reward_ablation", ("turns", "pse", "brier", "overconfidence"))
        )
        tables.append(_variants(methods, "controller_ablation", ("turns", "esr", "pse")))
    for number, method in enumerate(methods, start=1):
        tables.append(per_dataset(method, number))
        if method.runs[0].complete:
            tables.append(fixed_budgets(method, number))
        if method.runs[0].complete and method.runs[0].self_checks:
            tables += [threshold_accuracy(method, number), threshold_operating(method, number)]
    if len(methods) > 1:
        tables.append(diagnostics(methods))
    tables += settings_tables(methods)
    for number, method in enumerate(methods, start=1):
        if len(method.runs) > 1:
            tables += [seeds(method, number), seeds_per_dataset(method, number)]
    return tables


def columns_of(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What tables have columns for: each data set, then the averages."""
    names = ordered(name for run in runs for name in run.tables)
    return {display(name): [name] for name in names} | averages(names)


def main_results(methods: Sequence[Method]) -> Table:
    """Table 1: accuracy of every method on every data set; best bold, second-best underlined."""
    columns = columns_of([run for method in methods for run in method.runs])
    values = [
        [mean_of(method, names, "accuracy") for method in methods] for names in columns.values()
    ]
    marks = ranked(values)
    rows = [
        (
            Cell(method.name),
            *(
                Cell(text_of(method, names, "accuracy"), mark[number])
                for names, mark in zip(columns.values(), marks, strict=True)
            ),
        )
        for number, method in enumerate(methods)
    ]
    return Table(
        name="main_results",
        caption="Final-answer accuracy."
        + average_note(columns)
        + seed_note(methods)
        + (" Best values are bold, second-best ones underlined." if len(methods) > 1 else ""),
        head=("Method", *columns),
        rows=tuple(rows),
    )


def results(methods: Sequence[Method]) -> Table:
    """Everything that results files hold, with intervals; one row per method and data set."""
    metrics = (
        *("turns", "avg_total_tokens", "esr", "pse"),
        *("verdict_accuracy", "auroc", "brier", "overconfidence"),
    )
    rows: list[Row | None] = []
    for method in methods:
        rows += [None] if rows else []
        for name, names in columns_of(method.runs).items():
            first = average(method.runs[0].datasets, names)
            interval = first["accuracy_ci95"]
            known = len(method.runs) == 1 and interval is not None
            found = [
                method.runs[0].datasets[one]["n"] for one in names if one in method.runs[0].datasets
            ]
            texts = [
                f"{sum(found):,}",
                text_of(method, names, "accuracy"),
                f"{interval[0]:.3f} to {interval[1]:.3f}" if known else NONE,
                text_of(method, names, "first_turn_accuracy"),
                text_of(method, names, "any_turn_accuracy"),
                *(text_of(method, names, metric) for metric in metrics),
            ]
            rows.append(cells(["" if rows and rows[-1] else method.name, name, *texts]))
    return Table(
        name="results",
        caption="Results. The interval is the 95 % Wilson interval over problems, or put together "
        "from those." + seed_note(methods),
        head=(
            *("Method", "Data set", "n", "Accuracy", "95 % interval", "First turn", "Any turn"),
            *(FORMS[metric][0] for metric in metrics),
        ),
        rows=tuple(rows),
    )


def summary(methods: Sequence[Method]) -> list[list[str]]:
    """Method, average, accuracy, turns, tokens, premature stops: a row per method and average."""
    columns = averages(ordered(n for method in methods for run in method.runs for n in run.tables))
    metrics = ("accuracy", "turns", "avg_total_tokens", "pse")
    return [
        [method.name, name, *(text_of(method, sets, metric) for metric in metrics)]
        for method in methods
        for name, sets in columns.items()
    ]


def majority_vote(methods: Sequence[Method], votes: Numbers) -> Table:
    """Table 2: accuracy and tokens of majority voting, then of the methods."""
    names = ordered([*votes["datasets"], *(n for m in methods for n in m.runs[0].tables)])
    columns = averages(names)
    metrics = ("accuracy", "avg_total_tokens")
    rows: list[Row | None] = []
    for k in vote_counts(votes):
        pairs = [vote_point(votes, sets, k) for sets in columns.values()]
        texts = [
            NONE if pair is None else form(pair[i]) for pair in pairs for i, form in _pair_forms()
        ]
        rows.append(cells([f"Maj@{k}", *texts]))
    rows.append(None)
    for method in methods:
        texts = [text_of(method, sets, metric) for sets in columns.values() for metric in metrics]
        rows.append(cells([method.name, *texts]))
    return Table(
        name="majority_vote",
        caption="Comparison with majority voting over k independent samples. Tokens per problem "
        "count the prompt once per sample or turn.",
        head=(
            "Method",
            *(f"{name} {head}" for name in columns for head in ("Acc.", "Tok. (\u00d710\u00b3)")),
        ),
        rows=tuple(rows),
    )


def vote_counts(votes: Numbers) -> list[int]:
    """The numbers of votes that a votes file has results for."""
    first = next(iter(votes["datasets"].values()))
    return sorted(int(key.removeprefix("maj@")) for key in first if key.startswith("maj@"))


def vote_point(votes: Numbers, names: Sequence[str], k: int) -> tuple[float, float] | None:
    """Accuracy and tokens of Maj@k averaged over ``names``; None where one is missing."""
    found = [votes["datasets"].get(name) for name in names]
    if any(values is None for values in found):
        return None
    return (
        statistics.fmean(values[f"maj@{k}"] for values in found),
        statistics.fmean(values[f"tokens@{k}"] for values in found),
    )


def _pair_forms() -> list[tuple[int, Form]]:
    return [(0, FORMS["accuracy"][1]), (1, FORMS["avg_total_tokens"][1])]


def _variants(methods: Sequence[Method], name: str, metrics: Sequence[str]) -> Table:
    """Tables 3 and 4: accuracy on the averages, and diagnostics of the first average."""
    columns = averages(ordered(n for m in methods for run in m.runs for n in run.tables))
    first_name, first = next(iter(columns.items()))
    rows = [
        cells(
            [
                method.name,
                *(text_of(method, names, "accuracy") for names in columns.values()),
                *(text_of(method, first, metric) for metric in metrics),
            ]
        )
        for method in methods
    ]
    what = "Reward-component" if "brier" in metrics else "Structural and controller-interface"
    others = f"; the other columns are on {first_name}" if len(columns) > 1 else ""
    return Table(
        name=name,
        caption=f"{what} comparison under adaptive inference. Accuracy is on {joined(columns)}"
        f"{others}.",
        head=("Variant", *columns, *(FORMS[metric][0] for metric in metrics)),
        rows=tuple(rows),
    )


def per_dataset(method: Method, number: int) -> Table:
    """Appendix: all metrics of one method on each data set."""
    metrics = (
        *("accuracy", "any_turn_accuracy", "turns", "avg_total_tokens", "esr", "pse"),
        *("verdict_accuracy", "auroc", "brier", "overconfidence"),
    )
    columns = columns_of(method.runs)
    rows: list[Row | None] = []
    for name, names in columns.items():
        if len(names) > 1 and None not in rows:
            rows.append(None)
        rows.append(cells([name, *(text_of(method, names, metric) for metric in metrics)]))
    return Table(
        name=f"adaptive_per_dataset_{number}",
        caption=f"Per-dataset results of {method.name} with {rule_note(method.runs[0])}."
        + average_note(columns)
        + seed_note([method]),
        groups=(
            ("", 1),
            ("Task Quality", 2),
            ("Inference Cost", 2),
            ("Stopping Behavior", 2),
            ("Self-Verification Quality", 4),
        ),
        head=("Dataset", "Final", *(FORMS[metric][0] for metric in metrics[1:])),
        rows=tuple(rows),
    )


def fixed_budgets(method: Method, number: int) -> Table:
    """Appendix: accuracy of every fixed budget; the best of each column is bold."""
    run = method.runs[0]
    columns = columns_of([run])
    values = [
        [average(row, names)["accuracy"] for row in run.budgets] for names in columns.values()
    ]
    marks = ranked(values)
    rows: list[Row | None] = [
        (
            Cell(f"K = {budget}"),
            *(
                Cell(f"{column[budget - 1]:.3f}", "best" if mark[budget - 1] == "best" else "")
                for column, mark in zip(values, marks, strict=True)
            ),
        )
        for budget in range(1, len(run.budgets) + 1)
    ]
    note = ""
    if run.self_checks:
        adaptive = [f"{average(run.datasets, names)['accuracy']:.3f}" for names in columns.values()]
        rows += [None, cells(["Adaptive", *adaptive])]
        note = f" The adaptive row, with {rule_note(run)}, takes no part in that."
    return Table(
        name=f"fixed_budget_sweep_{number}",
        caption=f"Final-answer accuracy of {method.name} under fixed-budget inference: every "
        "problem runs exactly K turns, and the answer of turn K is returned. The best budget of a "
        f"column is bold.{note}" + first_seed_note(method),
        head=("Budget", *columns),
        rows=tuple(rows),
    )


def threshold_accuracy(method: Method, number: int) -> Table:
    """Appendix: accuracy on each data set over thresholds."""
    run = method.runs[0]
    columns = columns_of([run])
    rows = [
        cells([f"{g:.2f}", *(f"{average(row, n)['accuracy']:.3f}" for n in columns.values())])
        for g, row in zip(THRESHOLDS, run.at_thresholds, strict=True)
    ]
    return Table(
        name=f"threshold_accuracy_{number}",
        caption=f"Final-answer accuracy of adaptive {method.name} at other thresholds, with "
        f"at most {run.max_turns} turns." + first_seed_note(method),
        head=("\u03b3", *columns),
        rows=tuple(rows),
    )


def threshold_operating(method: Method, number: int) -> Table:
    """Appendix: what the averages cost over thresholds."""
    run = method.runs[0]
    columns = averages(list(run.tables))
    metrics = ("accuracy", "turns", "avg_total_tokens", "esr", "pse")
    rows = []
    for threshold, row in zip(THRESHOLDS, run.at_thresholds, strict=True):
        values = [average(row, names) for names in columns.values()]
        texts = [printed(metric, value[metric]) for metric in metrics for value in values]
        rows.append(cells([f"{threshold:.2f}", *texts]))
    groups = [(FORMS[metric][0], len(columns)) for metric in metrics]
    return Table(
        name=f"threshold_operating_{number}",
        caption=f"Operating characteristics of adaptive {method.name} at other thresholds, with "
        f"at most {run.max_turns} turns." + first_seed_note(method),
        groups=(("", 1), *groups),
        head=("\u03b3", *(name for _ in metrics for name in columns)),
        rows=tuple(rows),
    )


def diagnostics(methods: Sequence[Method]) -> Table:
    """Appendix: accuracy, stopping and confidence of every method on each data set."""
    columns = columns_of([run for method in methods for run in method.runs])
    rows: list[Row | None] = []
    for metric in ("accuracy", "turns", "esr", "pse", "brier", "overconfidence"):
        rows += [None] if rows else []
        for number, method in enumerate(methods):
            head = FORMS[metric][0] if not number else ""
            values = [text_of(method, names, metric) for names in columns.values()]
            rows.append(cells([head, method.name, *values]))
    return Table(
        name="diagnostics",
        caption="Complete stopping and confidence diagnostics."
        + average_note(columns)
        + seed_note(methods),
        head=("Metric", "Variant", *columns),
        rows=tuple(rows),
    )


_SEED_METRICS = ("accuracy", "turns", "avg_total_tokens", "esr", "pse")


def seeds(method: Method, number: int) -> Table:
    """Appendix: the averages of each seed, their mean and sample standard deviation."""
    columns = averages(ordered(name for run in method.runs for name in run.tables))
    rows: list[Row | None] = []
    for index, run in enumerate(method.runs, start=1):
        values = [
            printed(metric, value_of(run, names, metric))
            for names in columns.values()
            for metric in _SEED_METRICS
        ]
        rows.append(cells([seed_name(run, index), *values]))
    means = [text_of(method, names, m) for names in columns.values() for m in _SEED_METRICS]
    return Table(
        name=f"seed_robustness_{number}",
        caption=f"Robustness of {method.name} across {len(method.runs)} training seeds: mean and "
        "sample standard deviation in the last row.",
        groups=(("", 1), *((name, len(_SEED_METRICS)) for name in columns)),
        head=("Seed", *(FORMS[metric][0] for _ in columns for metric in _SEED_METRICS)),
        rows=(*rows, None, _bold_row(["Mean \u00b1 Std.", *means])),
    )


def seeds_per_dataset(method: Method, number: int) -> Table:
    """Appendix: the same on each data set, metric by metric."""
    names = ordered(name for run in method.runs for name in run.tables)
    rows: list[Row | None] = []
    for metric in _SEED_METRICS:
        rows += [None] if rows else []
        for index, run in enumerate(method.runs, start=1):
            head = FORMS[metric][0] if index == 1 else ""
            values = [printed(metric, value_of(run, [name], metric)) for name in names]
            rows.append(cells([head, seed_name(run, index), *values]))
        means = [text_of(method, [name], metric) for name in names]
        rows.append(_bold_row(["", "Mean \u00b1 Std.", *means]))
    return Table(
        name=f"seed_robustness_per_dataset_{number}",
        caption=f"Per-dataset robustness of {method.name} across {len(method.runs)} seeds.",
        head=("Metric", "Seed", *(display(name) for name in names)),
        rows=tuple(rows),
    )


def _bold_row(texts: Sequence[str]) -> Row:
    return tuple(Cell(text, "best" if text not in ("", NONE) else "") for text in texts)
