"""The report of the miniature experiment, over cells whose answers are known."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.files import to_json, write_json
from svr_lightning.report.runs import read_methods
from tests.trajectories import record, uncensored, write_results
from tools.miniature import plan, tuning
from tools.miniature.__main__ import main
from tools.miniature.cells import inputs_digest, record_path
from tools.miniature.controls import untrained_cells, write_controls
from tools.miniature.plan import Command, Settings
from tools.miniature.reading import Seeds
from tools.miniature.results import answers, options_of, versus

ROWS = ("grpo", "grpo_mt", "oracle", "svr", "verdict_only")
SEEDS = ("42", "43")
# Of the six problems a to f, with 101 prompt and completion tokens each.
SINGLE = {"42": "abcd", "43": "ab"}
ROOT = Path(__file__).resolve().parents[2]


def single(right: str) -> list[dict[str, Any]]:
    return [record(name, (name in right, "U", 0.5, 1)) for name in "abcdef"]


def pools() -> list[dict[str, Any]]:
    """Ten samples of each problem, all alike: right for a and b."""
    turn = record("a", (True, "U", 0.5, 1))["turns"][0]
    return [
        {
            **{
                "dataset": "toy",
                "id": name,
                "task": "countdown",
                "question": "?",
                "reference": "!",
            },
            "samples": [{**turn, "answer": "8+2", "correct": name in "ab"}] * 10,
        }
        for name in "abcdef"
    ]


def records_of(row: str, seed: str) -> list[dict[str, Any]]:
    if row == "grpo":
        return single(SINGLE[seed])
    records = uncensored()
    if row in ("grpo_mt", "oracle"):
        for turn in (turn for one in records for turn in one["turns"]):
            turn |= {"verdict": "UNSURE", "confidence": 0.5}
    return records


def leave(command: Command, row: str, seed: str) -> None:
    """What a command of a cell would have left."""
    result = Path(command.result)
    if command.name in ("greedy", "sampled"):
        gate = "verdict" if row == "verdict_only" else "joint"
        config = {
            "model": {"evaluation": {"adaptive": False, "gate": gate}},
            "protocol": {"privileged": row == "oracle"},
        }
        write_results(result.parent, records_of(row, seed), config, {})
    elif command.name == "votes":
        result.parent.mkdir(parents=True)
        result.write_text("".join(f"{to_json(pool)}\n" for pool in pools()))
    elif command.name == "vote":
        assert main_vote(command) == 0
    result.parent.mkdir(parents=True, exist_ok=True)
    result.touch()
    record = {"command": command.line, "inputs": inputs_digest(command), "done": True}
    write_json(record_path(command), {**record, "seconds": 1.5})


def main_vote(command: Command) -> int:
    from svr_lightning.__main__ import main as package

    return package(list(command.arguments))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("miniature")
    settings = Settings(out=str(folder), rates={"single": 1e-4, "multi": 2e-4, "svr": 3e-4})
    families = {family: {"lr": rate} for family, rate in settings.rates.items()}
    tuning.write_tuned(settings.out, families, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for name in ROWS:
            for seed in SEEDS:
                cell = plan.cell(plan.BY_NAME[name], int(seed), settings, ("train", "judge"))
                for command in cell.commands:
                    leave(command, name, seed)
        options = ["--out", str(folder), "--stage", "report", "--seeds", *SEEDS]
        options += ["--rows", *ROWS, "svr_turns", "--publish", str(folder / "published")]
        assert main(options) == 0
    return folder


@pytest.fixture(scope="module")
def rows(out: Path) -> dict[str, Any]:
    results = json.loads((out / "results.json").read_text())
    assert results["missing"] == ["svr_turns-42", "svr_turns-43"]
    return {row["name"]: row for row in results["rows"]}


def means(row: dict[str, Any], *names: str) -> list[Any]:
    return [row["greedy"][name]["mean"] for name in names]


def test_each_row_is_measured_under_its_own_protocol(rows: dict[str, Any]) -> None:
    # SVR: see tests/trajectories.py; a, c and d are right.
    assert means(rows["svr"], "accuracy", "turns", "pse") == pytest.approx([3 / 6, 13 / 6, 1 / 6])
    # Fixed turns: the third answer, right for b and d.
    assert means(rows["grpo_mt"], "accuracy", "turns") == pytest.approx([2 / 6, 3])
    # On the verdict alone e stops at turn 1 (right) and f too (wrong): a, c, d, e of 6.
    assert means(rows["verdict_only"], "accuracy", "pse") == pytest.approx([4 / 6, 2 / 6])
    # One turn: 4 of 6 with one seed, 2 of 6 with the other.
    grpo = rows["grpo"]["greedy"]
    assert grpo["accuracy"]["seeds"] == pytest.approx([4 / 6, 2 / 6])
    assert means(rows["grpo"], "accuracy", "tokens", "tokens_per_correct") == pytest.approx(
        [0.5, 101, (101 * 6 / 4 + 101 * 6 / 2) / 2]
    )


def test_a_row_has_no_metric_of_a_self_check_that_it_lacks(rows: dict[str, Any]) -> None:
    judged = {"pse", "esr", "brier", "auroc", "overconfidence"}
    assert judged <= rows["svr"]["greedy"].keys()
    assert not judged & rows["grpo_mt"]["greedy"].keys()
    assert judged & rows["verdict_only"]["greedy"].keys() == {"pse", "esr", "overconfidence"}
    assert rows["grpo_mt"]["sampled"].keys() == {"accuracy", "turns", "tokens", "each_turn"}


def test_greedy_and_sampled_answers_stand_side_by_side(rows: dict[str, Any], out: Path) -> None:
    # Both recordings hold the same turns here; three turns are all that there are.
    for name, accuracy, turns in (("svr", 3 / 6, 13 / 6), ("grpo_mt", 2 / 6, 3)):
        sampled, short = rows[name]["sampled"], rows[name]["short"]
        for values in (sampled, short["greedy"], short["sampled"]):
            assert values["accuracy"]["mean"] == pytest.approx(accuracy)
            assert values["turns"]["mean"] == pytest.approx(turns)
    # Right at turn 1: a and e; at turn 2: b, c and f; at turn 3: b and d.
    each = rows["svr"]["sampled"]["each_turn"]
    assert [each[k]["mean"] for k in "123"] == pytest.approx([2 / 6, 3 / 6, 2 / 6])
    table = (out / "table.md").read_text()
    both = r"\| SVR \| 2 \| 0.500 \[0.167, 0.833\] \| 0.500 \[0.167, 0.833\] \| 0.563 \|"
    assert re.search(both, table)
    assert "## At most three turns" in table


def test_the_first_repeated_answer_is_a_stop_of_every_row_of_several_turns(
    rows: dict[str, Any], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All answers are the same here, so that turn 2 repeats: right for b, c and f."""
    for name in ("svr", "grpo_mt"):
        repeated = rows[name]["repeated"]
        assert [repeated[key]["mean"] for key in ("accuracy", "turns", "right_when_stopped")] == (
            pytest.approx([3 / 6, 2, 3 / 6])
        )
    assert "repeated" not in rows["grpo"]
    assert "## Stopping without a self-check" in (out / "table.md").read_text()
    monkeypatch.chdir(ROOT)
    settings = Settings(out=str(out))
    (greedy,) = next(c for c in untrained_cells(settings) if c.name == "string_rule-42").commands
    leave(greedy, "string_rule", "42")
    lines = write_controls(settings, (42, 43))
    assert lines[0].endswith("controls.md: 3 rows")
    assert "not measured: warm start" in lines
    found = json.loads((out / "controls.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["string_rule", "grpo_mt", "svr"]
    table = (out / "controls.md").read_text()
    assert "Countdown can be verified without solving it" in table
    assert "python -m tools.miniature --stage controls" in table
    assert re.search(r"\| warm start, string rule \|  \| 0.500 \[", table)


def test_votes_are_rows_of_their_own(rows: dict[str, Any]) -> None:
    assert means(rows["grpo_maj5"], "accuracy", "tokens") == pytest.approx([2 / 6, 505])
    assert rows["grpo_maj5"]["paper"]["all7_accuracy"] == 0.529
    assert list(rows)[:4] == ["grpo", "grpo_maj1", "grpo_maj3", "grpo_maj5"]


def test_comparisons_with_svr_are_paired(rows: dict[str, Any]) -> None:
    """Three fixed turns against SVR's stops: a and c gained, b lost, at fewer tokens."""
    versus = rows["grpo_mt"]["versus_svr"]
    assert versus["accuracy"]["difference"] == pytest.approx(1 / 6)
    assert versus["accuracy"]["seeds"] == pytest.approx([1 / 6, 1 / 6])
    # As accurate as SVR on average over its two seeds, and a single turn is cheaper.
    assert rows["grpo"]["versus_svr"]["seeds"] == [42, 43]
    assert "versus_svr" not in rows["svr"]


def test_either_is_measured_at_the_others_cost(rows: dict[str, Any]) -> None:
    """A turn costs 101 tokens or more, and SVR's own rule 2.17 turns: two fixed turns fit."""
    there = rows["grpo_mt"]["versus_svr"]["at_svrs_cost"]
    assert set(there["options"]) <= {"1 turns", "2 turns"}
    assert there["tokens"] <= rows["svr"]["greedy"]["tokens"]["mean"]
    one = rows["grpo"]["versus_svr"]
    assert one["svr_at_its_cost"] is None
    # Its only turn: 4 and 2 of 6 against SVR's 3.
    assert one["at_svrs_cost"]["gap"]["seeds"] == pytest.approx([1 / 6, -1 / 6])


def seeds_of(name: str, folder: Path, records: dict[int, list[dict[str, Any]]]) -> Seeds:
    runs = []
    for seed, rows in records.items():
        write_results(folder / f"{name}-{seed}", rows, {}, {})
        runs += read_methods([str(folder / f"{name}-{seed}")])[0].runs
    return Seeds(
        row=plan.BY_NAME[name], seeds=tuple(records), greedy=tuple(runs), sampled=(), votes={}
    )


def test_a_row_with_fewer_seeds_is_compared_with_the_same_seeds_of_svr(tmp_path: Path) -> None:
    """SVR has 3 of 6 with seed 42 and none with 43; the row has 2 of 6 with 43 alone."""
    wrong = uncensored()
    for turn in (turn for one in wrong for turn in one["turns"]):
        turn["correct"] = False
    svr = seeds_of("svr", tmp_path, {42: uncensored(), 43: wrong})
    row = seeds_of("grpo", tmp_path, {43: single("ab")})
    found = versus(svr, row, answers(row), options_of(svr), options_of(row))
    assert found["seeds"] == [43]
    assert found["accuracy"]["seeds"] == pytest.approx([-2 / 6])
    assert found["at_svrs_cost"]["gap"]["seeds"] == pytest.approx([2 / 6])


def test_tables_commands_and_the_figure_are_published(out: Path) -> None:
    folder = out / "published"
    table = (folder / "table.md").read_text()
    assert "| SVR | 2 | 0.500 [" in table
    assert "| Oracle-guided (+) | 2 |" in table
    assert "Not judged: svr_turns-42, svr_turns-43." in table
    commands = (folder / "commands.md").read_text()
    assert "--trainer.default_root_dir runs/miniature/svr_plus-42" in commands
    assert str(out) not in commands
    numbers = json.loads((folder / "rows.json").read_text())
    assert {row["name"]: row["kind"] for row in numbers["rows"]}["SVR"] == "reference"
    assert "<svg" in (folder / "rows.svg").read_text()
