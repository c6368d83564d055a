"""Seeds that follow from what a draw is for."""

import pytest

from svr_lightning.core.seeds import derive_seed

BASE = {"run_seed": 42, "step": 7, "problem_id": "train-17", "sample": 3}
BASE |= {"turn": 2, "attempt": 1, "purpose": "generate"}
KNOWN = 7978055036542464949
"""The first eight bytes of sha256 over the values above with a NUL between each two, halved."""


def seed(**changes: object) -> int:
    arguments = {**BASE, **changes}
    return derive_seed(arguments.pop("run_seed"), **arguments)  # type: ignore[arg-type]


def test_a_seed_is_the_same_for_ever():
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
def test_every_argument_changes_the_seed(change):
    assert seed(**change) != seed()
