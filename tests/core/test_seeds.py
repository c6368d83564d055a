"""Seeds that follow from what a draw is for."""

import pytest

from svr_lightning.core.seeds import SeedContext

PLACE = {"run_seed": 42, "step": 7, "attempt": 1}
DRAW = {"problem_id": "train-17", "sample": 3, "turn": 2, "purpose": "generate"}
KNOWN = 7978055036542464949
"""The first eight bytes of sha256 over the values above with a NUL between each two, halved."""


def seed(**changes: object) -> int:
    place = {name: changes.get(name, value) for name, value in PLACE.items()}
    draw = {name: changes.get(name, value) for name, value in DRAW.items()}
    return SeedContext(**place).seed(**draw)  # type: ignore[arg-type]


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
