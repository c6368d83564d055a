"""The report of the miniature experiment, over cells whose answers are known."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.miniature import plan, tuning
from experiments.miniature.__main__ import main
from experiments.miniature.budgets import options_of
from experiments.miniature.cells import inputs_digest, record_path
from experiments.miniature.outcomes import FILE, read_outcomes
from experiments.miniature.plan import Command, Settings
from experiments.miniature.reading import Seeds, recording_of
from experiments.miniature.report import kind_of
from experiments.miniature.results import answers, versus
from experiments.miniature.summary import Frontier, stop_families
from svr_lightning.analysis.records import SCHEMA_VERSION
from svr_lightning.errors import ConfigError
from svr_lightning.files import to_json, write_json
from tests.trajectories import record, uncensored, write_results

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
                "schema_version": SCHEMA_VERSION,
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
    record = {"command": command.line, "inputs": inputs_digest(command.arguments), "done": True}
    write_json(record_path(command), {**record, "seconds": 1.5})


def main_vote(command: Command) -> int:
    from svr_lightning.__main__ import main as package

    return package(list(command.arguments))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("miniature")
    settings = Settings(out=str(folder), rates=dict.fromkeys(plan.TUNED_ROWS, 1e-4))
    rates = {name: {"lr": rate} for name, rate in settings.rates.items() if name != "igrpo"}
    tuning.write_tuned(settings.out, rates, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for name in ROWS:
            for seed in SEEDS:
                cell = plan.cell(plan.BY_NAME[name], int(seed), settings, ("train", "judge"))
                for command in cell.commands:
                    leave(command, name, seed)
        options = ["--out", str(folder), "--stage", "report", "--seeds", *SEEDS]
        options += ["--rows", *ROWS, "igrpo", "svr_turns"]  # one not tuned, one not judged
        options += ["--published", str(folder / "published")]
        assert main(options) == 0
    return folder


@pytest.fixture(scope="module")
def rows(out: Path) -> dict[str, Any]:
    results = json.loads((out / "results.json").read_text())
    assert results["missing"] == ["igrpo-42", "igrpo-43", "svr_turns-42", "svr_turns-43"]
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
    assert rows["grpo_mt"]["sampled"].keys() == {
        *("accuracy", "turns", "tokens", "each_turn", "changes")
    }


def test_greedy_and_sampled_answers_stand_side_by_side(rows: dict[str, Any], out: Path) -> None:
    # Both recordings hold the same turns here; three turns are all that there are.
    for name, accuracy, turns in (("svr", 3 / 6, 13 / 6), ("grpo_mt", 2 / 6, 3)):
        sampled = rows[name]["sampled"]
        assert sampled["accuracy"]["mean"] == pytest.approx(accuracy)
        assert sampled["turns"]["mean"] == pytest.approx(turns)
    # Right at turn 1: a and e; at turn 2: b, c and f; at turn 3: b and d.
    each = rows["svr"]["sampled"]["each_turn"]
    assert [each[k]["mean"] for k in "123"] == pytest.approx([2 / 6, 3 / 6, 2 / 6])
    table = (out / "table.md").read_text()
    both = r"\| SVR \| 2 \| 0.500 \[0.167, 0.833\] \| 0.500 \[0.167, 0.833\] \| 0.563 \|"
    assert re.search(both, table)


def test_stopping_rules_stand_at_each_rows_own_tokens(rows: dict[str, Any], out: Path) -> None:
    """SVR's rule takes 3,328 tokens of six problems, at most three turns each."""
    assert rows["grpo"]["stops"] == []
    for name in ("svr", "grpo_mt"):
        found = {stop["name"]: stop["at_own_cost"] for stop in rows[name]["stops"]}
        assert {
            "fixed turns",
            "repeated answer",
            "majority",
            "oracle (reads labels)",
        } <= found.keys()
        own = rows[name]["greedy"]
        for at_cost in filter(None, found.values()):
            assert at_cost["gap"]["difference"] == pytest.approx(
                at_cost["accuracy"] - own["accuracy"]["mean"]
            )
    # GRPO-MT's own protocol is three fixed turns, of which the third is right for two of six. All
    # answers are equal, so that a second one stops at turn 2, where b, c and f are right.
    found = {stop["name"]: stop["at_own_cost"] for stop in rows["grpo_mt"]["stops"]}
    assert found["repeated answer"]["accuracy"] == pytest.approx(3 / 6)
    assert "answer given 2 times in a row" in " ".join(found["repeated answer"]["options"])
    assert found["oracle (reads labels)"]["accuracy"] == 1.0
    assert "## Stopping rules at equal tokens" in (out / "table.md").read_text()


def test_every_table_is_made_again_from_the_published_outcomes(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    published = out / "published"
    options = ["--published", str(published), "--out", str(tmp_path), "--seeds", *SEEDS]
    options += ["--rows", *ROWS, "igrpo", "svr_turns"]
    assert main([*options, "--stage", "report"]) == 0
    for name in ("table.md", "rows.svg", "budgets.svg"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()
    again, before = (json.loads((f / "results.json").read_text()) for f in (tmp_path, out))
    assert again["rows"] == before["rows"]
    (svr,) = [o for o in read_outcomes(published / FILE, "countdown") if o.row.name == "svr"]
    assert svr.tables[0].signals[0][0].confidence == 0.95
    (tmp_path / "other.npz").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"other\.npz: no outcomes"):
        read_outcomes(tmp_path / "other.npz", "countdown")


def test_seeds_that_are_judged_later_join_those_that_are_published(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    rows = ("grpo", "svr")
    options = ["--published", str(tmp_path / "published"), "--rows", *rows]
    first = [*options, "--seeds", "43", "--out", str(out)]
    assert main([*first, "--stage", "report"]) == 0  # publishes one seed
    capsys.readouterr()
    assert main([*options, "--seeds", *SEEDS, "--out", str(tmp_path / "new"), "--list"]) == 0
    listed = capsys.readouterr().out
    assert "published: 43" in listed
    assert "svr-42" in listed
    assert "svr-43" not in listed
    assert main([*options, "--seeds", *SEEDS, "--out", str(out), "--stage", "report"]) == 0
    both = {one.row.name: one for one in read_outcomes(tmp_path / "published" / FILE, "countdown")}
    whole_file = out / "published" / FILE
    everything = {one.row.name: one for one in read_outcomes(whole_file, "countdown")}
    for name, one in both.items():
        assert one.seeds == (42, 43)
        for k, votes in everything[name].votes.items():
            assert (one.votes[k].right == votes.right).all()
        for ours, theirs in zip(one.greedy, everything[name].greedy, strict=True):
            assert (ours.table.correct == theirs.table.correct).all()


def test_outcomes_of_another_configuration_are_refused(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    changed = replace(plan.BY_NAME["svr"], layers=("configs/methods/svr_plus.yaml",))
    monkeypatch.setattr(plan, "BY_NAME", {**plan.BY_NAME, "svr": changed})
    with pytest.raises(ConfigError, match="svr was judged with another configuration"):
        read_outcomes(out / "published" / FILE, "countdown")


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
    assert all("oracle" not in option for option in there["options"])
    assert there["tokens"] <= rows["svr"]["greedy"]["tokens"]["mean"]
    one = rows["grpo"]["versus_svr"]
    assert one["svr_at_its_cost"] is None
    # Its only turn: 4 and 2 of 6 against SVR's 3.
    assert one["at_svrs_cost"]["gap"]["seeds"] == pytest.approx([1 / 6, -1 / 6])


def seeds_of(name: str, folder: Path, records: dict[int, list[dict[str, Any]]]) -> Seeds:
    greedy = []
    for seed, rows in records.items():
        write_results(folder / f"{name}-{seed}", rows, {}, {})
        greedy.append(recording_of(name, folder / f"{name}-{seed}"))
    return Seeds(
        row=plan.BY_NAME[name], seeds=tuple(records), greedy=tuple(greedy), sampled=(), votes={}
    )


def every_option(seeds: Seeds) -> Frontier:
    return options_of(seeds.row.title, stop_families(seeds.tables))


def test_a_row_with_fewer_seeds_is_compared_with_the_same_seeds_of_svr(tmp_path: Path) -> None:
    """SVR has 3 of 6 with seed 42 and none with 43; the row has 2 of 6 with 43 alone."""
    wrong = uncensored()
    for turn in (turn for one in wrong for turn in one["turns"]):
        turn["correct"] = False
    svr = seeds_of("svr", tmp_path, {42: uncensored(), 43: wrong})
    row = seeds_of("grpo", tmp_path, {43: single("ab")})
    found = versus(svr, row, answers(row), every_option(svr), every_option(row))
    assert found["seeds"] == [43]
    assert found["accuracy"]["seeds"] == pytest.approx([-2 / 6])
    assert found["at_svrs_cost"]["gap"]["seeds"] == pytest.approx([2 / 6])


def test_tables_commands_and_the_figure_are_published(out: Path) -> None:
    folder = out / "published"
    table = (folder / "table.md").read_text()
    assert "| SVR | 2 | 0.500 [" in table
    assert "| Oracle-guided (+) | 2 |" in table
    assert "Not judged: igrpo-42, igrpo-43, svr_turns-42, svr_turns-43." in table
    commands = (folder / "commands.md").read_text()
    assert "--trainer.default_root_dir runs/miniature/verdict_only-42" in commands
    assert str(out) not in commands
    entries = json.loads((folder / "results.json").read_text())["rows"]
    assert {entry["title"]: kind_of(entry) for entry in entries}["SVR"] == "reference"
    assert all("<svg" in (folder / name).read_text() for name in ("rows.svg", "budgets.svg"))
    rivals = "the best pair of a method without self-check and a free stop"
    assert f"### SVR against {rivals}, seeds 42, 43" in table
