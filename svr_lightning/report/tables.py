"""The tables of the paper's section 4 and its appendices, from measured runs.

Values are means over a method's seeds; with several seeds the sample standard deviation follows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from svr_lightning.evaluation.results import setting
from svr_lightning.evaluation.sweep import THRESHOLDS
from svr_lightning.report.names import averages, display, ordered
from svr_lightning.report.numbers import (
    FORMS,
    NONE,
    average,
    average_note,
    data_sets,
    first_seed_note,
    mean_of,
    printed,
    rule_note,
    seed_name,
    seed_note,
    text_of,
    value_of,
    vote_counts,
    vote_point,
)
from svr_lightning.report.runs import Method
from svr_lightning.report.text import Cell, Row, Table, cells, ranked

_CHECKS = ("verdict_accuracy", "auroc", "brier", "overconfidence")
_SEED_METRICS = ("accuracy", "turns", "avg_total_tokens", "esr", "pse")
Rows = list[Row | None]


def all_tables(methods: Sequence[Method], votes: Mapping[str, Any] | None) -> list[Table]:
    """Every table that the runs allow, the paper's main ones first."""
    tables = [main_results(methods), results(methods)]
    if votes:
        tables.append(majority_vote(methods, votes))
    if len(methods) > 1:
        tables += [variants(methods, name) for name in _VARIANTS]
    for number, method in enumerate(methods, start=1):
        tables.append(per_dataset(method, number))
        if method.runs[0].complete:
            tables.append(fixed_budgets(method, number))
        if method.runs[0].complete and method.runs[0].self_checks:
            tables += [thresholds(method, number, name) for name in _THRESHOLD_TABLES]
    if len(methods) > 1:
        tables.append(diagnostics(methods))
    tables += settings_tables(methods)
    for number, method in enumerate(methods, start=1):
        if len(method.runs) > 1:
            tables += [seeds(method, number), seeds_per_dataset(method, number)]
    return tables


def columns_of(names: Sequence[str]) -> dict[str, list[str]]:
    """The columns of a table: each data set, then the averages."""
    return {display(name): [name] for name in ordered(names)} | averages(names)


def summary(methods: Sequence[Method]) -> list[list[str]]:
    """Method, average, accuracy, turns, tokens, premature stops: a row per method and average."""
    metrics = ("accuracy", "turns", "avg_total_tokens", "pse")
    return [
        [method.name, name, *(text_of(method, sets, metric) for metric in metrics)]
        for method in methods
        for name, sets in averages(data_sets(methods)).items()
    ]


def _heads(metrics: Sequence[str]) -> list[str]:
    return [FORMS[metric][0] for metric in metrics]


# --- methods side by side ---------------------------------------------------------------------


def main_results(methods: Sequence[Method]) -> Table:
    """Table 1: accuracy of every method on every data set; best bold, second-best underlined."""
    columns = columns_of(data_sets(methods))
    values = [[mean_of(m, names, "accuracy") for m in methods] for names in columns.values()]
    marks = list(zip(*ranked(values), strict=True))
    rows = [
        (
            Cell(method.name),
            *(
                Cell(text_of(method, names, "accuracy"), mark)
                for names, mark in zip(columns.values(), marks[number], strict=True)
            ),
        )
        for number, method in enumerate(methods)
    ]
    best = " Best values are bold, second-best ones underlined." if len(methods) > 1 else ""
    return Table(
        name="main_results",
        caption=f"Final-answer accuracy.{average_note(columns)}{seed_note(methods)}{best}",
        head=("Method", *columns),
        rows=tuple(rows),
    )


def results(methods: Sequence[Method]) -> Table:
    """All metrics of the results files, with intervals; one row per method and data set."""
    metrics = ("turns", "avg_total_tokens", "esr", "pse", *_CHECKS)
    rows: Rows = []
    for method in methods:
        rows += [None] if rows else []
        found = method.runs[0].datasets
        for name, names in columns_of(data_sets([method])).items():
            interval = average(found, names)["accuracy_ci95"]
            known = len(method.runs) == 1 and interval is not None
            texts = [
                f"{sum(found[one]['n'] for one in names if one in found):,}",
                text_of(method, names, "accuracy"),
                f"{interval[0]:.3f} to {interval[1]:.3f}" if known else NONE,
                *(
                    text_of(method, names, metric)
                    for metric in ("first_turn_accuracy", "any_turn_accuracy", *metrics)
                ),
            ]
            rows.append(cells(["" if rows and rows[-1] else method.name, name, *texts]))
    head = ("Method", "Data set", "n", "Accuracy", "95 % interval", "First turn", "Any turn")
    return Table(
        name="results",
        caption="Results. Intervals are 95 % over problems." + seed_note(methods),
        head=(*head, *_heads(metrics)),
        rows=tuple(rows),
    )


def majority_vote(methods: Sequence[Method], votes: Mapping[str, Any]) -> Table:
    """Table 2: accuracy and tokens of majority voting, then of the methods."""
    first_seeds = (name for method in methods for name in method.runs[0].tables)
    columns = averages(ordered([*votes["datasets"], *first_seeds]))
    metrics = ("accuracy", "avg_total_tokens")
    rows: Rows = []
    for k in vote_counts(votes):
        points = [vote_point(votes, sets, k) or (None, None) for sets in columns.values()]
        texts = [
            printed(metric, value)
            for point in points
            for metric, value in zip(metrics, point, strict=True)
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
        head=("Method", *(f"{name} {head}" for name in columns for head in _heads(metrics))),
        rows=tuple(rows),
    )


_VARIANTS = {
    "reward_ablation": ("Reward-component", ("turns", "pse", "brier", "overconfidence")),
    "controller_ablation": ("Structural and controller-interface", ("turns", "esr", "pse")),
}


def variants(methods: Sequence[Method], name: str) -> Table:
    """Tables 3 and 4: accuracy on the averages, and diagnostics of the first average."""
    what, metrics = _VARIANTS[name]
    columns = averages(data_sets(methods))
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
    others = f"; the other columns are on {first_name}" if len(columns) > 1 else ""
    return Table(
        name=name,
        caption=f"{what} comparison under adaptive inference. Accuracy is on "
        f"{' and '.join(columns)}{others}.",
        head=("Variant", *columns, *_heads(metrics)),
        rows=tuple(rows),
    )


def diagnostics(methods: Sequence[Method]) -> Table:
    """Appendix: accuracy, stopping and confidence of every method on each data set."""
    columns = columns_of(data_sets(methods))
    rows: Rows = []
    for metric in ("accuracy", "turns", "esr", "pse", "brier", "overconfidence"):
        rows += [None] if rows else []
        for number, method in enumerate(methods):
            values = [text_of(method, names, metric) for names in columns.values()]
            rows.append(cells(["" if number else FORMS[metric][0], method.name, *values]))
    return Table(
        name="diagnostics",
        caption="Complete stopping and confidence diagnostics."
        + average_note(columns)
        + seed_note(methods),
        head=("Metric", "Variant", *columns),
        rows=tuple(rows),
    )


# --- one method -------------------------------------------------------------------------------


def per_dataset(method: Method, number: int) -> Table:
    """Appendix: all metrics of one method on each data set."""
    metrics = ("accuracy", "any_turn_accuracy", "turns", "avg_total_tokens", "esr", "pse", *_CHECKS)
    columns = columns_of(data_sets([method]))
    rows: Rows = []
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
        head=("Dataset", "Final", *_heads(metrics[1:])),
        rows=tuple(rows),
    )


def fixed_budgets(method: Method, number: int) -> Table:
    """Appendix: accuracy of every fixed budget; the best of each column is bold."""
    run = method.runs[0]
    columns = columns_of(list(run.tables))
    accuracy = [[average(r, names)["accuracy"] for r in run.budgets] for names in columns.values()]
    marks = ranked(accuracy)
    rows: Rows = []
    for budget, values in enumerate(zip(*accuracy, strict=True)):
        best = ["best" if mark[budget] == "best" else "" for mark in marks]
        row = [
            Cell(printed("accuracy", value), "best" if mark else "")
            for value, mark in zip(values, best, strict=True)
        ]
        rows.append((Cell(f"K = {budget + 1}"), *row))
    note = ""
    if run.self_checks:
        adaptive = [average(run.datasets, names)["accuracy"] for names in columns.values()]
        rows += [None, cells(["Adaptive", *(printed("accuracy", one) for one in adaptive)])]
        note = f" The adaptive row, with {rule_note(run)}, takes no part in that."
    return Table(
        name=f"fixed_budget_sweep_{number}",
        caption=f"Final-answer accuracy of {method.name} under fixed-budget inference: every "
        "problem runs exactly K turns, and the answer of turn K is returned. The best budget of a "
        f"column is bold.{note}" + first_seed_note(method),
        head=("Budget", *columns),
        rows=tuple(rows),
    )


_THRESHOLD_TABLES = {
    "threshold_accuracy": ("Final-answer accuracy", ("accuracy",)),
    "threshold_operating": ("Operating characteristics", _SEED_METRICS),
}


def thresholds(method: Method, number: int, name: str) -> Table:
    """Appendix: accuracy on each data set over thresholds, or what the averages cost."""
    run, (what, metrics) = method.runs[0], _THRESHOLD_TABLES[name]
    several = len(metrics) > 1
    columns = averages(list(run.tables)) if several else columns_of(list(run.tables))
    rows = []
    for threshold, row in zip(THRESHOLDS, run.at_thresholds, strict=True):
        values = [average(row, names) for names in columns.values()]
        texts = [printed(metric, value[metric]) for metric in metrics for value in values]
        rows.append(cells([f"{threshold:.2f}", *texts]))
    return Table(
        name=f"{name}_{number}",
        caption=f"{what} of adaptive {method.name} at other thresholds, with at most "
        f"{run.max_turns} turns." + first_seed_note(method),
        groups=(("", 1), *((h, len(columns)) for h in _heads(metrics))) if several else (),
        head=("\u03b3", *(column for _ in metrics for column in columns)),
        rows=tuple(rows),
    )


def seeds(method: Method, number: int) -> Table:
    """Appendix: the averages of each seed, their mean and sample standard deviation."""
    columns = averages(data_sets([method]))
    wanted = [(names, metric) for names in columns.values() for metric in _SEED_METRICS]
    return Table(
        name=f"seed_robustness_{number}",
        caption=f"Robustness of {method.name} across {len(method.runs)} training seeds: mean and "
        "sample standard deviation in the last row.",
        groups=(("", 1), *((name, len(_SEED_METRICS)) for name in columns)),
        head=("Seed", *(head for _ in columns for head in _heads(_SEED_METRICS))),
        rows=tuple(_seed_rows(method, wanted, ruled=True)),
    )


def seeds_per_dataset(method: Method, number: int) -> Table:
    """Appendix: the same on each data set, metric by metric."""
    names = data_sets([method])
    rows: Rows = []
    for metric in _SEED_METRICS:
        rows += [None] if rows else []
        for index, row in enumerate(_seed_rows(method, [([name], metric) for name in names])):
            head = Cell("" if index else FORMS[metric][0])
            rows.append((head, *row) if row else None)
    return Table(
        name=f"seed_robustness_per_dataset_{number}",
        caption=f"Per-dataset robustness of {method.name} across {len(method.runs)} seeds.",
        head=("Metric", "Seed", *(display(name) for name in names)),
        rows=tuple(rows),
    )


def _seed_rows(
    method: Method, wanted: Sequence[tuple[Sequence[str], str]], *, ruled: bool = False
) -> Rows:
    """A row for each seed and one for their mean; ``wanted`` are data sets and a metric each."""
    rows: Rows = [
        cells([seed_name(run, i), *(printed(m, value_of(run, names, m)) for names, m in wanted)])
        for i, run in enumerate(method.runs, start=1)
    ]
    means = ["Mean \u00b1 Std.", *(text_of(method, names, metric) for names, metric in wanted)]
    bold = tuple(Cell(text, "" if text == NONE else "best") for text in means)
    return [*rows, *([None] if ruled else []), bold]


# --- what the policies were trained with ------------------------------------------------------

_COEFFICIENTS = (
    ("abs", "\u03bb abs", "Absolute correctness reward"),
    ("delta", "\u03bb \u0394", "Turn-to-turn improvement weight"),
    ("alpha", "\u03b1", "Completion-length shaping strength"),
    ("keep", "\u03bb keep", "Correct-answer preservation bonus"),
    ("reg", "\u03bb reg", "Correct-to-incorrect regression penalty"),
    ("fail", "\u03bb fail", "Repeated-failure penalty"),
    ("trunc", "\u03bb trunc", "Generation-truncation penalty"),
    ("cal", "\u03bb cal", "Brier-style calibration reward"),
    ("over", "\u03bb over", "Asymmetric overconfidence penalty"),
    ("detect", "\u03bb detect", "Explicit error-detection reward"),
    ("ready", "\u03bb ready", "Stop-readiness reward"),
    ("fmt", "\u03bb fmt", "Task-answer and self-check format weight"),
)
_RECIPE = ("model", "recipe", "init_args")
_GENERATION = (
    ("Maximum completion tokens", ("model", "sampling", "max_completion_tokens")),
    ("Length-normalization scale", (*_RECIPE, "length_scale")),
    ("Sampling temperature", ("model", "sampling", "temperature")),
    ("Trajectories per problem", (*_RECIPE, "group_size")),
    ("Training horizon", (*_RECIPE, "horizon")),
)


def settings_tables(methods: Sequence[Method]) -> list[Table]:
    """Tables 5 and 6, of the configurations that results files quote; none without any."""
    configs = [(m.name, s.config) for m in methods for s in m.runs[0].sources if s.config]
    if not any(setting(config, "model", "recipe") for _, config in configs):
        return []
    names = tuple(name for name, _ in configs)

    def values(keys: Sequence[str]) -> list[str]:
        found = (setting(config, *keys) for _, config in configs)
        return [NONE if value is None else str(value)[:20] for value in found]

    return [
        Table(
            name="generation_settings",
            caption="Generation and length-control settings used during training.",
            head=("Hyperparameter", *names),
            rows=tuple(cells([name, *values(keys)]) for name, keys in _GENERATION),
        ),
        Table(
            name="reward_coefficients",
            caption="Reward coefficients used for training.",
            head=("Symbol", "Role", *names),
            rows=tuple(
                cells([symbol, role, *values((*_RECIPE, "weights", key))])
                for key, symbol, role in _COEFFICIENTS
            ),
        ),
    ]
