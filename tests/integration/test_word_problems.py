"""The embedded word problems and the policy that ships for them."""

import re
from pathlib import Path
from typing import get_args

import pytest

from svr_lightning import tiny
from svr_lightning.tasks import get_task
from svr_lightning.tiny.word_problems import (
    LARGEST_VALUE,
    QUANTITIES,
    SHIFTED,
    SIZES,
    STORIES,
    Split,
    generate,
    solve,
    universe,
)

SHIPPED = Path(tiny.__file__).parent / "arithmetic_policy"
GSM8K = get_task("gsm8k")
SPLITS = get_args(Split)


def _clusters(split: Split) -> set[str]:
    """Story and sorted quantities of everything that may ever be drawn from a split."""
    return {
        "-".join([story.name, *map(str, sorted(numbers))])
        for story in STORIES
        for numbers in universe(story, split)
    }


def test_no_story_has_the_same_quantities_in_two_splits():
    seen = {split: _clusters(split) for split in SPLITS}
    for split in SPLITS:
        assert seen[split]
        for other in set(SPLITS) - {split}:
            assert not seen[split] & seen[other]


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_of_their_split_and_the_same_on_every_call(split):
    rows = generate(split)
    assert rows == generate(split)
    assert len(rows) == SIZES[split]
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({row["question"] for row in rows}) == len(rows)
    assert {row["cluster"] for row in rows} <= _clusters(split)
    if split != "train":
        assert len({row["cluster"] for row in rows}) == len(rows)
    assert {row["cluster"].split("-")[0] for row in rows} == {story.name for story in STORIES}


def test_only_the_shifted_split_leaves_the_training_range():
    for split in SPLITS:
        for story in STORIES:
            for numbers in universe(story, split):
                large = [number for number in numbers if number in SHIFTED]
                assert len(large) == (split == "shifted")
                assert all(number in QUANTITIES for number in numbers if number not in large)


def test_answers_agree_with_the_text_of_the_question():
    rows = [row for split in SPLITS for row in generate(split) if "pens-" in row["cluster"]]
    assert len(rows) > 100
    for row in rows:
        boxes, pens, given = (
            int(re.search(pattern, row["question"])[1])
            for pattern in (r"(\d+) boxes", r"of (\d+) pens", r"gives (\d+)")
        )
        assert row["answer"] == f"#### {boxes * pens - given}"


def test_gsm8k_reads_and_grades_the_rows():
    for row in generate("test"):
        problem = GSM8K.from_row(row)
        value = int(problem.reference)
        assert 0 < value <= LARGEST_VALUE
        assert GSM8K.grade(rf"<answer>\boxed{{{value}}}</answer>", problem)
        assert not GSM8K.grade(rf"<answer>\boxed{{{value + 1}}}</answer>", problem)


def test_a_step_whose_value_is_no_small_positive_integer_is_refused():
    assert solve(["x a - b"], {"a": 3, "b": 3}) is None
    assert solve(["x a / b"], {"a": 7, "b": 2}) is None
    assert solve(["x a / b"], {"a": 7, "b": 0}) is None
    assert solve(["x a * b"], {"a": 10, "b": 10}) is None
    steps = solve(["x a * b", "y #1 - a"], {"a": 3, "b": 4})
    assert [step.text for step in steps] == ["x 3*4=12", "y 12-3=9"]
