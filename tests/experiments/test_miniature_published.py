"""What is published of the miniature follows from its outcomes, and its tables from them."""

import json
from typing import Any

import pytest

from experiments.miniature.recordings import FILE, read_outcomes, write_outcomes
from experiments.miniature.results import row_entries
from experiments.miniature.rows import BOTH, RESULTS, Task
from experiments.miniature.tables import table_md
from svr_lightning.analysis.replay import replay
from tests.commands import ROOT, read_json


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
