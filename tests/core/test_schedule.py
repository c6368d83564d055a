"""Warmup-stable-decay, at the paper's lengths and against the library that the paper's used."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_wsd_schedule

from svr_lightning.core.schedule import warmup_stable_decay

PAPER = [
    # One epoch of 50,000, 7,473 and 7,500 problems, 16 to a step: total, warm-up, decay.
    # ceil(0.05 * 3125 = 156.25) = 157 and floor(0.2 * 3125) = 625, and so on.
    (3125, 157, 625),
    (467, 24, 93),
    (468, 24, 93),
]


@pytest.mark.parametrize(("total", "warmup", "decay"), [*PAPER, (120, 6, 24), (20, 1, 4)])
def test_every_step_equals_the_schedule_of_transformers(total, warmup, decay):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_wsd_schedule(
        optimizer,
        num_warmup_steps=warmup,
        num_decay_steps=decay,
        num_training_steps=total,
        decay_type="linear",
        min_lr_ratio=0.05,
    )
    for step in range(total + 3):
        assert theirs.get_last_lr()[0] == pytest.approx(warmup_stable_decay(step, total))
        optimizer.step()
        theirs.step()


@given(
    total=st.integers(1, 300),
    warmup=st.sampled_from([0.0, 0.05, 0.3, 0.5, 1.0]),
    decay=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    floor=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_any_shares_climb_rest_and_fall_between_the_floor_and_one(total, warmup, decay, floor):
    decay = min(decay, 1.0 - warmup)
    factors = [
        warmup_stable_decay(step, total, warmup_fraction=warmup, decay_fraction=decay, floor=floor)
        for step in range(total + 2)
    ]
    assert all(floor <= factor <= 1.0 for factor in factors)
    assert factors[total:] == [floor, floor]
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
