"""docs/metrics.md names every key that a run logs, and no other."""

import json
import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from svr_lightning.__main__ import main
from tests.commands import SMALL, flags, logged
from tests.pages import page, section, tables

GLOSSARY = page("docs/metrics.md")
PLACES = {"<t>": "[0-9]+", "<stage>": "(?:val|test)", "<dataset>": "[^/]+"}
TINY = {"task": "countdown", "path": "embedded:countdown-tiny", "limit": 5}


def rows(heading: str) -> list[list[str]]:
    """The cells of the one table under a heading, without its head."""
    (table,) = tables(section(GLOSSARY, heading))
    return table[1:]


def pattern(key: str) -> re.Pattern[str]:
    text = re.escape(key)
    for place, expression in PLACES.items():
        text = text.replace(re.escape(place), expression)
    return re.compile(text)


ELSEWHERE = {"time/wait", "train/reward/long_output"}
"""Keys of several processes and of a reward that is off: they have tests of their own."""
KEYS = [row[0].strip("`") for row in rows("## Keys") if row[0].startswith("`")]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Two optimizer steps with a validation on two sets, then a test on two."""
    folder = tmp_path_factory.mktemp("glossary") / "run"
    sets = [{"name": name, "split": "dev", **TINY} for name in ("dev", "math500")]
    settings = {
        "trainer.default_root_dir": folder,
        "trainer.max_steps": 2,
        "trainer.val_check_interval": 1,
        "data.val": json.dumps(sets),
        "data.test": json.dumps(sets),
    }
    arguments = [*SMALL, *flags(settings)]
    assert main(["fit", *arguments]) == 0
    assert main(["test", *arguments]) == 0
    return folder


def shown(run: Path) -> set[str]:
    """What TensorBoard shows of a training and of an evaluation in its folder."""
    return {*EventAccumulator(str(run / "logs")).Reload().Tags()["scalars"]}


def test_every_logged_key_is_in_the_glossary(run):
    known = [pattern(key) for key in KEYS]
    assert {key for key in shown(run) if not any(p.fullmatch(key) for p in known)} == set()


def test_the_file_has_what_tensorboard_shows_of_the_training(run):
    assert {*logged(run)} == {key for key in shown(run) if not key.startswith("test/")}


def test_every_key_of_the_glossary_is_logged(run):
    found = shown(run)
    absent = {key for key in KEYS if not any(pattern(key).fullmatch(name) for name in found)}
    assert absent == ELSEWHERE
    stages = {tuple(key.split("/")[:2]) for key in found if key.split("/")[0] in ("val", "test")}
    sets = ("dev", "math500", "all", "math")
    assert stages == {(stage, name) for stage in ("val", "test") for name in sets}
