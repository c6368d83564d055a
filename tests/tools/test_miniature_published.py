"""What is published of the miniature: readable with today's configurations, and what pages say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.miniature.outcomes import FILE, read_outcomes
from experiments.miniature.plan import BEDS, Task
from experiments.miniature.results import answers

ROOT = Path(__file__).resolve().parents[2]
README = {
    "warm start": "warm_start",
    "GRPO, one turn or votes": "grpo",
    "GRPO-MT, refining": "grpo_mt",
    "Murphy, refining": "murphy",
    "SVR, refining": "svr",
    "SVR+ (our variant), refining": "svr_plus",
    "RLCR, fresh": "rlcr_fresh",
    "SVR, fresh": "svr_fresh",
    "SVR+, fresh": "svr_plus_fresh",
}
PAGE = {
    "warm start": "warm_start",
    "GRPO, one turn or votes": "grpo",
    "GRPO-MT": "grpo_mt",
    "Murphy (chain)": "murphy",
    "RLCR, three turns": "rlcr_turns",
    "SVR": "svr",
    "SVR without verification rewards": "without_verify",
    "SVR+": "svr_plus",
    "SVR+ with 8 sequences": "svr_plus_matched",
    "GRPO, fresh turns": "grpo_fresh",
    "RLCR, fresh turns": "rlcr_fresh",
    "SVR, fresh turns": "svr_fresh",
    "SVR+, fresh turns": "svr_plus_fresh",
}
"""Rows of tables by the names of :mod:`experiments.miniature.plan`."""


def published(task: Task) -> Any:
    return json.loads((ROOT / BEDS[task].published / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("task", [*BEDS])
def test_the_outcomes_belong_to_todays_configurations_and_to_the_results(task: Task) -> None:
    found = {row["name"]: row for row in published(task)["rows"]}
    rows = read_outcomes(ROOT / BEDS[task].published / FILE, task)
    assert {one.row.name for one in rows} <= {*found}
    for one in rows:
        accuracy = answers(one).right.mean(1)
        assert found[one.row.name]["greedy"]["accuracy"]["seeds"] == pytest.approx([*accuracy])


@pytest.mark.parametrize(("page", "names"), [("README.md", README), ("docs/miniature.md", PAGE)])
def test_tables_of_budgets_are_what_is_published(page: str, names: dict[str, str]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| \| Countdown, 70.*\n(?:\|.*\n)+", text, re.MULTILINE)
    head, _, *lines = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")
    )
    budgets = [int(re.findall(r"\d+", cell)[0]) for cell in head[1:]]
    tasks: list[Task] = ["countdown"] * (len(budgets) // 2) + ["arithmetic"] * (len(budgets) // 2)
    curves = {
        (task, curve["name"], point["budget"]): point["accuracy"]
        for task in BEDS
        for curve in published(task)["budgets"]["curves"]
        for point in curve["points"]
    }
    cells = {line[0]: line[1:] for line in lines if line}
    for title, name in names.items():
        for cell, task, budget in zip(cells[title], tasks, budgets, strict=True):
            assert float(cell.strip("*")) == pytest.approx(curves[task, name, budget], abs=5.1e-4)
