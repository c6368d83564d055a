"""The commands of the run on a real model, and the table it ends with."""

import argparse
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from experiments.miniature.plan import Cell, Command

from experiments.warmstart import __main__ as warmstart
from svr_lightning.__main__ import main as svr
from svr_lightning.cli.checks import check_command_line
from svr_lightning.files import to_json
from tests.synthetic import recording
from tools import real_run

ROOT = Path(__file__).resolve().parents[2]


class Played:
    """Runs what reads recordings; what needs the model leaves made-up results."""

    def __init__(self) -> None:
        self.ran: list[Command] = []

    def run(self, cells: Sequence[Cell], jobs: int) -> list[str]:
        folders = [command.folder for cell in cells for command in cell.commands[:1]]
        assert len(folders) == len(set(folders))  # a folder is locked while a command runs in it
        for command in (command for cell in cells for command in cell.commands):
            self.ran.append(command)
            self.play(command, [*command.arguments])
            record = Path(command.folder) / "commands" / f"{command.name}.json"
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text('{"seconds": 30.0}')
            assert Path(command.result).is_file()
        return []

    def play(self, command: Command, words: list[str]) -> None:
        if words[0] in ("replay", "report"):
            assert svr(words) == 0
            return
        result = Path(command.result)
        result.parent.mkdir(parents=True)
        result.write_text("{}")
        if words[0] == "fit":
            check_command_line("fit", words[1:])
            log = "step,key,value\n1,train/loss,0.1\n2,train/loss,0.1\n"
            (Path(command.folder) / "metrics.csv").write_text(log)
            for skill, name in enumerate(("before", "after")):  # nothing is right at first
                folder = Path(command.folder) / "eval" / name
                folder.mkdir(parents=True)
                records = recording({"held_out": (40, 0.4, 0.3, 0.1)}, turns=3, skill=skill)
                (folder / "samples.jsonl").write_text("".join(f"{to_json(r)}\n" for r in records))


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Command], Path]:
    """A whole run on one task."""
    monkeypatch.chdir(ROOT)
    runner, out = Played(), tmp_path / "real"
    monkeypatch.setattr(real_run, "Runner", lambda **_: runner)
    monkeypatch.setattr(real_run, "missing_package", lambda: None)
    assert real_run.main(["--smoke", "--tasks", "countdown", "--out", str(out)]) == 0
    return runner.ran, out


def test_every_method_ends_in_one_table(played: tuple[list[Command], Path]) -> None:
    commands, out = played
    names = [command.name for command in commands]
    fits, sweeps = ["fit"] * 3, ["sweep_before"] * 2 + ["sweep_after"] * 3
    assert sorted(names) == sorted(["convert", "warmstart", *fits, *sweeps, "report"])
    found = json.loads((out / "summary.json").read_text())
    assert found["seconds"]["commands/convert.json"] == 30.0
    assert found["steps"] == {f"countdown/{name}": 2 for name in ("svr", "svr_plus", "grpo_mt")}
    first = found["rows"]
    stops = [(row["policy"], row["stop"]) for row in first]
    assert stops[:3] == [("warm start", stop) for stop in ("one turn", "3 turns", "its own")]
    # A method without a self-check has no stop of its own.
    assert ("GRPO-MT", "3 turns") in stops
    assert ("GRPO-MT", "its own") not in stops
    # All best stops have the tokens of SVR with its own.
    (own,) = [r["tokens"] for r in first if (r["policy"], r["stop"]) == ("SVR", "its own")]
    best = [row for row in first if row["stop"].startswith("best: ")]
    assert len(best) == len(real_run.EVALUATIONS)
    assert all(row["budget"] == pytest.approx(own, abs=0.1) for row in best)
    assert all(row["tokens"] < 1.3 * own for row in best)  # chosen on the other half
    # Undefined where no answer is right.
    areas = {row["policy"]: row["auroc"] for row in first if row["stop"] == "its own"}
    assert areas["warm start"] is None
    assert areas["SVR"] > 0.5
    lines = (out / "summary.md").read_text().splitlines()
    assert lines[0].startswith("A smoke run")
    assert len([line for line in lines if line.startswith("| ")]) == 1 + len(found["rows"])


def test_each_method_is_layered_on_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    options = argparse.Namespace(smoke=False, device="cuda")
    assert real_run.TASKS.keys() <= warmstart.TASKS.keys()
    for task, (config, *_) in real_run.TASKS.items():
        cell = real_run.training(tmp_path, task, "svr_plus", options)
        words = cell.commands[0].arguments
        (tmp_path / task / "warmstart").mkdir(parents=True)
        check_command_line("fit", words[1:])
        layers = [value for flag, value in pairwise(words) if flag == "--config"]
        assert layers == [
            config,
            "configs/methods/svr_plus.yaml",
            "configs/experiments/real.yaml",
            "configs/hardware/1gpu.yaml",
        ]


def test_without_a_gpu_it_asks_for_a_smoke_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(real_run.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(real_run, "missing_package", lambda: None)
    assert real_run.main([]) == 2
    assert "on a CPU give --smoke" in capsys.readouterr().err
