"""Drawing tokens: how often, from which numbers, out of which candidates."""

import math
from typing import Any

import pytest
import torch

from svr_lightning.core.types import Decoding
from svr_lightning.engines.sampling import draw_tokens, uniforms
from tests.tolerance import rounding

PROBABILITIES = [0.15, 0.5, 0.05, 0.3]


def shares(count: int = 2000, **sampling: Any) -> list[float]:
    """Shares of the four tokens where the draws are spread evenly over [0, 1)."""
    params = Decoding(**{"temperature": 1.0, **sampling})
    scores = torch.tensor(PROBABILITIES).log().expand(count, 4)
    draws = [(i + 0.5) / count for i in range(count)]
    tokens, _ = draw_tokens(scores, [params] * count, draws)
    return [tokens.count(token) / count for token in range(4)]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, PROBABILITIES),
        # Odds to the power 1 / 0.5: 0.0225, 0.25, 0.0025, 0.09, together 0.365.
        ({"temperature": 0.5}, [0.0225 / 0.365, 0.25 / 0.365, 0.0025 / 0.365, 0.09 / 0.365]),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 0.5 / 0.8, 0, 0.3 / 0.8]),
        ({"top_k": 9}, PROBABILITIES),
        # 0.5 alone falls short of 0.6, with 0.3 it does not.
        ({"top_p": 0.6}, [0, 0.5 / 0.8, 0, 0.3 / 0.8]),
        ({"top_p": 0.9}, [0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95]),
        # Of the two that top-k leaves, 0.5 / 0.8 = 0.625 is enough for a nucleus of 0.6.
        ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),
        ({"top_p": 1e-60}, [0, 1, 0, 0]),  # 0 in fp32, and the likeliest token is kept all the same
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_their_probabilities_say(sampling, expected):
    assert shares(**sampling) == pytest.approx(expected, abs=1 / 2000)


def test_the_numbers_of_a_seed_do_not_depend_on_how_many_are_taken():
    many = uniforms(11, 2048)
    assert all(uniforms(11, count) == many[:count] for count in (1, 7, 15, 16, 17, 96, 1200))
    assert all(0.0 <= value < 1.0 for value in many)


@pytest.mark.parametrize("draw", [0.0, 1.0 - 2.0**-53])
def test_an_impossible_token_is_never_drawn(draw):
    scores = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]])
    params = [Decoding(temperature=1.0)]
    tokens, logprobs = draw_tokens(scores, params, [draw])
    assert tokens == [1 if draw == 0.0 else 2]
    assert logprobs == pytest.approx([-math.log(2.0)])


def test_rows_of_one_batch_may_sample_in_different_ways():
    ways = [{}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.6}]
    params = [Decoding(**{"temperature": 1.0, **way}) for way in ways]
    scores = torch.tensor(PROBABILITIES).log().expand(4, 4)
    tokens, logprobs = draw_tokens(scores, params, [0.68] * 4)
    # 0.68 lies in [0.65, 0.7), which is token 2; in 0.8 * [0.625, 1), token 3, of the nucleus.
    assert tokens == [2, 1, 1, 3]
    expected = [math.log(p) for p in (0.05, 0.5, 0.5, 0.3)]
    assert logprobs == pytest.approx(expected, abs=rounding(4, -math.log(0.05)), rel=0)


def test_a_row_without_a_nucleus_keeps_its_rarest_tokens_beside_one_that_has_one():
    # Probabilities add up to a little more or less than one, depending on how they are added.
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(50_021, generator=generator).mul(2).sort(descending=True).values
    free = Decoding(temperature=1.0)
    narrow = Decoding(temperature=1.0, top_p=0.5)
    draw = 1.0 - 2.0**-53
    alone, _ = draw_tokens(scores.expand(1, -1), [free], [draw])
    beside, _ = draw_tokens(scores.expand(2, -1), [free, narrow], [draw, draw])
    assert beside[0] == alone[0] == 50_020
