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

FILE = Path(__file__).parents[1] / "goldens" / "paper_tables.json"
AVERAGES = {"all": tuple(DISPLAY), "math": MATH_5}


def half_a_digit(printed: str) -> Fraction:
    return Fraction(1, 2 * 10 ** len(printed.partition(".")[2]))


def test_all_but_five_averages_are_those_of_the_printed_rows_and_five_of_rows_before_rounding():
    differing = []
    for row in json.loads(FILE.read_text()):
        for part, names in AVERAGES.items():
            exact = {name: {"accuracy": Fraction(row[name])} for name in names}
            value = macro_average(exact, names)["accuracy"]
            off = abs(Fraction(value) - Fraction(row[part]))
            if off > half_a_digit(row[part]) + Fraction(1, 10**12):
                differing.append((row["metric"], row["row"], part))
                slack = max(half_a_digit(row[name]) for name in names)
                assert off <= half_a_digit(row[part]) + slack, differing[-1]
    assert sorted(differing) == [
        ("accuracy", "Murphy", "math"),
        ("accuracy", "ScRPO", "all"),
        ("accuracy", "iGRPO", "math"),
        ("esr", "w/o Rready", "all"),
        ("overconfidence", "w/o Rverify", "all"),
    ]
