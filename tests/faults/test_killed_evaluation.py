"""An evaluation that is killed goes on where it was and leaves the files it would have left."""

import logging
import time
from pathlib import Path
from typing import Any

import torch

from svr_lightning.__main__ import main
from svr_lightning.core.stopping import Confident, RepeatedAnswer
from svr_lightning.training.config import EvaluationConfig
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.evaluating import PolicyModule, record_fingerprint
from svr_lightning.training.module import SVRModule
from svr_lightning.training.trainer import SVRTrainer
from tests import forked
from tests.commands import TINY, embedded, flags
from tests.small_fit import policy, tiny

PROBLEMS = 16


def arguments(folder: Path) -> list[str]:
    """Two turns of each problem, four problems at a time."""
    settings = {
        "trainer.default_root_dir": folder,
        "data.test": embedded(PROBLEMS),
        "model.evaluation.max_turns": 2,
        "model.evaluation.adaptive": "false",
        "model.engine.init_args.max_batch": 4,
        "trainer.enable_progress_bar": "false",
    }
    return ["test", *TINY, *flags(settings)]


def files(folder: Path) -> dict[str, bytes]:
    """Everything that an evaluation leaves."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def killed(folder: Path, journal: Path, after: int) -> bytes:
    """Kill -9 the command once it has finished ``after`` problems; returns its journal."""
    process = forked.start(folder / "log", *arguments(folder))
    until = time.monotonic() + 300
    while not journal.is_file() or journal.read_bytes().count(b"\n") <= after:
        assert process.exitcode is None, (folder / "log").read_text(errors="replace")
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.join()
    return journal.read_bytes()


def test_an_evaluation_killed_and_started_again_leaves_the_same_files(tmp_path, caplog):
    evaluation = tmp_path / "eval" / "test"
    assert main(arguments(tmp_path)) == 0
    whole = files(evaluation)
    assert sorted(whole) == ["results.json", "samples.jsonl"]
    assert whole["samples.jsonl"].count(b"\n") == PROBLEMS
    for file in evaluation.iterdir():
        file.unlink()
    journal = evaluation / ".journal-0.jsonl"
    content = killed(tmp_path, journal, after=3)
    finished = content.count(b"\n") - 1
    assert 3 <= finished < PROBLEMS
    assert sorted(files(evaluation)) == [".journal-0.jsonl"]
    journal.write_bytes(content + b'{"dataset": "held_out", "id": "tor')  # the line being written
    with caplog.at_level(logging.INFO):
        assert main(arguments(tmp_path)) == 0
    assert f"continuing after {finished} problems" in caplog.text
    assert files(evaluation) == whole


def prints(tmp_path, monkeypatch, limit: int = 2, **changes: Any) -> tuple[SVRModule, str]:
    """A module and the fingerprint of its evaluation of the test set."""
    data = SVRDataModule(test=[tiny("held_out", split="test", limit=limit)])
    module = SVRModule(policy=policy(), **changes)
    module.trainer = SVRTrainer(
        accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_checkpointing=False
    )
    module.configure_model()
    monkeypatch.setattr(PolicyModule, "data", data)
    return module, record_fingerprint(module, "test", module.applied_evaluation)


def test_whatever_decides_a_record_is_in_the_fingerprint(tmp_path, monkeypatch):
    module, first = prints(tmp_path, monkeypatch)
    assert prints(tmp_path, monkeypatch)[1] == first
    # What the threshold is counts, not where it comes from.
    assert prints(tmp_path, monkeypatch, evaluation=EvaluationConfig(stop=Confident()))[1] == first
    rules = [
        EvaluationConfig(stop=Confident(threshold=0.8)),
        EvaluationConfig(stop=RepeatedAnswer()),
    ]
    others = [
        *(prints(tmp_path, monkeypatch, evaluation=rule)[1] for rule in rules),
        prints(tmp_path, monkeypatch, limit=3)[1],
        prints(tmp_path, monkeypatch, seed=1)[1],
    ]
    with torch.no_grad():
        next(module.policy.parameters()).mul_(1.01)
    others.append(record_fingerprint(module, "test", module.applied_evaluation))
    monkeypatch.setattr(PolicyModule, "global_step", 7)
    others.append(record_fingerprint(module, "test", module.applied_evaluation))
    assert len({first, *others}) == 7
