"""Ctrl-C and SIGTERM save a checkpoint, and the run resumes as if nothing had happened."""

import csv
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.core.types import Problem
from svr_lightning.training.logs import CSVLog
from svr_lightning.training.module import Rollout, SVRModule
from tests.commands import jsonl
from tests.small_fit import StopAt, data, module, same, saver, tiny, trainer, weights


class Cut(SVRModule):
    """Interrupted once: in a rollout, in a validation, or by a signal in an update or a save."""

    place: tuple[str, int] | None = None
    """Where, and after how many optimizer steps."""

    def _is_here(self, name: str) -> bool:
        here = self.place == (name, self.global_step)
        self.place = None if here else self.place
        return here

    def collect(self, problems: list[Problem]) -> Rollout:
        if self._is_here("rollout"):
            raise KeyboardInterrupt
        if self._is_here("rollout, SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().collect(problems)

    def training_step(self, rollout: Rollout, batch_idx: int) -> None:
        if self._is_here("update"):
            os.kill(os.getpid(), signal.SIGINT)
        super().training_step(rollout, batch_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._is_here("save"):
            os.kill(os.getpid(), signal.SIGINT)
        super().on_save_checkpoint(checkpoint)

    def validation_step(self, *args: Any, **options: Any) -> None:
        if self._is_here("validation"):
            raise KeyboardInterrupt
        super().validation_step(*args, **options)

    def test_step(self, *_: Any, **__: Any):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """As in a fresh process: other tests and Lightning leave handlers of their own."""
    fresh = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in fresh.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(folder: Path, place: tuple[str, int] | None = None, resume: Path | None = None) -> Cut:
    """Two epochs of three steps with three validations; checkpoints are saved at step 4 and 6."""
    one = trainer(
        folder,
        saver(4),
        max_epochs=2,
        limit_val_batches=1.0,
        val_check_interval=2,
        check_val_every_n_epoch=None,
    )
    model = module()
    model.__class__, model.place = Cut, place
    one.fit(model, data(train=tiny("train", limit=6)), ckpt_path=resume)
    assert one.global_step == 6
    return model


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, Cut]:
    """The run without an interrupt."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


@pytest.mark.parametrize(
    ("place", "saved"),
    [
        (("rollout", 0), 0),
        (("rollout, SIGTERM", 2), 2),
        (("update", 1), 2),
        (("validation", 2), 2),
        (("save", 4), 4),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_an_interrupted_run_saves_a_checkpoint_and_resumes_with_the_same_end(
    tmp_path, whole, caplog, place, saved
):
    with caplog.at_level("INFO"), pytest.raises((SystemExit, KeyboardInterrupt)):
        run(tmp_path, place)
    hint = f"interrupted after optimizer step {saved}; the same command with --ckpt_path last"
    assert hint in caplog.text
    if place[0].startswith("update"):  # a validation is due, and waits for the resumed run
        assert not (tmp_path / "eval").exists()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resumed = run(tmp_path, resume=tmp_path / "checkpoints" / "last.ckpt")
    folder, uncut = whole
    assert same(weights(resumed), weights(uncut))
    for step in (2, 4, 6):
        name = f"eval/step-{step:06d}/samples.jsonl"
        assert jsonl(tmp_path / name) == jsonl(folder / name)


def test_a_run_that_goes_on_beyond_its_end_takes_the_rate_of_the_longer_schedule(tmp_path):
    def last_rate(steps, resume=None):
        """The rate of the last step of a training that is stopped at its third, if not before."""
        folder = tmp_path / str(steps)
        stop = StopAt(min(steps, 3))
        one = trainer(folder, saver(), stop, max_steps=steps, logger=CSVLog(folder))
        one.fit(module(), data(), ckpt_path=resume)
        rows = csv.DictReader((folder / "metrics.csv").open())
        return [float(row["value"]) for row in rows if row["key"] == "train/lr"][-1]

    last_rate(2)  # its schedule ends near 0
    resumed = last_rate(5, tmp_path / "2" / "checkpoints" / "last.ckpt")
    assert resumed == last_rate(6)


def test_a_run_that_was_interrupted_before_it_began_names_no_checkpoint(
    tmp_path, caplog, monkeypatch
):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(SVRModule, "configure_model", interrupt)
    with caplog.at_level("INFO"), pytest.raises((SystemExit, KeyboardInterrupt)):
        run(tmp_path)
    assert "there is no checkpoint yet, so start the run again" in caplog.text
    assert not (tmp_path / "checkpoints").exists()


def test_sigterm_ends_an_evaluation_at_once(tmp_path):
    model = module()
    model.__class__ = Cut
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        trainer(tmp_path).test(model, data(test=[tiny("test", split="test", limit=6)]))
