"""What a terminal shows while a run goes on."""

import re
from itertools import count

import pytest

from svr_lightning.callbacks import Progress as TrainingProgress
from svr_lightning.display import Progress
from svr_lightning.engines.base import Engine
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.igrpo import IGRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.collect import collect_rollout
from tests.scripted import (
    DECODING,
    PROBLEMS,
    RENDERER,
    RUN_SEED,
    STEP,
    at_places,
    evaluator,
    says,
    words,
)
from tests.scripted_engine import ScriptedEngine
from tests.small_fit import data, module, trainer


@pytest.mark.parametrize("name", ["gsm8k", "x" * 200, "\x1b[2J"])
def test_a_line_fits_a_terminal_whatever_the_numbers(name, capsys):
    progress = Progress(name, 10**6)
    with progress.showing():
        progress.turns, progress.in_flight, progress.tokens = 10**7, 10**4, 10**12
    for line in re.split(r"[\r\n]+", capsys.readouterr().out):
        assert len(line) <= 80
        assert line.isprintable()


def test_an_evaluation_counts_its_turns_and_the_tokens_that_were_generated(monkeypatch, capsys):
    made = []

    class Kept(Progress):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("svr_lightning.evaluation.evaluator.Progress", Kept)
    said = words(says("8+4-2", "UNSURE", 0.5))
    evaluator(at_places(lambda *_: said), max_turns=2).solve(PROBLEMS, "toy")
    (progress,) = made
    assert (progress.done, progress.total, progress.turns, progress.in_flight) == (3, 3, 6, 0)
    assert progress.tokens == 6 * len(said)
    assert re.search(r"toy 3/3, .* tok/s, 6 turns, 0 in flight", capsys.readouterr().out)


def rolled(engine: Engine, recipe: Recipe) -> None:
    settings = {"sampling": DECODING, "seed": RUN_SEED, "step": STEP, "show_progress": True}
    collect_rollout(engine, recipe, PROBLEMS[:1], renderer=RENDERER, **settings)


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda engine: evaluator(engine, max_turns=2).solve(PROBLEMS, "toy"), "toy 0/3"),
        (lambda engine: rolled(engine, SVR(group_size=3, horizon=2)), "rollout 0/3"),
        (lambda engine: rolled(engine, IGRPO(group_size=3)), "rollout 0/1"),  # drafts, then these
    ],
)
def test_the_turns_of_unfinished_problems_count_for_the_time_that_is_left(
    work, name, monkeypatch, capsys
):
    clock = count(0.0, 30.0)  # as often as a line is shown
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))
    said = words(says("8+4-2", "CORRECT", 0.9))
    engine = ScriptedEngine(lambda _: said)
    engine.sync(None, STEP)
    work(engine)
    shown = re.findall(rf"{name}, (\S+), (\S+) left", capsys.readouterr().out)
    assert shown[0] == ("00:00", "?")
    elapsed, left = shown[-1]
    assert elapsed == left  # one of the two turns of each


def test_a_training_shows_its_steps_in_eighty_columns_unless_it_is_told_not_to(tmp_path, capsys):
    trainer(tmp_path, TrainingProgress(), max_steps=1).fit(module(), data())
    assert not re.search("step 1|rollout 0", capsys.readouterr().out)
    run = trainer(tmp_path, max_steps=2, enable_progress_bar=True)
    run.fit(module(), data())
    lines = capsys.readouterr().out.split("\n")
    assert "".join(lines).isprintable()  # a file gets no codes that move a cursor
    *_, line = (row for row in lines if row.startswith("step 2/2"))  # a slow one shows it twice
    times = r"\d\d:\d\d, 00:00 left"
    assert re.match(rf"step 2/2, {times}, reward -?\d+\.\d\d, accuracy \d\.\d\d", line)
    assert len(line) <= 80
