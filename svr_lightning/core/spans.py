"""Which tokens a part of a completion's text is written in."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable


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

    Example:
        >>> pieces = ["ab", "cd", "ef"]
        >>> token_span((1, 4), 3, lambda k: len("".join(pieces[:k])))
        (0, 2)
    """
    prefixes = range(1, tokens + 1)
    first = min(bisect_right(prefixes, text_span[0], key=characters), tokens - 1)
    last = bisect_left(prefixes, text_span[1], key=characters)
    return first, max(min(last + 1, tokens), first + 1)
