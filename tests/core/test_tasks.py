"""Finding tasks: by name, by class path, and again from a problem's task."""

import re
import sys
from collections.abc import Iterator

import pytest

import svr_lightning as svr
from svr_lightning.core.prompts import MATH_ROLE
from svr_lightning.tasks import TASKS, get_task
from svr_lightning.tasks.base import GradingError
from svr_lightning.tasks.grading import Label, label

MODULE = """
from svr_lightning.core.prompts import AnswerStyle
from svr_lightning.core.types import Problem
from svr_lightning.tasks.base import Task
from svr_lightning.tasks.countdown import Countdown

class Echo(Task):
    style = AnswerStyle(role="You are an echo.", request="it", reminder="it", draft_limit=9)

    def from_row(self, row):
        return Problem(id="", task=self.name, question="?", reference=row["words"])

    def extract_answer(self, completion):
        return completion or None

    def grade(self, completion, problem):
        return completion == " ".join(problem.reference)

class Nameless(Echo):
    name = "nameless"

class Double(Countdown):
    name = "countdown"

class NotATask:
    pass

class Broken(Task):
    pass

class Lenient(Countdown):
    def grade(self, completion, problem):
        return True
"""


@pytest.fixture
def module(tmp_path, monkeypatch) -> Iterator[str]:
    (tmp_path / "echo_tasks.py").write_text(MODULE)
    (tmp_path / "raises.py").write_text("raise RuntimeError('no luck')")
    monkeypatch.syspath_prepend(tmp_path)
    yield "echo_tasks"
    sys.modules.pop("echo_tasks", None)


def test_the_three_tasks_have_names_and_the_papers_role():
    assert list(TASKS) == ["countdown", "gsm8k", "math"]
    for name, task in TASKS.items():
        assert get_task(name) is svr.get_task(name) is task
        assert task.style.role == MATH_ROLE
        assert task.columns[-1][0] == "id"


def test_a_class_path_makes_a_task_that_its_problems_find_again(module):
    task = get_task(f"{module}.Echo")
    assert task.name == f"{module}.Echo"
    assert get_task(task.from_row({"words": ["a"]}).task) is task
    assert task.system_prompt.startswith("You are an echo.\n")
    assert (task.format_score("x"), task.format_score("")) == (1.0, 0.0)


def test_a_subclass_of_a_task_grades_its_own_problems(module):
    task = get_task(f"{module}.Lenient")
    problem = task.from_row({"nums": [1, 2], "target": 3})
    assert get_task(problem.task) is task
    assert task.grade("three", problem)


def test_a_class_that_is_defined_again_is_made_again(module):
    first = get_task(f"{module}.Echo")
    sys.modules.pop(module)
    assert get_task(f"{module}.Echo") is not first


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("chess", "unknown task 'chess'; known: countdown, gsm8k, math, or a class path like"),
        ("echo_tasks.Nothing", "unknown task 'echo_tasks.Nothing'"),
        ("no_such_module.Task", "'no_such_module.Task' cannot be imported: No module named"),
        ("raises.Task", "'raises.Task' cannot be imported: no luck"),
        ("echo_tasks.NotATask", "'echo_tasks.NotATask' is not a subclass of svr_lightning.tasks"),
        ("echo_tasks.Broken", "'echo_tasks.Broken' cannot be made: Can't instantiate abstract"),
        ("echo_tasks.Nameless", "Nameless: name = 'nameless' does not lead to this class; leave"),
        ("echo_tasks.Double", "Double: name = 'countdown' does not lead to this class; leave it"),
        ("os.system", "'os.system' is not a subclass"),
        ("", "unknown task ''"),
    ],
)
def test_what_is_no_task_is_refused_in_one_line(module, spec, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        get_task(spec)
    assert "\n" not in str(caught.value)


def test_an_answer_that_cannot_be_graded_is_wrong_and_says_why_and_other_errors_are_raised(
    monkeypatch, caplog
):
    def grade(_, completion, __):
        raise GradingError("the sandbox is gone") if completion == "?" else KeyError(completion)

    task = get_task("countdown")
    problem = task.from_row({"id": "1", "nums": [1, 2], "target": 3})
    monkeypatch.setattr(type(task), "grade", grade)
    found = label(task, "?", problem)
    assert found == Label(correct=False, error="the sandbox is gone")
    assert "problem 1: counted as wrong, not graded: the sandbox is gone" in caplog.text
    with pytest.raises(KeyError):
        label(task, "!", problem)
