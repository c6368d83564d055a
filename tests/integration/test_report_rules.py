"""Stopping rules at equal tokens in a report: the table, its caption and what the command says."""

import json
from pathlib import Path

import pytest

from svr_lightning.__main__ import main
from svr_lightning.report.drawing import svg
from svr_lightning.report.figures import all_figures
from svr_lightning.report.runs import compare_rules, read_methods
from svr_lightning.report.tables import all_tables, winners
from tests.synthetic import recording
from tests.trajectories import record, save, uncensored


def test_stopping_rules_are_compared_at_the_tokens_of_the_first_method(tmp_path: Path) -> None:
    sets = {"gsm8k": (60, 0.6, 0.3, 0.2)}
    save(tmp_path / "a", recording(sets, turns=4, seed=1), {"seed_everything": 11})
    save(tmp_path / "b", recording(sets, turns=4, seed=2), {"seed_everything": 12})
    save(tmp_path / "cut", [record("x", (True, "C", 0.9, 5), early=True)])
    methods = read_methods([str(tmp_path / name) for name in ("a", "cut", "b")])
    rules = compare_rules(methods)
    spent = methods[0].runs[0].datasets["gsm8k"]["avg_total_tokens"]
    assert {n: parts["GSM8K"]["budget"] for n, parts in rules.items()} == {0: spent, 2: spent}
    tables = [t for t in all_tables(methods, rules) if t.name.startswith("stopping_rules")]
    for table, parts, name in zip(tables, rules.values(), "ab", strict=True):
        found = parts["GSM8K"]
        assert table.caption.startswith(
            f"{name}, GSM8K: stopping rules within {spent:,.0f} tokens per problem."
        )
        assert [row[0] for row in table.rows] == [row["name"] for row in found["rows"]]
        (best,) = (row for row in table.rows if row[0] == found["winner"])
        assert best[4:] == ["best", "--"]  # no gap to itself
    assert winners(methods, rules) == [
        f"GSM8K, {name}: within {spent:,.0f} tokens the best rule is {parts['GSM8K']['winner']}"
        for name, parts in zip("ab", rules.values(), strict=True)
    ]
    (plot,) = [p for p in all_figures(methods, rules)[0] if p.name == "5_stopping_rules_1"]
    # At most 1, 2, 3 and 4 turns under its own rule.
    assert (len(plot.numbers["own"]), plot.numbers["own"][-1]["tokens"]) == (4, spent)
    assert svg(plot.draw, plot.numbers) == svg(plot.draw, json.loads(json.dumps(plot.numbers)))


@pytest.mark.parametrize("budget", [5000.0, 1.0], ids=["all-are-within-it", "none-is-within-it"])
def test_the_command_names_the_best_rule_at_a_budget_and_the_seed(
    budget: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        save(tmp_path / str(seed), uncensored(), {"seed_everything": seed})
    seeds = [f"SVR={tmp_path / seed}" for seed in "12"]
    methods = read_methods(seeds)
    rules = compare_rules(methods, budget)
    found = rules[0]["toy"]
    assert found["budget"] == budget
    assert {row["accuracy"] is None for row in found["rows"]} == {budget == 1}
    out = tmp_path / "report"
    assert main(["report", *seeds, "--out", str(out), "--budget", str(budget)]) == 0
    best = "none, all are over budget" if budget == 1 else found["winner"]
    sentence = f"toy, SVR: within {budget:,.0f} tokens the best rule is {best}"
    assert sentence in " ".join(capsys.readouterr().out.split())
    (table,) = [t for t in all_tables(methods, rules) if t.name.startswith("stopping_rules")]
    assert table.caption.endswith("Seed 1 alone.")
