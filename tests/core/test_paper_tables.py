"""The paper's own averages, from its own rows, through the code that averages here.

``goldens/paper_tables.json`` holds a line for every row of the paper that has a value for each of
the seven data sets together with its averages, as printed. Those of ``seed_robustness`` come from
two tables: data sets from ``tab:seed_robustness_per_dataset``, averages from
``tab:seed_robustness_aggregate``; all others from the table that they name.
"""

import json
from fractions import Fraction
from pathlib import Path

from svr_lightning.analysis.metrics import DISPLAY, MATH_5, macro_average

TESTS = Path(__file__).parents[1]
ROWS = json.loads((TESTS / "goldens" / "paper_tables.json").read_text())
AVERAGES = {"all": tuple(DISPLAY), "math": MATH_5}

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


def format_like(example: str, value: float) -> str:
    return f"{value:.{len(example.partition('.')[2])}f}"
