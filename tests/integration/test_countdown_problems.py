"""The paper's Countdown split, and problems made on the spot."""

import json
from itertools import permutations, product
from pathlib import Path

import pytest

import svr_lightning as svr
from svr_lightning.errors import ConfigError
from svr_lightning.tasks.countdown_problems import (
    CountdownGenerator,
    countdown_split,
    generate_rows,
    reachable,
)
from svr_lightning.training.sources import DataSource, load_problems


def test_the_countdown_split_is_what_the_datasets_package_draws() -> None:
    datasets = pytest.importorskip("datasets")
    pool = 51_500
    table = datasets.Dataset.from_dict({"row": range(pool)})
    shuffled = table.shuffle(seed=42)["row"][:]
    rest = datasets.Dataset.from_dict({"row": sorted(shuffled[50_000:])})
    assert countdown_split(pool, "countdown_train") == shuffled[:50_000]
    assert countdown_split(pool, "countdown_eval") == rest.shuffle(seed=0)["row"][:1_000]


def test_the_countdown_split_of_the_whole_hub_data_set_stays_what_it_is() -> None:
    train = countdown_split(490_364, "countdown_train")
    held_out = countdown_split(490_364, "countdown_eval")
    assert (len(set(train)), len(set(held_out))) == (50_000, 1_000)
    assert not set(train) & set(held_out)
    # Recorded once: a numpy that draws differently would silently change the training set.
    assert train[:5] == [413581, 34601, 99368, 4614, 369263]
    assert held_out[:5] == [148720, 207440, 460362, 154607, 398162]


def test_selected_rows_keep_their_number_in_the_whole_data_set(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(f'{{"nums": [{i}, 1], "target": {i}}}\n' for i in range(51_000)))
    source = DataSource(
        name="cd", task="countdown", path=str(path), select="countdown_eval", limit=3
    )
    problems = load_problems(source)
    assert [problem.id for problem in problems] == [f"cd/{p.reference}" for p in problems]
    path.write_text('{"nums": [1, 2], "target": 3}\n' * 2)
    few = DataSource(name="few", task="countdown", path=str(path), select="countdown_train")
    with pytest.raises(ConfigError, match="at least 51000 rows and there are 2; point path at"):
        load_problems(few)


def solve(numbers: list[int], target: int) -> str | None:
    """An expression for the target by brute force, over every order, operator and shape."""
    shapes = {
        3: ("({0}{3}{1}){4}{2}", "{0}{3}({1}{4}{2})"),
        4: (
            "(({0}{4}{1}){5}{2}){6}{3}",
            "({0}{4}({1}{5}{2})){6}{3}",
            "({0}{4}{1}){5}({2}{6}{3})",
            "{0}{4}(({1}{5}{2}){6}{3})",
            "{0}{4}({1}{5}({2}{6}{3}))",
        ),
    }
    task = svr.get_task("countdown")
    problem = task.from_row({"nums": numbers, "target": target})
    for order in permutations(numbers):
        for operators in product("+-*/", repeat=len(numbers) - 1):
            for shape in shapes[len(numbers)]:
                expression = shape.format(*order, *operators)
                if task.grade(f"<answer>{expression}</answer>", problem):
                    return expression
    return None


def test_generated_problems_can_be_solved_with_all_their_numbers() -> None:
    source = DataSource(name="made", task="countdown", generate=CountdownGenerator(count=12))
    for problem in load_problems(source):
        assert solve(problem.payload["nums"], int(problem.reference)), problem


def test_generated_problems_look_like_the_hubs() -> None:
    rows = generate_rows(CountdownGenerator(count=2000))
    sizes = [len(row["nums"]) for row in rows]
    assert set(sizes) == {3, 4}
    assert 850 < sizes.count(3) < 1150  # a half, give or take six standard deviations
    assert {row["target"] for row in rows} == set(range(10, 101))
    assert all(1 <= number <= 99 for row in rows for number in row["nums"])
    assert len({(row["target"], *sorted(row["nums"])) for row in rows}) == 2000


def test_a_generated_stream_does_not_depend_on_how_much_of_it_is_taken() -> None:
    rows = generate_rows(CountdownGenerator(count=30, seed=7))
    assert generate_rows(CountdownGenerator(count=20, start=10, seed=7)) == rows[10:]
    assert generate_rows(CountdownGenerator(count=30, seed=8)) != rows


def test_real_problems_lie_within_what_the_generator_can_reach(shared_data: Path) -> None:
    with (shared_data / "countdown.jsonl").open() as lines:
        rows = [json.loads(line) for line in list(lines)[:500]]
    assert all(row["target"] in reachable(row["nums"]) for row in rows)


def test_a_generator_that_runs_out_of_problems_says_so() -> None:
    generator = CountdownGenerator(count=99, sizes=(2,), max_number=3, min_target=3, max_target=9)
    source = DataSource(name="made", task="countdown", generate=generator)
    # 1,2: 3 - 1,3: 4 3 - 2,2: 4 - 2,3: 5 6 - 3,3: 6 9 are all there is.
    with pytest.raises(ConfigError, match=r"'made' .*found 8 different problems and then no furth"):
        load_problems(source)
