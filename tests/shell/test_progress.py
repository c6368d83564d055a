"""What a terminal shows while a run goes on."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live
from svr_lightning.callbacks import Progress as TrainingProgress

from svr_lightning import display
from svr_lightning.display import Progress, StatusLines, status_line
from tests.scripted import PROBLEMS, at_places, evaluator, says, words
from tests.small_fit import data, module, trainer


def test_several_lines_stay_in_place_and_leave_in_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(display, "Live", lambda **how: Live(console=console, **how))
    lines = StatusLines()
    outer = lines.show(lambda: "step 1/3")
    inner = lines.show(lambda: "x" * 200)
    outer.__enter__()
    inner.__enter__()
    assert lines._live is not None
    lines._live.refresh()
    outer.__exit__(None, None, None)
    assert lines._live is not None
    inner.__exit__(None, None, None)
    assert lines._live is None
    text = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", screen.getvalue())
    assert "step 1/3" in text
    assert max(map(len, re.split(r"[\r\n]+", text))) == 80  # cut, not wrapped


@pytest.mark.parametrize("always", [True, False])
def test_elsewhere_a_short_run_says_one_line_or_nothing(
    always: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with status_line(lambda: "done", always=always):
        pass
    assert capsys.readouterr().out == ("done\n" if always else "")


def test_elsewhere_a_long_run_says_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "_EVERY", 0.01)
    shown = iter(range(10**6))
    with status_line(lambda: f"line {next(shown)}", always=False):
        while next(shown) < 10:
            pass
        display.time.sleep(0.2)
    assert len(capsys.readouterr().out.splitlines()) >= 3


def test_an_evaluation_counts_its_turns_and_the_tokens_that_were_generated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Progress] = []

    class Kept(Progress):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr("svr_lightning.evaluation.evaluator.Progress", Kept)
    said = words(says("8+4-2", "UNSURE", 0.5))
    evaluator(at_places(lambda *_: said), max_turns=2).solve(PROBLEMS, "toy")
    (progress,) = made
    assert (progress.done, progress.total, progress.turns, progress.in_flight) == (3, 3, 6, 0)
    assert progress.tokens == 6 * len(said)
    assert progress.line().startswith("toy  3/3 done, 6 turns, 0 in flight, ")


def test_a_training_shows_its_steps_in_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trainer(tmp_path, TrainingProgress(), max_steps=2, enable_progress_bar=True)
    run.fit(module(), data())
    (line,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith("step ")]
    assert re.fullmatch(r"step 2/2, reward -?\d+\.\d\d, accuracy \d\.\d\d, .*\d:\d\d left", line)
    assert len(line) <= 80
