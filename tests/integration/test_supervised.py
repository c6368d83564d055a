"""Supervised training: cross-entropy on the words, and what alternatives earn at a choice."""

from itertools import cycle

import pytest
import torch

from svr_lightning.core.types import TokenChoice
from svr_lightning.training.documents import Encoded
from svr_lightning.training.supervised import train
from tests.models import tiny_qwen3

SCORES = {True: (0.5, 0.375, 0.0), False: (0.0, 0.375, 0.5)}
"""Half of 1 - (c - y)^2 at c = 1, 1/2 and 0."""


def document(question: int, stated: int, *, right: bool) -> Encoded:
    """A question, the answer 9, and one of three confidences, the tokens 20 to 22."""
    choice = TokenChoice(position=3, token_ids=(20, 21, 22), scores=SCORES[right])
    return Encoded(
        ids=[5, question, 9, stated, 3], weights=[0.0, 0.0, 1.0, 4.0, 1.0], choices=(choice,)
    )


def test_a_choice_costs_the_way_to_its_alternatives_and_the_divergence_from_what_they_earn():
    model = tiny_qwen3().float()
    documents = [document(6, 21, right=True), document(7, 20, right=False)]
    expected = 0.0
    for encoded in documents:
        ids = torch.tensor([encoded.ids])
        logp = model(input_ids=ids).logits[0].log_softmax(-1)
        words = -logp[1, 9] - logp[3, 3]
        among = logp[2, 20:23].exp()
        p = among / among.sum()
        q = (torch.tensor(encoded.choices[0].scores) / 0.05).softmax(0)
        confidence = -among.sum().log() + (p * (p / q).log()).sum()
        expected += (words + 4 * confidence).item() / 12  # the weights of both add up to 12
    losses = [
        train(tiny_qwen3().float(), cycle(documents), steps=1, rate=0.0, batch=2, micro_batch=size)
        for size in (1, 2)
    ]
    # The layers may compute in bfloat16, with eight bits.
    assert losses == [pytest.approx([expected], rel=2**-7)] * 2


def test_the_likeliest_confidence_follows_the_label_and_not_what_was_written():
    model = tiny_qwen3().float()
    documents = [
        document(question, stated, right=question == 6)
        for question in (6, 7)
        for stated in (20, 21, 22)
    ]
    train(model, cycle(documents), steps=40, rate=1e-2, batch=6)
    said = {
        question: model(input_ids=torch.tensor([[5, question, 9]])).logits[0, -1].argmax().item()
        for question in (6, 7)
    }
    assert said == {6: 20, 7: 22}
