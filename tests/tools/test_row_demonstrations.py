"""A warm start on a user's own questions and answers."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from experiments.warmstart import __main__ as command
from experiments.warmstart.rows import demonstrations
from svr_lightning.core.parsing import parse_self_check, self_check_format_score
from svr_lightning.core.types import Verdict
from svr_lightning.errors import ConfigError
from svr_lightning.tasks import get_task
from tests.commands import ROOT

ROWS = [
    {"question": "What is 12 + 30?", "answer": "42"},
    {"question": "Half of 7?", "answer": "\\frac{7}{2}"},
    {"question": "Which letter is x?", "answer": "y", "solution": "It is \\boxed{y}."},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return path


def test_answers_are_graded_as_they_are_labelled_and_checks_are_honest(file: Path) -> None:
    many = [*itertools.islice(demonstrations(file, "math").stream(1), 600)]
    task = get_task("math")
    problems = {row["question"]: task.from_row(row) for row in ROWS}
    verdicts: Counter[tuple[bool | None, Verdict]] = Counter()
    refined = 0
    for one in many:
        (problem,) = [p for q, p in problems.items() if q in one.messages[-1]["content"]]
        assert task.grade(one.completion, problem) is one.correct
        assert self_check_format_score(one.completion) == 1.0
        verdicts[one.correct, parse_self_check(one.completion).verdict] += 1
        refined += bool(one.draft)
        reasoned = "Which letter" in problem.question
        assert one.completion.startswith("<think>It is " if reasoned else "<answer>")
    right = sum(n for (correct, _), n in verdicts.items() if correct)
    assert 0.5 < right / len(many) < 0.8
    assert verdicts[True, Verdict.CORRECT] / right > 0.95
    assert verdicts[False, Verdict.CORRECT] / (len(many) - right) < 0.06
    assert 0.5 < refined / len(many) < 0.7


def test_a_task_whose_references_are_no_answers_is_refused(file: Path) -> None:
    file.write_text(json.dumps({"nums": [3, 5, 8], "target": 16}))
    with pytest.raises(ConfigError, match="its answers are not the references of its rows"):
        demonstrations(file, "countdown")


def test_a_language_model_is_taught_on_them(file: Path, tmp_path: Path) -> None:
    model = str(ROOT / "svr_lightning" / "tiny" / "arithmetic_policy")
    words = ["--rows", str(file), "--task", "math", "--model", model, "--rate", "1e-3"]
    losses = command.main([*words, "--out", str(tmp_path / "taught"), "--steps", "12"])
    assert losses[-1] < losses[0]
    AutoModelForCausalLM.from_pretrained(tmp_path / "taught")
