"""What a terminal shows while a run goes on."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from svr_lightning import display
from svr_lightning.callbacks import Progress as TrainingProgress
from svr_lightning.display import Progress, status_line
from tests.scripted import PROBLEMS, at_places, evaluator, says, words
from tests.small_fit import data, module, trainer


def test_lines_stay_in_place_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr("rich._console", console)
    with status_line(lambda: "step 1/3", always=False):
        with status_line(lambda: "x" * 200, always=False):
            display._OPEN[0].refresh()
        both = screen.getvalue()
    rows = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", both))
    place = next(number for number, row in enumerate(rows) if row.startswith("xxx"))
    assert rows[place - 1].startswith("step 1/3")
    assert max(map(len, rows)) == 80  # cut, not wrapped
    after = screen.getvalue().removeprefix(both)
    assert "step 1/3" in after
    assert "xxx" not in after


def progress(monkeypatch: pytest.MonkeyPatch, name: str = "a", **state: float) -> str:
    """The line of a progress in a state; ``seconds`` since the start, ``silent`` ones of them."""
    seconds, silent = state.pop("seconds"), state.pop("silent", 0.0)
    before = int(state.pop("before", 0))
    one = Progress(name, int(state.pop("total")), done=before)
    monkeypatch.setattr(display.time, "monotonic", lambda: 0.0)
    with one.showing(lambda: "try 2 of 6"):
        vars(one).update({"turns": 240, "in_flight": 8, "tokens": 9000} | state)
        one._last = seconds - silent
        monkeypatch.setattr(display.time, "monotonic", lambda: seconds)
        return one.line()


def test_a_line_fits_a_terminal_whatever_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    line = progress(monkeypatch, "gsm8k", done=50, total=200, seconds=30.0)
    assert line == "gsm8k  50/200 done, 240 turns, 8 in flight, 300 tok/s, 0:30, 1:30 left"
    huge = {"turns": 10**7, "in_flight": 10**4, "tokens": 10**12}
    for name in ("x" * 200, "\x1b[2J"):
        line = progress(monkeypatch, name, done=1, total=10**6, seconds=3600.0, **huge)
        assert len(line) <= 80
        assert line.isprintable()
    line = progress(monkeypatch, done=0, total=3, seconds=0.0)
    assert line.endswith("0 tok/s, 0:00, ? left")


def test_the_time_left_counts_what_this_start_has_done(monkeypatch: pytest.MonkeyPatch) -> None:
    line = progress(monkeypatch, done=344, before=19, total=1319, seconds=100.0)
    assert line.endswith("1:40, 5:00 left")  # 975 are left; 325 took 100 s


def test_a_silent_server_is_named_with_its_tries_and_without_an_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = {"done": 50, "total": 200, "seconds": 75.0}
    line = progress(monkeypatch, "gsm8k", silent=45.0, **state)
    assert line == "gsm8k  50/200 done, 240 turns, 8 in flight, no answer for 0:45, try 2 of 6"
    assert "no answer" not in progress(monkeypatch, silent=29.0, **state)
    assert "no answer" not in progress(monkeypatch, silent=45.0, in_flight=0, **state)


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
