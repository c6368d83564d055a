"""What a policy writes reaches terminals and files as text, and as nothing else."""

import json
from types import SimpleNamespace

import pytest

from svr_lightning.callbacks.rollout_log import RolloutLog, print_extremes
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Problem
from svr_lightning.evaluation.evaluator import trajectory_record
from svr_lightning.evaluation.printing import TurnPrinter, print_outcome
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.svr import SVR
from tests.recipes import play

HOSTILE = [
    "\x1b[2J\x1b[31mred\x9b31m\x07\x08",
    "fine\rfake",
    "[bold]x[/nope] [link=file:///etc/passwd]y",
    "\u202egnorw\u202c",
    "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg",
    "\x00\ud800",
    '"}\n{"schema_version": 1, "step": 999}\n',
    "=1+1",
]
TEXTS = [f"{text}<answer>{text}</answer>" for text in HOSTILE]
each_text = pytest.mark.parametrize("text", TEXTS, ids=ascii)


def group(text: str) -> Group:
    """Two trajectories of a problem that is hostile itself."""
    problem = Problem(
        id=text, task="countdown", question=text, reference="8", payload={"nums": [3, 5]}
    )
    found, _ = play(SVR(group_size=2, horizon=1), lambda *_: text, problem)
    return found


@each_text
def test_a_terminal_is_shown_no_control_character_and_no_markup_is_obeyed(text, capsys):
    found = group(text)
    one = found.trajectories[0]
    TurnPrinter(name_problems=True)(one.problem, one.turns[0])
    print_outcome(trajectory_record(one, "toy"), Confident())
    print_extremes([found], 1, SVR())
    shown = capsys.readouterr().out
    assert all(character == "\n" or character.isprintable() for character in shown)
    for piece in ("[bold]x[/nope]", "[link=file:///etc/passwd]y", "=1+1"):
        assert (piece in shown) == (piece in text)


@each_text
def test_the_rollouts_file_holds_one_line_per_trajectory_that_reads_back(text, tmp_path):
    log = RolloutLog(every=0)
    trainer = SimpleNamespace(default_root_dir=tmp_path, is_global_zero=True, global_step=1)
    module = SimpleNamespace(recipe=SVR())
    rollout = SimpleNamespace(groups=[group(text)])
    log.on_train_start(trainer, module)
    log.on_train_batch_start(trainer, module, rollout, 0)
    lines = (tmp_path / "rollouts.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line)["turns"][0]["text"] for line in lines[:-1]] == [text] * 2
    assert lines[-1] == b""
