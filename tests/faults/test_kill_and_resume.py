"""kill -9 at any moment, the same command with --ckpt_path last: the end state is the same."""

import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.faults.runs import differences, resume, start, wait_for
from tests.forked import wait

ALL_WEIGHTS = ()
ADAPTERS = ("--model.policy.lora.r", "4", "--model.reference.every", "0")


@pytest.fixture(scope="module")
def options(request) -> tuple[str, ...]:
    """What trains, as a test asks for it."""
    if request.param:
        pytest.importorskip("peft")
    return tuple(request.param)


@pytest.fixture(scope="module")
def uninterrupted(options: tuple[str, ...], tmp_path_factory) -> tuple[Path, float]:
    """The end state to reach, and how long one optimizer step takes, validations included."""
    folder = tmp_path_factory.mktemp("resume") / "whole"
    process = start(folder, *options)
    wait_for(folder / "metrics.csv", process)
    began = time.monotonic()
    assert wait(process) == 0
    return folder, (time.monotonic() - began) / 5  # from the end of step 1 to that of step 6


@pytest.mark.parametrize("options", [ALL_WEIGHTS, ADAPTERS], indirect=True)
def test_a_run_killed_and_resumed_ends_like_one_that_was_not(options, uninterrupted, tmp_path):
    whole, step_seconds = uninterrupted
    folder = tmp_path / "killed"
    process = start(folder, *options)
    wait_for(folder / "metrics.csv", process, "\n3,train/loss,")
    time.sleep(0.5 * step_seconds)  # somewhere within step 4, of 6
    process.kill()
    assert wait(process) == -signal.SIGKILL
    assert not (folder / "policy").exists()
    assert wait(resume(folder, *options)) == 0
    assert differences(whole, folder) == []


@pytest.mark.parametrize("options", [ALL_WEIGHTS], indirect=True)
def test_a_validation_is_made_up_for_where_a_kill_cut_it_off(uninterrupted, tmp_path):
    folder = tmp_path / "killed"
    evaluation = folder / "eval" / "step-000004"
    _kill_at(evaluation / ".journal-0.jsonl", start(folder))  # within the validation
    _kill_at(evaluation / "results.json", resume(folder))  # right behind it
    assert wait(resume(folder)) == 0
    assert differences(uninterrupted[0], folder) == []
    (evaluation / "more.json").write_text("{}")
    assert differences(uninterrupted[0], folder) == ["eval/step-000004/more.json"]


def _kill_at(path: Path, process: BaseProcess) -> None:
    """Kill a run the moment that a file appears."""
    wait_for(path, process)
    process.kill()
    process.join()
