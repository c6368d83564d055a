"""Seeds that follow from what a draw is for."""

import itertools

import pytest

from svr_lightning.core.seeds import derive_seed

BASE = {
    "run_seed": 42,
    "step": 7,
    "problem_id": "train-17",
    "sample": 3,
    "turn": 2,
    "attempt": 1,
    "purpose": "generate",
}
KNOWN = 7978055036542464949
"""The first eight bytes of sha256 over the values above with a NUL between each two, halved."""


def seed(**changes: object) -> int:
    arguments = {**BASE, **changes}
    return derive_seed(arguments.pop("run_seed"), **arguments)  # type: ignore[arg-type]


def test_a_seed_is_the_same_for_ever() -> None:
    assert seed() == KNOWN


@pytest.mark.parametrize(
    "change",
    [
        {"run_seed": 43},
        {"step": 8},
        {"problem_id": "train-18"},
        {"sample": 4},
        {"turn": 3},
        {"attempt": 2},
        {"purpose": "resample"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_argument_changes_the_seed(change: dict[str, object]) -> None:
    assert seed(**change) != seed()


def test_numbers_that_read_alike_side_by_side_are_kept_apart() -> None:
    seeds = {
        seed(sample=1, turn=11),
        seed(sample=11, turn=1),
        seed(problem_id="train-1", sample=71),
        seed(problem_id="train-17", sample=1),
    }
    assert len(seeds) == 4


def test_the_draws_of_a_whole_run_never_share_a_seed() -> None:
    places = itertools.product(range(20), [f"p{i}" for i in range(16)], range(8), range(1, 4))
    seeds = [derive_seed(42, step=s, problem_id=p, sample=i, turn=t) for s, p, i, t in places]
    assert len(set(seeds)) == len(seeds) == 20 * 16 * 8 * 3
    assert all(0 <= value < 2**63 for value in seeds)  # what every generator accepts


def test_a_problem_may_have_any_name() -> None:
    assert seed(problem_id="数学 \U0001f389") != seed(problem_id="")
