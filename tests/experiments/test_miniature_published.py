"""What is published of the miniature follows from its outcomes, and pages say the same."""

import json
import re
from typing import Any

import pytest

from experiments.miniature.recordings import FILE, read_outcomes, write_outcomes
from experiments.miniature.results import row_entries
from experiments.miniature.rows import BOTH, RESULTS, Task
from experiments.miniature.tables import table_md
from svr_lightning.analysis.replay import replay
from tests.commands import ROOT, read_json

PAGE = {
    "GRPO": "GRPO, one turn or votes",
    "w/o R_verify": "SVR without verification rewards",
    "SVR+, 8 sequences": "SVR+ with 8 sequences",
}
"""Titles of rows that the page spells out."""


def published(task: Task) -> Any:
    return read_json(ROOT / RESULTS / task / "results.json")


@pytest.mark.parametrize("task", BOTH)
def test_the_tables_are_those_of_the_results_and_these_of_the_outcomes(task):
    results = published(task)
    table = (ROOT / RESULTS / task / "table.md").read_text(encoding="utf-8")
    assert table == table_md(results)
    found = {row["name"]: row for row in results["rows"]}
    rows = read_outcomes(ROOT / RESULTS / task / FILE)
    assert {one.row.name for one in rows} <= {*found}
    for one in rows:
        ends = [replay(t, one.row.rule, t.correct.shape[1]) for t in one.turns["greedy"]]
        accuracy = [end.problems["final_correct"].mean() for end in ends]
        assert found[one.row.name]["greedy"]["accuracy"]["seeds"] == pytest.approx(accuracy)


def test_all_figures_of_a_row_are_made_again_from_the_outcomes(tmp_path):
    few = [
        one
        for one in read_outcomes(ROOT / RESULTS / "arithmetic" / FILE)
        if one.row.name in ("grpo", "svr", "svr_plus")
    ]
    write_outcomes(tmp_path / FILE, few)
    entries = row_entries(read_outcomes(tmp_path / FILE))
    found = {row["name"]: row for row in published("arithmetic")["rows"]}
    assert [entry["name"] for entry in entries] == [
        "grpo",
        "grpo_maj1",
        "grpo_maj3",
        "grpo_maj5",
        "grpo_maj10",
        "svr",
        "svr_plus",
    ]
    for entry in entries:
        assert json.loads(json.dumps(entry)) == found[entry["name"]]


def test_the_table_of_budgets_is_what_is_published():
    text = (ROOT / "docs" / "miniature.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| \| Countdown, 70.*\n(?:\|.*\n)+", text, re.MULTILINE)
    head, _, *lines = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()
    )
    budgets = [int(re.findall(r"\d+", cell)[0]) for cell in head[1:]]
    tasks = [task for task in BOTH for _ in budgets[::2]]
    curves = {
        (task, PAGE.get(curve["title"], curve["title"]), point["budget"]): point["accuracy"]
        for task in BOTH
        for curve in published(task)["budgets"]["curves"]
        for point in curve["points"]
    }
    assert len(lines) == 14
    for title, *cells in lines:
        for cell, task, budget in zip(cells, tasks, budgets, strict=True):
            assert float(cell.strip("*")) == pytest.approx(curves[task, title, budget], abs=5.1e-4)
