"""Supervised training: cross-entropy on the words, and a self-check that says what it knows."""

from dataclasses import replace
from itertools import cycle

import pytest
import torch

from svr_lightning.core.types import TokenChoice
from svr_lightning.training import supervised
from svr_lightning.training.documents import Encoded
from svr_lightning.training.supervised import train
from tests.models import tiny_qwen3

VERDICT = TokenChoice(position=3, token_ids=(30, 31), scores=(1.0, 0.0))
CONFIDENCE = TokenChoice(
    position=4, token_ids=(20, 21, 22, 23, 24), scores=(1.0, 0.75, 0.5, 0.25, 0.0)
)


def document(question: int, stated: int, *, right: bool) -> Encoded:
    """A question, the answer 9, a verdict (token 30 or 31) and a confidence (20 to 24)."""
    return Encoded(
        ids=[5, question, 9, 30, stated, 3],
        weights=[0.0, 0.0, 1.0, 4.0, 4.0, 1.0],
        choices=(VERDICT, CONFIDENCE),
        correct=right,
    )


def test_the_verdict_learns_the_label_and_the_confidence_the_brier_score():
    model = tiny_qwen3().float()
    documents = [document(6, 21, right=True), document(7, 20, right=False)]
    expected = 0.0
    for encoded in documents:
        logp = model(input_ids=torch.tensor([encoded.ids])).logits[0].log_softmax(-1)
        words = -logp[1, 9] - logp[4, 3]
        verdict = -logp[2, 30 if encoded.correct else 31]
        among = logp[3, 20:25].exp()
        p = among / among.sum()
        brier = (torch.tensor(CONFIDENCE.scores) - float(encoded.correct)) ** 2
        confidence = -among.sum().log() + (p * (brier / (2 * 0.22**2) + p.log())).sum()
        expected += (words + 4 * verdict + 4 * confidence).item() / 20  # the weights of both
    losses = [
        train(tiny_qwen3().float(), cycle(documents), steps=1, rate=0.0, batch=2, micro_batch=size)
        for size in (1, 2)
    ]
    # The layers may compute in bfloat16, with eight bits.
    assert losses == [pytest.approx([expected], rel=2**-7)] * 2


def test_a_training_that_goes_on_reads_the_documents_that_follow(tmp_path, monkeypatch):
    monkeypatch.setattr(supervised, "SAVE_STEPS", 2)
    documents = [document(question, 20, right=True) for question in range(6, 12)]
    losses = [
        train(
            tiny_qwen3().float(),
            iter(documents),
            steps=steps,
            rate=0.0,
            batch=2,
            checkpoint=tmp_path / name,
        )
        for name, steps in (("whole", 3), ("stopped", 2), ("stopped", 3))
    ]
    assert losses[2] == losses[0]
    assert losses[1] == losses[0][:2]


def test_a_gradient_that_is_not_finite_stops_before_the_update():
    model = tiny_qwen3().float()
    last = torch.nn.init.constant_(model.model.norm.weight, torch.inf)
    with pytest.raises(RuntimeError, match="gradient of optimizer step 1 is not finite"):
        train(model, cycle([document(6, 21, right=True)]), steps=2, rate=1e-2, batch=1)
    assert last.isinf().all()  # and not NaN


@pytest.mark.parametrize("choices", [(VERDICT, CONFIDENCE), (CONFIDENCE,)])
def test_the_likeliest_confidence_is_how_often_such_answers_are_right_whatever_was_written(choices):
    model = tiny_qwen3().float()
    right_of_two = {6: (True, True), 7: (True, False), 8: (False, False)}
    documents = [
        replace(document(question, stated, right=right), choices=choices)
        for question, labels in right_of_two.items()
        for right in labels
        for stated in (20, 22, 24)
    ]
    train(model, cycle(documents), steps=60, rate=1e-2, batch=18)
    said = {
        question: model(input_ids=torch.tensor([[5, question, 9, 30]])).logits[0, -1].argmax()
        for question in right_of_two
    }
    assert said == {6: 20, 7: 22, 8: 24}
