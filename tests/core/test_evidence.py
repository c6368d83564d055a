"""How probable the policy found its verdict, its answer and its completion."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from svr_lightning.core.evidence import scores_of_reply, token_scores
from svr_lightning.core.parsing import verdict_span
from svr_lightning.core.types import (
    Completion,
    FinishReason,
    Reading,
    RemoteCompletion,
    TokenScores,
)
from tests.scripted import RENDERER, TOKENIZER, says


def probability(pieces: Sequence[str], *probabilities: float) -> float | None:
    """Of tokens with these texts, each drawn with its probability."""
    logs = [math.log(p) for p in probabilities]
    text = "".join(pieces)
    return token_scores(
        text, Reading(None), logs, lambda k: len("".join(pieces[:k]))
    ).verdict_probability


def test_a_token_that_also_covers_what_stands_beside_the_word_counts_whole():
    pieces = ["<self_check>VERDICT", ": COR", "RECT; CONF", "IDENCE: 0.9</self_check>"]
    assert probability(pieces, 0.1, 0.5, 0.6, 0.7) == 0.3
    assert probability(["<self_check>VERDICT: RIGHT</self_check>"], 0.25) == 0.25


def test_it_belongs_to_the_verdict_that_was_parsed_and_to_no_other():
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
def test_without_a_verdict_there_is_none(text):
    assert verdict_span(text) is None
    assert probability([text], 0.5) is None


def test_tokens_that_do_not_reach_the_word_give_none():
    scores = token_scores("VERDICT: CORRECT", Reading("CORRECT"), [-1.0], lambda k: k)
    assert scores == TokenScores(completion_logprob=-1.0)  # nor are there any of the solution
    assert token_scores("x", Reading(None), [], lambda k: k) == TokenScores()


def test_log_probabilities_are_means_over_the_answers_tokens_and_over_all():
    pieces = ["7 is ", "<answer>", " 1", "7", "</answer>", "<self_check>17</self_check>"]
    logs = [-1.0, -2.0, -0.5, -0.25, -3.0, -4.0]

    def of(answer):
        text, reading = "".join(pieces), Reading(answer)
        return token_scores(text, reading, logs, lambda k: len("".join(pieces[:k])))

    assert of("17").answer_logprob == -0.375  # its two tokens, before the self-check
    assert of("7").answer_logprob == -0.25  # the last place before the self-check
    assert of("<answer> 17").answer_logprob == -0.9167
    assert of(None).answer_logprob is of("").answer_logprob is of("18").answer_logprob is None
    assert of(None).completion_logprob == -1.7917  # -10.75 / 6
    assert of(None).solution_logprob == -1.35  # -6.75 / 5, without the self-check
    assert token_scores("x", Reading(None), [-1e-9], lambda k: k).completion_logprob == 0.0


def test_a_tokenizers_own_tokens_are_found_by_what_they_decode_to():
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
    assert RENDERER.token_scores(completion, Reading(None)).verdict_probability == 0.625


def test_a_servers_tokens_give_the_same_scores_where_they_spell_the_text():
    pieces = ["</think>", "\n<answer>", "1+", "2", "</answer>", "<self_check>VERDICT: ", "CORRECT"]
    pieces += ["; CONFIDENCE: 0.9</self_check>", "<|im_end|>"]
    tokens = [(piece, -0.5 * place) for place, piece in enumerate(pieces)]
    text = "<think>\n" + "".join(pieces[:-1])  # as the template opened it, without the last token
    reply = RemoteCompletion(text=text, tokens=tuple(tokens))
    scores = scores_of_reply(reply, Reading("1+2"))
    assert scores == TokenScores(round(math.exp(-3), 3), -1.25, -2.0, -1.0)
    unlike = replace(reply, text=text + "x")
    assert scores_of_reply(unlike, Reading("1+2")) == TokenScores(completion_logprob=-2.0)
    assert scores_of_reply(replace(reply, tokens=()), Reading("1+2")) == TokenScores()
