"""The probability of a verdict, from the tokens of its word."""

import math
from collections.abc import Sequence

import pytest

from svr_lightning.core.evidence import verdict_probability
from svr_lightning.core.parsing import parse_self_check, verdict_span
from svr_lightning.core.types import Completion, FinishReason
from tests.scripted import RENDERER, TOKENIZER, says


def probability(pieces: Sequence[str], *probabilities: float) -> float | None:
    """Of tokens with these texts, each drawn with its probability."""
    logs = [math.log(p) for p in probabilities]
    return verdict_probability("".join(pieces), logs, lambda k: len("".join(pieces[:k])))


def test_it_is_the_product_over_the_tokens_that_the_word_lies_in() -> None:
    pieces = ["<self_check>", "VERDICT:", " IN", "COR", "RECT", "; CONFIDENCE: 0.9</self_check>"]
    assert probability(pieces, 0.1, 0.2, 0.5, 0.8, 0.9, 0.3) == 0.36  # .5 * .8 * .9


def test_a_token_that_also_covers_what_stands_beside_the_word_counts_whole() -> None:
    pieces = ["<self_check>VERDICT", ": COR", "RECT; CONF", "IDENCE: 0.9</self_check>"]
    assert probability(pieces, 0.1, 0.5, 0.6, 0.7) == 0.3
    assert probability(["<self_check>VERDICT: RIGHT</self_check>"], 0.25) == 0.25


def test_it_belongs_to_the_verdict_that_was_parsed_and_to_no_other() -> None:
    pieces = ["VERDICT: ", "WRONG", " <self_check>", "VERDICT: ", "CORRECT", "</self_check>"]
    pieces += [" VERDICT: UNSURE"]
    assert probability(pieces, 1, 0.1, 1, 1, 0.7, 1, 0.2) == 0.7
    # Without a complete block parsing reads the whole text, and so does this.
    assert probability(pieces[:-2], 1, 0.1, 1, 1, 0.7) == 0.1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no self-check at all",
        "<self_check>CONFIDENCE: 0.9</self_check>",
        "<self_check>VERDICT: PERHAPS</self_check>",
        "<self_check>VERDICT: CORRECT, INCORRECT, or UNSURE</self_check>",
    ],
)
def test_without_a_verdict_there_is_none(text: str) -> None:
    assert verdict_span(text) is None
    assert probability([text], 0.5) is None


def test_tokens_that_do_not_reach_the_word_give_none() -> None:
    assert verdict_probability("VERDICT: CORRECT", [-1.0], lambda k: k) is None
    assert verdict_probability("VERDICT: CORRECT", [], lambda k: k) is None


@pytest.mark.parametrize("word", ["correct", "INCORRECT", "Unsure", "RIGHT", "wrong"])
def test_the_span_is_the_word(word: str) -> None:
    text = f"before <SELF_CHECK>\nVerdict == {word}; CONFIDENCE: 1</self_check> VERDICT: UNSURE"
    span = verdict_span(text)
    assert span is not None
    assert text[slice(*span)] == word
    assert parse_self_check(word).verdict == "UNSURE"  # a word without its field is none


def test_a_tokenizers_own_tokens_are_found_by_what_they_decode_to() -> None:
    ids = TOKENIZER.encode("caf\u00e9 \u4f60 " + says("1+2", "INCORRECT", 0.4))
    pieces = [TOKENIZER.decode([token]) for token in ids]
    (place,) = [i for i, piece in enumerate(pieces) if "INCORRECT" in piece]
    logprobs = [-9.0] * len(ids)
    logprobs[place] = math.log(0.625)
    completion = Completion(
        prompt_ids=(1,),
        token_ids=(*ids, TOKENIZER.eos_token_id),
        logprobs=(*logprobs, -9.0),
        text=RENDERER.completion_text(ids),
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )
    assert RENDERER.verdict_probability(completion) == 0.625
