"""Cells are run by processes of their own: kept, resumed, refused, ended."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from experiments.miniature import plan, tuning
from experiments.miniature.__main__ import main, parser, runnable
from experiments.miniature.cells import Runner, is_done, state_of
from experiments.miniature.plan import Cell, Command, Settings
from svr_lightning.errors import ConfigError

SCRIPT = """
import os, pathlib, sys, time
what, result, *rest = sys.argv[1:]
path = pathlib.Path(result)
with (path.parent / "starts.txt").open("a") as log:
    log.write(" ".join([os.environ["OMP_NUM_THREADS"], what, *rest]) + "\\n")
if what == "fail":
    sys.exit("no such thing")
if what == "sleep" and len((path.parent / "starts.txt").read_text().splitlines()) == 1:
    aside = path.parent / "pid.part"
    aside.write_text(str(os.getpid()))
    aside.rename(path.parent / "pid")  # whole as soon as it is there
    time.sleep(60)
if what != "nothing":
    path.write_text("whole")
"""
PROGRAM = (sys.executable, "-c", SCRIPT)


def step(folder: Path, what: str, name: str = "fit", checkpoint: str | None = None) -> Command:
    folder.mkdir(exist_ok=True)
    result = str(folder / f"{name}.txt")
    return Command(
        name=name,
        folder=str(folder),
        arguments=(what, result),
        result=result,
        checkpoint=checkpoint,
    )


def starts(folder: Path) -> list[str]:
    return (folder / "starts.txt").read_text().splitlines()


def test_a_step_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    cell = Cell(name="a", commands=(step(tmp_path / "a", "write"),))
    said: list[str] = []
    for _ in range(2):
        assert Runner(PROGRAM, said.append).run([cell], jobs=2) == []
    assert starts(tmp_path / "a") == ["1 write"]  # on one thread
    assert len(said) == 1
    record = json.loads((tmp_path / "a" / "commands" / "fit.json").read_text())
    assert record["command"] == cell.commands[0].line
    assert record["done"] is True


def test_a_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    checkpoint = tmp_path / "last.ckpt"
    checkpoint.touch()
    command = step(tmp_path / "a", "write", checkpoint=str(checkpoint))
    Runner(PROGRAM, lambda _: None).run([Cell(name="a", commands=(command,))], jobs=1)
    assert starts(tmp_path / "a") == ["1 write --ckpt_path last"]
    assert is_done(command)  # the record is of the command without it


def test_a_failing_command_ends_its_own_cell_alone(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    cells = [
        Cell(name="bad", commands=(step(bad, "fail"), step(bad, "write", "greedy"))),
        Cell(name="good", commands=(step(tmp_path / "good", "write"),)),
    ]
    (line,) = Runner(PROGRAM, lambda _: None).run(cells, jobs=1)
    log = bad / "commands" / "fit.log"
    assert line == f"bad: fit ended with 1, see {log}"
    assert "no such thing" in log.read_text()
    assert starts(bad) == ["1 fail"]
    assert is_done(cells[1].commands[0])


def test_a_command_that_leaves_no_result_has_failed(tmp_path: Path) -> None:
    cell = Cell(name="a", commands=(step(tmp_path / "a", "nothing"),))
    (line,) = Runner(PROGRAM, lambda _: None).run([cell], jobs=1)
    assert f"left no {tmp_path / 'a' / 'fit.txt'}" in line


def test_results_of_another_command_line_are_not_taken_for_these(tmp_path: Path) -> None:
    runner = Runner(PROGRAM, lambda _: None)
    runner.run([Cell(name="a", commands=(step(tmp_path / "a", "write"),))], jobs=1)
    changed = step(tmp_path / "a", "nothing")
    assert not is_done(changed)
    (line,) = runner.run([Cell(name="a", commands=(changed,))], jobs=1)
    assert "holds results of another command line" in line
    assert starts(tmp_path / "a") == ["1 write"]


def test_an_interrupt_ends_the_children_and_the_next_start_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    cells = [
        Cell(name="a", commands=(step(folder, "sleep"),)),
        Cell(name="b", commands=(step(tmp_path / "b", "write"),)),
    ]

    def interrupt() -> None:
        while not (folder / "pid").is_file():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    def on_signal(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            Runner(PROGRAM, lambda _: None).run(cells, jobs=1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)
    assert not is_done(cells[0].commands[0])
    assert not (tmp_path / "b" / "starts.txt").exists()
    assert Runner(PROGRAM, lambda _: None).run(cells, jobs=1) == []
    assert all(is_done(command) for cell in cells for command in cell.commands)


def test_a_process_that_outlives_a_killed_experiment_is_not_joined_by_another(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a"
    cell = Cell(name="a", commands=(step(folder, "sleep"),))
    start = f"from experiments.miniature.cells import *; Runner({PROGRAM!r}).run([{cell!r}], 1)"
    experiment = subprocess.Popen([sys.executable, "-c", start])
    while not (folder / "pid").is_file():
        time.sleep(0.01)
    experiment.kill()
    experiment.wait()
    (line,) = Runner(PROGRAM, lambda _: None).run([cell], jobs=1)
    assert line.startswith(f"a: {folder} is in use by a process that still runs; wait for it")
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    while Runner(PROGRAM, lambda _: None).run([cell], jobs=1):
        time.sleep(0.01)  # until it is gone
    assert starts(folder) == ["1 sleep", "1 sleep"]


def test_results_of_another_configuration_are_not_taken_for_these(tmp_path: Path) -> None:
    layer = tmp_path / "layer.yaml"
    layer.write_text("{a: 1, b: 2}")
    command = step(tmp_path / "a", "write")
    command = replace(command, arguments=(*command.arguments, "--config", str(layer)))
    runner = Runner(PROGRAM, lambda _: None)
    runner.run([Cell(name="a", commands=(command,))], jobs=1)
    assert is_done(command)
    layer.write_text("b: 2\na: 1  # the same")
    assert is_done(command)
    layer.write_text("a: 2")
    assert state_of(command) == "other"
    (line,) = runner.run([Cell(name="a", commands=(command,))], jobs=1)
    assert "or of other configurations" in line
    layer.write_text("a: [")
    (line,) = runner.run([Cell(name="a", commands=(command,))], jobs=1)
    assert f"{layer}: cannot be read (while parsing" in line
    assert "\n" not in line


def test_results_of_a_policy_that_was_trained_again_are_not_taken_for_these(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "model.safetensors").write_bytes(b"one")
    command = step(tmp_path / "a", "write")
    command = replace(command, arguments=(*command.arguments, "--model.policy.path", str(policy)))
    Runner(PROGRAM, lambda _: None).run([Cell(name="a", commands=(command,))], jobs=1)
    assert is_done(command)
    (policy / "model.safetensors").write_bytes(b"two")
    assert state_of(command) == "other"


def test_the_layer_of_svr_plus_is_the_candidate_that_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    (layer,) = plan.BY_NAME[plan.CHOSEN].layers
    held = yaml.safe_load(Path(layer).read_text())["model"]["recipe"]["init_args"]
    outs = [str(tmp_path / task) for task in plan.BEDS]
    for name, candidate in tuning.CANDIDATES.items():
        for out in outs:
            tuning.write_tuned(out, {}, judged({name: (0.9, 100)}))
        if candidate["model"]["recipe"]["init_args"].items() <= held.items():
            tuning.check_choice(outs)
        else:
            with pytest.raises(ConfigError, match=f"is not the candidate '{name}'"):
                tuning.check_choice(outs)


def judged(found: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Accuracy and tokens of the candidates; .1 and 100 of those that are not named."""
    return {
        name: {"accuracy": accuracy, "avg_total_tokens": tokens}
        for name in tuning.CANDIDATES
        for accuracy, tokens in [found.get(name, (0.1, 100))]
    }


def test_the_candidate_that_is_best_on_average_over_both_tasks_is_chosen(tmp_path: Path) -> None:
    outs = [str(tmp_path / task) for task in plan.BEDS]
    tuning.write_tuned(outs[0], {}, judged({"drawn": (0.75, 400), "all": (0.5, 300)}))
    tuning.write_tuned(outs[1], {}, judged({"drawn": (0.25, 400), "all": (0.75, 300)}))
    assert tuning.chosen_candidate(outs) == "all"  # 0.625 against 0.5
    tuning.write_tuned(outs[1], {}, judged({"drawn": (0.5, 400), "all": (0.75, 300)}))
    assert tuning.chosen_candidate(outs) == "all"  # both 0.625, with fewer tokens
    tuning.write_tuned(outs[1], {}, judged({"drawn": (0.625, 400), "all": (0.75, 300)}))
    assert tuning.chosen_candidate(outs) == "drawn"
    tuning.write_tuned(str(tmp_path / "rates"), {"svr": {"lr": 1e-3}}, {})
    with pytest.raises(ConfigError, match="candidates are not judged"):
        tuning.chosen_candidate([str(tmp_path / "rates")])
    with pytest.raises(ConfigError, match="no figures of the candidates"):
        tuning.chosen_candidate([str(tmp_path / "elsewhere")])


def validated(cell: Cell, accuracy: float, tokens: float = 100.0) -> None:
    """What the last validation of a training leaves."""
    folder = Path(cell.commands[0].folder) / "eval" / "step-000040"
    folder.mkdir(parents=True)
    values = {"accuracy": accuracy, "avg_total_tokens": tokens, "turns": 2.0}
    (folder / "results.json").write_text(json.dumps({"datasets": {"dev": values}}))


def test_the_best_rate_of_each_row_is_kept_and_the_smaller_of_equal_ones(tmp_path: Path) -> None:
    settings = Settings(out=str(tmp_path))
    low, middle, high = plan.RATES
    for rate, accuracy in ((low, 0.4), (middle, 0.5), (high, 0.5)):
        validated(tuning.rate_cell("svr", rate, settings), accuracy)
    found = tuning.tuned_rates(settings, ["svr"])
    tuning.write_tuned(settings.out, found, {})
    assert found["svr"]["tried"][f"{low:g}"]["accuracy"] == 0.4
    tuning.write_tuned(settings.out, {"grpo": {"lr": 1e-3}}, {})
    chosen = {plan.CHOSEN: plan.CANDIDATE_RATE}
    assert tuning.read_rates(settings.out) == {"svr": middle, "grpo": 1e-3, **chosen}


def test_a_best_rate_at_an_end_of_the_grid_asks_for_the_next_one(tmp_path: Path) -> None:
    settings = Settings(out=str(tmp_path))
    low, middle, high = plan.RATES
    assert tuning.grid("svr", settings) == [low, middle, high]
    for rate, accuracy in ((low, 0.6), (middle, 0.5), (high, 0.4)):
        validated(tuning.rate_cell("svr", rate, settings), accuracy)
    assert tuning.grid("svr", settings) == [low / 2, low, middle, high]
    validated(tuning.rate_cell("svr", low / 2, settings), 0.55)
    assert tuning.grid("svr", settings) == [low / 2, low, middle, high]
    assert tuning.tuned_rates(settings, ["svr"])["svr"]["lr"] == low
    for rate, accuracy in ((low, 0.1), (middle, 0.2), (high, 0.3), (2 * high, 0.4)):
        validated(tuning.rate_cell("grpo", rate, settings), accuracy)
    assert tuning.grid("grpo", settings) == [low, middle, high, 2 * high, 4 * high]


def test_rows_that_take_another_rows_rate_ask_for_that_row(tmp_path: Path) -> None:
    settings = Settings(out=str(tmp_path))
    assert tuning.tuned_rows(settings, ["svr_400", "igrpo_turns", "warm_start"]) == ["igrpo", "svr"]


def test_a_candidates_figures_are_means_over_its_seeds(tmp_path: Path) -> None:
    settings = Settings(out=str(tmp_path), rates={"svr": 1e-3})
    for name in tuning.CANDIDATES:
        for seed in plan.CANDIDATE_SEEDS:
            validated(tuning.candidate_cell(name, seed, settings), seed / 100)
    mean = fmean(seed / 100 for seed in plan.CANDIDATE_SEEDS)
    for found in tuning.judged_candidates(settings).values():
        assert found["accuracy"] == pytest.approx(mean)


def test_without_the_chosen_layer_the_other_rows_are_run_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    rates = {name: {"lr": 1e-3} for name in plan.TUNED_ROWS}
    base = str(tmp_path / "miniature")
    for task in plan.BEDS:
        tuning.write_tuned(plan.out_of(base, task), rates, judged({"all": (0.9, 100)}))
    options = parser().parse_args(["--out", base, "--rows", "svr", "svr_plus"])
    names, lines = runnable(options, Settings(out=base), ("train",))
    assert names == ["svr"]
    assert lines[0].startswith("svr_plus: ")
    assert "is not the candidate 'all'" in lines[0]


def test_a_training_without_tuned_rates_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    nothing = ["--out", str(tmp_path), "--published", str(tmp_path), "--stage", "train"]
    assert main(nothing) == 2
    assert "no tuned learning rates" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no validation results; run --stage tune"):
        tuning.tuned_rates(Settings(out=str(tmp_path)), ["svr"])


def test_elsewhere_than_in_a_checkout_it_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--list"]) == 2
    assert "run this from the root of a checkout" in capsys.readouterr().err
