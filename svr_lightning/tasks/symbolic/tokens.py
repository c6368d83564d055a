r"""Cutting an answer into LaTeX tokens, within limits."""

import re

MAX_CHARACTERS = 600
"""Of an answer after spelling it one way; a longer one is compared as text alone."""
MAX_TOKENS = 300
MAX_DIGITS = 60
"""Of one number."""
MAX_DEPTH = 24
"""Brackets and arguments open at once."""

FUNCTIONS = (
    *("arcsin", "arccos", "arctan", "arccot", "arcsec", "arccsc", "sinh", "cosh", "tanh"),
    *("sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "lg", "exp"),
)
"""Longer names first, where one begins like another."""
OPENING = {"(": ")", "[": ")", "{": "}", "\\{": "\\}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
"""What closes a bracket. Round and square ones may close each other, as in ``(0, 1]``."""
_CLOSING = {"]": ")"} | {closing: closing for closing in OPENING.values()}

_TOKEN = re.compile(
    r"\\(?:begin|end)\s*\{[a-zA-Z]*\}|\\[a-zA-Z]+|\\."
    r"|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?"
    rf"|{'|'.join(FUNCTIONS)}|\S"
)
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9])")
_IGNORED = {"\\displaystyle", "\\limits", "\\mathrm", "\\quad", "\\qquad"}


class UnreadableError(ValueError):
    """The text is no expression that is understood here, or too large a one."""


def tokenise(text: str) -> list[str]:
    r"""The tokens of a spelled answer, white space left out.

    Outside brackets ``1,234`` is one number; within them the comma separates.

    Raises:
        UnreadableError: beyond :data:`MAX_CHARACTERS`, :data:`MAX_TOKENS` or :data:`MAX_DIGITS`,
            for characters beyond ASCII, and where brackets do not match or stand too deep.

    Example:
        >>> tokenise(r"2 \frac{x}{3}")
        ['2', '\\frac', '{', 'x', '}', '{', '3', '}']
    """
    if len(text) > MAX_CHARACTERS or not text.isascii():
        raise UnreadableError("too long, or with characters that are not read")
    tokens: list[str] = []
    open_brackets: list[str] = []
    position = 0
    while found := _TOKEN.search(text, position):
        token, position = found.group(), found.end()
        if token[0].isdigit() and not open_brackets:
            thousands = _THOUSANDS.match(text, found.start())
            if thousands:
                token, position = thousands.group().replace(",", ""), thousands.end()
        if token in _IGNORED:
            continue
        if token.startswith(("\\begin", "\\end")):
            token = "".join(token.split())
        if len(token) > MAX_DIGITS or len(tokens) >= MAX_TOKENS:
            raise UnreadableError("too many digits or tokens")
        _track(token, open_brackets)
        tokens.append(token)
    if open_brackets:
        raise UnreadableError("a bracket that is not closed")
    return tokens


def split(tokens: list[str], separators: frozenset[str]) -> list[list[str]]:
    """The stretches between separators that stand outside all brackets; ends may be empty."""
    parts: list[list[str]] = [[]]
    open_brackets: list[str] = []
    for token in tokens:
        _track(token, open_brackets)
        if token in separators and not open_brackets:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def enclosed(tokens: list[str]) -> bool:
    """Whether the first token opens a bracket that the last one closes."""
    open_brackets: list[str] = []
    for index, token in enumerate(tokens):
        _track(token, open_brackets)
        if not open_brackets:
            return index == len(tokens) - 1 and len(tokens) > 1
    return False


def _track(token: str, open_brackets: list[str]) -> None:
    """Keep a stack of what closes the brackets that are open."""
    if token.startswith("\\begin{"):
        open_brackets.append("\\end{" + token.removeprefix("\\begin{"))
    elif token in OPENING:
        open_brackets.append(OPENING[token])
    elif (token in _CLOSING or token.startswith("\\end{")) and (
        not open_brackets or open_brackets.pop() != _CLOSING.get(token, token)
    ):
        raise UnreadableError("a bracket that does not match")
    if len(open_brackets) > MAX_DEPTH:
        raise UnreadableError("brackets too deep")
