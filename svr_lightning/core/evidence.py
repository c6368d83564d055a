"""The tokens of a part of a text, and their probabilities under the policy."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from statistics import fmean

from svr_lightning.core.parsing import plain_fields, self_check_start, verdict_span
from svr_lightning.core.types import AnyCompletion, Reading, RemoteCompletion, TokenScores

DIGITS = 3
"""Decimals that are kept of a probability, one more of a mean log-probability. Who shares a batch
changes the seventh (docs/scaling.md), and a number that is read again after a restart, or
replayed, has to be the same."""


def token_scores(
    text: str, reading: Reading, logprobs: Sequence[float], characters: Callable[[int], int]
) -> TokenScores:
    """The policy's probabilities of its verdict, its answer, its solution and its completion.

    The verdict's probability is exp of the summed log-probabilities of the tokens that its word
    lies in, whole tokens even where one also covers a character beside the word, each given the
    tokens before it. The answer's tokens are found likewise, at the last place before the
    self-check where the text has the answer.

    Args:
        text: the completion, as parsers see it.
        reading: its answer, and where its parts begin.
        logprobs: [L] nats of the sampled tokens: at the sampling temperature, at 1 when greedy.
        characters: from k in 1 ... L to how many characters of ``text`` the first k tokens make
            up; does not fall with k.

    Examples:
        >>> pieces = ["VERDICT:", " IN", "CORRECT", "."]
        >>> scores = token_scores(
        ...     "".join(pieces),
        ...     Reading(answer=None),
        ...     [-0.1, math.log(0.5), math.log(0.8), -3.0],
        ...     lambda k: len("".join(pieces[:k])),
        ... )
        >>> scores.verdict_probability, scores.completion_logprob, scores.solution_logprob
        (0.4, -1.0041, -1.0041)
    """
    if not logprobs:
        return TokenScores()
    characters = cache(characters)

    def tokens_of(span: tuple[int, int] | None) -> Sequence[float]:
        # Nothing, or the tokens of another text.
        if span is None or span[0] == span[1] or characters(len(logprobs)) < span[1]:
            return ()
        return logprobs[slice(*token_span(span, len(logprobs), characters))]

    verdict = tokens_of(verdict_span(text[: reading.end], reading.check))
    return TokenScores(
        verdict_probability=round(min(math.exp(math.fsum(verdict)), 1.0), DIGITS)
        if verdict
        else None,
        answer_logprob=_mean(tokens_of(_answer_span(text, reading))),
        completion_logprob=_mean(logprobs),
        solution_logprob=_mean(tokens_of((0, self_check_start(text, reading.check)))),
    )


def scores_of_reply(completion: AnyCompletion, reading: Reading) -> TokenScores:
    """:func:`token_scores` of a server's completion, whose tokens are texts; none known without.

    The text may begin with text of the template, and lack a token that ends the turn. If the
    tokens do not spell it, only the completion's score is known.
    """
    assert isinstance(completion, RemoteCompletion)
    text, tokens = completion.text, completion.tokens
    spelt = "".join(piece for piece, _ in tokens)
    start = max(text.find(tokens[0][0]), 0) if tokens else 0
    ends = [*accumulate((len(piece) for piece, _ in tokens), initial=start)]
    logprobs = [nats for _, nats in tokens]
    scores = token_scores(plain_fields(text), reading, logprobs, lambda count: ends[count])
    if spelt.startswith(text[start:]):
        return scores
    return TokenScores(completion_logprob=scores.completion_logprob)


def _answer_span(text: str, reading: Reading) -> tuple[int, int] | None:
    if not reading.answer:
        return None
    start = text.rfind(reading.answer, reading.start, self_check_start(text, reading.check))
    return None if start < 0 else (start, start + len(reading.answer))


def _mean(logprobs: Sequence[float]) -> float | None:
    """The rounded mean in nats; None of nothing."""
    if not logprobs:
        return None
    mean = min(fmean(logprobs), 0.0)
    return round(mean, DIGITS + 1) + 0.0  # not -0.0


def token_span(
    text_span: tuple[int, int], tokens: int, characters: Callable[[int], int]
) -> tuple[int, int]:
    """The tokens that contain some characters, including partly covered ones.

    Args:
        text_span: first character and the one past the last; at least one.
        tokens: length of the completion.
        characters: from k in 1 ... ``tokens`` to how many characters of the text the first k tokens
            make up; does not fall with k.

    Returns:
        First token and the one past the last; at least one token.

    Examples:
        >>> pieces = ["ab", "cd", "ef"]
        >>> token_span((1, 4), 3, lambda k: len("".join(pieces[:k])))
        (0, 2)
    """
    prefixes = range(1, tokens + 1)
    first = min(bisect_right(prefixes, text_span[0], key=characters), tokens - 1)
    last = bisect_left(prefixes, text_span[1], key=characters)
    return first, max(min(last + 1, tokens), first + 1)
