"""The paper's own averages, from its own rows, through the code that averages here.

``goldens/paper_tables.json`` holds a line for every row of the paper that has a value for each of
the seven data sets together with its averages, as printed. Those of ``seed_robustness`` come from
two tables: data sets from ``tab:seed_robustness_per_dataset``, averages from
``tab:seed_robustness_aggregate``; all others from the table that they name.
"""

import json
from fractions import Fraction
from pathlib import Path

from svr_lightning.analysis.averages import MATH_5, macro_average

TESTS = Path(__file__).parents[1]
ROWS = json.loads((TESTS / "goldens" / "paper_tables.json").read_text())
PROBLEMS = {
    "countdown": 1000,
    "gsm8k": 1319,
    "math500": 500,
    "aime26": 30,
    "amc23": 40,
    "olympiadbench": 674,
    "minerva_math": 272,
}
AVERAGES = {"all": tuple(PROBLEMS), "math": MATH_5}
PERCENT = ("esr", "pse")
SHARES = ("accuracy", "any_turn_accuracy", *PERCENT)

Key = tuple[str, str, str, str]
"""Table, metric, row, average."""

EXPLAINED_BY_ROUNDED_INPUTS: dict[Key, str] = {
    ("main_results", "accuracy", "iGRPO", "math"): "0.3226",
    ("main_results", "accuracy", "Murphy", "math"): "0.3864",
    ("main_results", "accuracy", "ScRPO", "all"): "0.4346",
    ("app_reward_diag", "esr", "w/o Rready", "all"): "76.66",
    ("app_reward_diag", "overconfidence", "w/o Rverify", "all"): "21.34",
}
"""The average of the printed rows, where it does not round to the printed average."""

ONLY_FROM_ROUNDED_INPUTS: dict[Key, str] = {
    ("fixed_budget_sweep", "accuracy", "K=10", "all"): "0.4506",
    ("confidence_threshold_accuracy", "accuracy", "0.75", "math"): "0.4165",
    ("adaptive_per_dataset", "any_turn_accuracy", "SVR", "math"): "0.4655",
    ("seed_robustness", "esr", "seed 42", "all"): "86.254",
    ("seed_robustness", "esr", "seed 44", "all"): "85.152",
    ("seed_robustness", "esr", "seed 44", "math"): "81.472",
    ("seed_robustness", "pse", "seed 42", "math"): "36.987",
    ("seed_robustness", "pse", "seed 43", "math"): "40.966",
    ("seed_robustness", "pse", "seed 44", "math"): "39.932",
}
"""The average of the shares k/N behind the printed rows, where it does not round to the printed
average."""


def half_a_digit(printed: str) -> Fraction:
    return Fraction(1, 2 * 10 ** len(printed.partition(".")[2]))


def average(values: dict[str, Fraction], names: tuple[str, ...]) -> float:
    """Through the code that averages results; exact fractions keep their last digit."""
    datasets = {name: {"value": value} for name, value in values.items()}
    return float(macro_average(datasets, names, ("value",))["value"])


def off_by(row: dict[str, str], part: str, low: float, high: float) -> float:
    """How far a printed average lies from [low, high], beyond its own rounding."""
    printed = Fraction(row[part])
    beyond = max(low - printed, printed - high) - half_a_digit(row[part])
    return max(0.0, float(beyond))


def key(row: dict[str, str], part: str) -> Key:
    return (row["table"], row["metric"], row["row"], part)


def counts_behind(row: dict[str, str], name: str) -> list[Fraction]:
    """Every k/N, in the unit of the row, that is printed as the row has it."""
    unit = 100 if row["metric"] in PERCENT else 1
    printed, n = Fraction(row[name]), PROBLEMS[name]
    middle = round(printed * n / unit)
    near = [Fraction(unit * k, n) for k in range(middle - 2, middle + 3)]
    return [share for share in near if abs(share - printed) <= half_a_digit(row[name])]


def test_averages_of_the_printed_rows_are_the_printed_averages_but_for_five() -> None:
    exceptions = {}
    for row in ROWS:
        for part, names in AVERAGES.items():
            value = average({name: Fraction(row[name]) for name in names}, names)
            if off_by(row, part, value - 1e-12, value + 1e-12):
                exceptions[key(row, part)] = value
                slack = float(max(half_a_digit(row[name]) for name in names))
                assert not off_by(row, part, value - slack, value + slack), key(row, part)
    shown = {
        k: format_like(EXPLAINED_BY_ROUNDED_INPUTS.get(k, "0.0"), v) for k, v in exceptions.items()
    }
    assert shown == EXPLAINED_BY_ROUNDED_INPUTS


def test_every_printed_share_is_a_count_of_its_data_set() -> None:
    shares = [row for row in ROWS if row["metric"] in SHARES]
    assert [
        (key(row, name), row[name])
        for row in shares
        for name in PROBLEMS
        if not counts_behind(row, name)
    ] == []


def test_averages_of_exact_counts_are_the_printed_averages_but_for_nine() -> None:
    exceptions = {}
    for row in ROWS:
        if row["metric"] not in SHARES:
            continue
        for part, names in AVERAGES.items():
            behind = {name: counts_behind(row, name) for name in names}
            low, high = (
                average({name: pick(shares) for name, shares in behind.items()}, names)
                for pick in (min, max)
            )
            if off_by(row, part, low - 1e-12, high + 1e-12):
                exceptions[key(row, part)] = (low + high) / 2
    shown = {
        k: format_like(ONLY_FROM_ROUNDED_INPUTS.get(k, "0.0"), v) for k, v in exceptions.items()
    }
    assert shown == ONLY_FROM_ROUNDED_INPUTS


def format_like(example: str, value: float) -> str:
    return f"{value:.{len(example.partition('.')[2])}f}"
