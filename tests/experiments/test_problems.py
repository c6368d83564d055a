"""The problems of the embedded tasks, as they are made and as they ship."""

import itertools
import json

from experiments.problems import countdown
from experiments.problems.__main__ import FOLDER, data_sets
from experiments.problems.countdown import LARGEST_NUMBER, SPLITS
from experiments.problems.word_problems import SIZES, STORIES, universe


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
