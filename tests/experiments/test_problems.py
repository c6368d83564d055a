"""The problems of the embedded tasks, as they are made and as they ship."""

import itertools
import json

import pytest

from experiments.problems import countdown, word_problems
from experiments.problems.__main__ import FOLDER, data_sets
from experiments.problems.countdown import LARGEST_NUMBER, MIN_SOLUTIONS, SPLITS, search_order
from experiments.problems.word_problems import LARGEST_VALUE, SIZES, STORIES, solve, universe
from svr_lightning.tasks import get_task

COUNTDOWN, GSM8K = get_task("countdown"), get_task("gsm8k")


def test_the_data_sets_that_ship_are_made_by_this_code():
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*.jsonl")}
    made = {f"{name}.jsonl": rows for name, rows in data_sets().items()}
    assert made.keys() == files.keys()
    for name, path in files.items():
        assert path.read_text() == "".join(f"{json.dumps(row)}\n" for row in made[name]), name


def _numbers(split: str) -> set[tuple[int, ...]]:
    return {tuple(sorted(row["nums"])) for row in countdown.rows(split, orders=6)}


def test_splits_share_no_numbers():
    """Not even with another target, in any order."""
    train, dev, test, outside = map(_numbers, SPLITS)
    assert not train & (dev | test | outside)
    assert not dev & test
    assert all(max(numbers) > LARGEST_NUMBER for numbers in outside)
    assert all(max(numbers) <= LARGEST_NUMBER for numbers in train | dev | test)


def test_no_story_has_the_same_quantities_in_two_splits():
    drawn = [
        {(story.name, *sorted(numbers)) for story in STORIES for numbers in universe(story, split)}
        for split in SIZES
    ]
    assert all(drawn)
    assert not any(one & other for one, other in itertools.combinations(drawn, 2))


@pytest.mark.parametrize("split", SPLITS)
def test_every_problem_has_several_solutions_that_the_task_accepts(split):
    for row in countdown.rows(split, orders=1):
        problem = COUNTDOWN.from_row(row)
        options = search_order(tuple(row["nums"]))
        solutions = [option for option in options if option.value == row["target"]]
        assert len({option.expression for option in solutions}) >= MIN_SOLUTIONS
        for option in solutions:
            assert COUNTDOWN.grade(f"<answer>{option.expression}</answer>", problem)


def test_gsm8k_reads_and_grades_the_rows():
    for row in word_problems.rows("test"):
        problem = GSM8K.from_row(row)
        value = int(problem.reference)
        assert 0 < value <= LARGEST_VALUE
        assert GSM8K.grade(rf"<answer>\boxed{{{value}}}</answer>", problem)
        assert not GSM8K.grade(rf"<answer>\boxed{{{value + 1}}}</answer>", problem)


def test_a_step_whose_value_is_no_small_positive_integer_is_refused():
    for step, a, b in (("a - b", 3, 3), ("a / b", 7, 2), ("a / b", 7, 0), ("a * b", 10, 10)):
        with pytest.raises(ArithmeticError):
            solve(f"x {step}", {"a": a, "b": b})
    steps = solve("x a * b; y #1 - a", {"a": 3, "b": 4})
    assert [step.text for step in steps] == ["x 3*4=12", "y 12-3=9"]
