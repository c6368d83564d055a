"""Which tokens a text is written in, and how probable the policy found its own verdict."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from svr_lightning.core.parsing import verdict_span

DIGITS = 3
"""Decimals that are kept. Who shares a batch changes the seventh (docs/numerics.md); a number that
is read again after a restart, or replayed, has to be the same one."""


def verdict_probability(
    text: str, logprobs: Sequence[float], characters: Callable[[int], int]
) -> float | None:
    """The probability with which the policy gave the word that its verdict was read from.

    That is exp of the summed log-probabilities of the tokens that the word lies in, whole tokens
    even where one also covers a character beside the word, each given the tokens before it.

    Args:
        text: the completion, as parsers see it.
        logprobs: [L] nats of the sampled tokens: at the sampling temperature, at 1 when greedy.
        characters: from k in 1 ... L to how many characters of ``text`` the first k tokens make
            up; does not fall with k.

    Returns:
        A number in [0, 1] with :data:`DIGITS` decimals; None where no verdict can be read.

    Examples:
        >>> pieces = ["VERDICT:", " IN", "CORRECT", "."]
        >>> verdict_probability(
        ...     "".join(pieces),
        ...     [-0.1, math.log(0.5), math.log(0.8), -3.0],
        ...     lambda k: len("".join(pieces[:k])),
        ... )
        0.4
    """
    span = verdict_span(text)
    if span is None:
        return None
    if not logprobs or characters(len(logprobs)) < span[1]:  # tokens of another text
        return None
    first, end = token_span(span, len(logprobs), characters)
    return round(min(math.exp(math.fsum(logprobs[first:end])), 1.0), DIGITS)


def token_span(
    text_span: tuple[int, int], tokens: int, characters: Callable[[int], int]
) -> tuple[int, int]:
    """The tokens that some characters lie in, whole tokens even where these reach beyond.

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
