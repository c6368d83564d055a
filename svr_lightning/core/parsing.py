"""Reading a self-check out of a completion (appendix "Self-Check Parsing and Fallback Rules").

There are two readers. :func:`parse_self_check` serves the controller: it is tolerant and always
returns a verdict and a confidence. :func:`self_check_format_score` serves the reward: it accepts
only the exact form. Both read the text that they are given; :func:`read_completion` decides which
part of a completion that is. All take time linear in the length of the text.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal, NamedTuple

from svr_lightning.core.types import SelfCheck, Verdict

SelfCheckFields = Literal["joint", "verdict", "confidence"]
"""The fields of a self-check: a verdict and a confidence, or one of them (the paper's
controller-interface ablations)."""

OPEN_TAG = "<self_check>"
CLOSE_TAG = "</self_check>"
THINK_CLOSE = "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
"""Around an answer, in lower case, as prompts ask."""

CONFIDENCE_PRIOR = {Verdict.CORRECT: 0.8, Verdict.INCORRECT: 0.2, Verdict.UNSURE: 0.5}
"""Replaces a missing or malformed confidence. All values lie below the threshold 0.85."""

_VERDICT_OF_WORD = {
    "CORRECT": Verdict.CORRECT,
    "RIGHT": Verdict.CORRECT,
    "INCORRECT": Verdict.INCORRECT,
    "WRONG": Verdict.INCORRECT,
    "UNSURE": Verdict.UNSURE,
}
# Letters match in ASCII alone: beyond it, ignoring case would equate K with the Kelvin sign.
_WORD = "(?ai:CORRECT|INCORRECT|UNSURE|RIGHT|WRONG)"
_VERDICT_FIELD = re.compile(r"\b(?ai:VERDICT)\b[:=\s]*")
_VERDICT_WORD = re.compile(rf"({_WORD})\b")
# "CORRECT, INCORRECT, or UNSURE" is a copy of the template, not a verdict. A second word after
# plain space counts only on the same line: prose may begin on the next one.
_ALTERNATIVE = re.compile(
    r"(?:[ \t]+|\s*(?:[,/|&]\s*(?:(?ai:or|and)\s+)?|\b(?ai:or|and)\s+))"
    rf"(?:(?ai:not)\s+)?{_WORD}\b"
)
_CONFIDENCE_FIELD = re.compile(r"\b(?ai:CONFIDENCE)\b[:=\s]*")
_NUMBER = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:[ \t]*(%))?")
# A continuation that makes the digits another number: an exponent, a fraction, a range, a
# sum, a decimal comma, a second point, digits glued on. A comma and a space is punctuation.
_OTHER_NUMBER = re.compile(
    r"\w{0,64}\d|[eE][+\u2212-]\d|[.,]\d"
    r"|[ \t]{0,8}[/*^\u00d7\u00f7\u2044\u2215][ \t]{0,8}[+-]?\.?\d|[+\u2212\u2013-]\.?\d"
)
_MARKS = "*_`\"'\u201c\u201d\u2018\u2019|\\\u2013\u2014\u2212-"
_OPENERS = ">[({$\u2192\uff1a\ufe55\ufe30\u2236\uff1d\u2705\u2714\u274c\ufe0f\u200b\u200e\u200f"
"""What a chat model writes around or instead of the colon of a field: emphasis, the quotes of JSON,
dashes; and only between a field and its value brackets, arrows, wide colons, check marks and marks
that do not show, as those of text from right to left."""
_WRAP = r"\\(?:(?:text|math)[a-z]{0,6}|boxed|emph)\{|</?(?:b|i|em|strong|code)>|\}"
"""Emphasis in LaTeX and HTML."""
_RUN = rf"(?:{_WRAP}|[\s:={re.escape(_MARKS.removesuffix('-') + _OPENERS)}]|-(?!\.?[0-9]))*"
_ADORNED = re.compile(
    rf"(?<![^\W_])(?:_{{0,3}}(?ai:VERDICT){_RUN}"
    rf"(?:(?:{_WORD}|(?ai:or|and|not))(?![^\W_])(?:{_WRAP}|[\s,/&{re.escape(_MARKS)}])*)*"
    r"(?P<denied>[:=]\s?\"?(?ai:false|no|0)(?=[\"\s]*(?:[,;.}]|$))|[\u274c\u2717\u2718])?"
    rf"|_{{0,3}}(?ai:CONFIDENCE){_RUN}"
    r"(?P<rated>[0-9][0-9.]*[^\w\n]{0,8}(?ai:(?:points?|stars?|text)[^\w\n]{1,4})?"
    r"(?ai:/|(?:out[\s-]{1,4})?of\b|over\b|in\b|to\b|on\s{1,4}a\s{1,4}scale\b)"
    r"(?=[^\w\n]{0,8}(?ai:(?:(?:an?|possible|max(?:imum)?|of)\s){0,3}(?:[0-9]|ten|hundred)"
    r"|from|of)))?)"
)
_EXPLAINED = re.compile(
    rf"(?<![^\W_])(?ai:VERDICT|CONFIDENCE)[\s{re.escape(_MARKS)}]{{0,8}}"
    rf"(?P<aside>[(\[][^()\[\]\n]{{0,99}}[)\]])(?=[\s{re.escape(_MARKS)}]{{0,8}}[:=\uff1a])"
)
"""A field whose name is explained in brackets, as in ``CONFIDENCE (1 to 10): 9``."""
_BLANK = {ord(c): " " for c in _MARKS + _OPENERS}
_NO_NUMBER = {ord(c): "?" for c in "0123456789"}


class Reading(NamedTuple):
    """The answer of a completion, and where its parts begin."""

    answer: str | None
    start: int = 0
    """Where the final part begins: behind the last ``</think>``, or at 0."""
    check: int = 0
    """Where the part begins from which the self-check is read."""


def final_part(text: str) -> str:
    """What follows the last ``</think>``; the whole text without one.

    Examples:
        >>> final_part("<think>VERDICT: CORRECT?</think>5")
        '5'
    """
    return text.rpartition(THINK_CLOSE)[2]


def read_completion(
    text: str, extract: Callable[[str], str | None], *, first: bool = False
) -> Reading:
    """Which parts of a completion count, in training, in evaluation and behind servers.

    Answer and self-check are read from the final part, since reasoning may quote either. If the
    part has several answers with self-checks between them, the one behind the answer taken counts.

    Args:
        text: the completion.
        extract: the task's :meth:`~svr_lightning.tasks.Task.extract_answer`.
        first: whether that takes the first of several answers rather than the last.
    """
    part = final_part(text)
    start, answer = len(text) - len(part), extract(part)
    return Reading(answer, start, start + _check_start(part, answer, extract, first))


def _check_start(
    part: str, answer: str | None, extract: Callable[[str], str | None], first: bool
) -> int:
    """Where the self-check of ``answer`` may begin; the end of ``part`` if none follows it."""
    blocks = _self_checks(part)
    bounds = [0, *(place for block in blocks for place in block), len(part)]
    pieces = [part[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
    if answer is None or sum(not piece.isspace() for piece in pieces if piece) < 2:
        return 0
    tagged = any(ANSWER_CLOSE in piece for piece in pieces)
    answers = [extract(p) if ANSWER_CLOSE in p or not tagged else None for p in pieces]
    taken = [place for place, found in enumerate(answers) if found == answer]
    if not taken or sum(found is not None for found in answers) < 2:
        return 0
    return bounds[2 * taken[0 if first else -1] + 1]


def _self_checks(part: str) -> list[tuple[int, int]]:
    """Every complete block; without one, the name of every verdict, or of every confidence."""
    blocks = [(start, end) for start, _, _, end in _spans(part, OPEN_TAG, CLOSE_TAG)]
    if blocks:
        return blocks
    fields = list(_VERDICT_FIELD.finditer(part)) or _CONFIDENCE_FIELD.finditer(part)
    return [field.span() for field in fields]


def parse_self_check(text: str, interface: SelfCheckFields = "joint") -> SelfCheck:
    """Read the verdict and the confidence (v_t, c_t) of a completion.

    The first complete ``<self_check>...</self_check>`` span is the scope; without one the whole
    text is. The first VERDICT and the first CONFIDENCE field in scope decide. An invalid verdict
    is UNSURE; a missing or malformed confidence takes :data:`CONFIDENCE_PRIOR`. A field that
    ``interface`` does not ask for counts as missing. Never raises.

    Examples:
        >>> parse_self_check("<self_check>VERDICT: RIGHT; CONFIDENCE: 92%</self_check>")
        SelfCheck(verdict=<Verdict.CORRECT: 'CORRECT'>, confidence=0.92)
    """
    block = first_span(text, OPEN_TAG, CLOSE_TAG)
    scope = text if block is None else block
    verdict = (None if interface == "confidence" else _read_verdict(scope)) or Verdict.UNSURE
    stated = None if interface == "verdict" else _read_confidence(scope)
    confidence = CONFIDENCE_PRIOR[verdict] if stated is None else stated
    return SelfCheck(verdict=verdict, confidence=confidence)


def plain_fields(text: str) -> str:
    """A chat model's text with its self-check in the form that :func:`parse_self_check` reads.

    Models that were not trained for this form adorn it. All characters keep their places. A rating
    such as ``9 out of 10`` is no number between 0 and 1.

    Examples:
        >>> plain_fields('**VERDICT:** "CORRECT" - CONFIDENCE: 9 out of 10')
        '**VERDICT:    CORRECT    CONFIDENCE: ? out of 10'
    """
    named = _EXPLAINED.sub(lambda one: one[0].replace(one["aside"], " " * len(one["aside"])), text)
    return _ADORNED.sub(_plain, named)


def _plain(field: re.Match[str]) -> str:
    plain = re.sub(_WRAP, lambda wrap: " " * len(wrap[0]), field[0]).translate(_BLANK)
    if field["denied"]:  # "correct": false
        plain = re.sub(_WORD, lambda word: "?" * len(word[0]), plain)
    return plain.translate(_NO_NUMBER) if field["rated"] else plain


def self_check_format_score(text: str, interface: SelfCheckFields = "joint") -> float:
    """Score the serialization of the self-check (r_scfmt): 1.0, 0.0 or -1.0.

    1.0 for a complete block with a valid verdict and a parseable confidence, or the one of them
    that ``interface`` asks for; 0.0 for a block (an opening tag at least) that lacks any of these;
    -1.0 without a block.
    """
    block = first_span(text, OPEN_TAG, CLOSE_TAG)
    if block is None:
        return -1.0 if _tag(OPEN_TAG).search(text) is None else 0.0
    verdict = interface == "confidence" or _read_verdict(block) is not None
    confidence = interface == "verdict" or _read_confidence(block) is not None
    return 1.0 if verdict and confidence else 0.0


def verdict_span(text: str, start: int = 0) -> tuple[int, int] | None:
    """The position of the word from which :func:`parse_self_check` read the verdict.

    Args:
        text: the completion.
        start: where the part begins that was read; see :attr:`Reading.check`.

    Returns:
        Its first character and the one after its last; None where no valid word was found.
    """
    blocks = _spans(text, OPEN_TAG, CLOSE_TAG, start)
    _, start, end, _ = next(blocks, (start, start, len(text), len(text)))
    word = _verdict_word(text[start:end])
    return None if word is None else (start + word.start(), start + word.end())


def decimals_span(text: str, start: int = 0) -> tuple[int, int] | None:
    """The position of the first decimals, at most two, of the stated confidence.

    Args:
        text: the completion.
        start: where the part begins that was read; see :attr:`Reading.check`.

    Returns:
        The first of them and the one after the last; None where no confidence was found, or one
        that is not of the form ``0.7``, ``.7`` or ``0.70``, such as ``1.0`` or ``70%``.

    Examples:
        >>> text = "VERDICT: CORRECT; CONFIDENCE: 0.705"
        >>> text[slice(*decimals_span(text))]
        '70'
    """
    blocks = _spans(text, OPEN_TAG, CLOSE_TAG, start)
    _, start, end, _ = next(blocks, (start, start, len(text), len(text)))
    number = _confidence_number(text[start:end])
    if number is None:
        return None
    sign, digits, percent = number.groups()
    whole, _, decimals = digits.partition(".")
    if sign or percent or whole not in ("", "0") or not decimals:
        return None
    first = start + number.start(2) + len(whole) + 1
    return first, first + min(len(decimals), 2)


def self_check_start(text: str, start: int = 0) -> int:
    """Where the first self-check from ``start`` on begins, closed or not; else the text's end."""
    opening = _tag(OPEN_TAG).search(text, start)
    return len(text) if opening is None else opening.start()


def first_span(text: str, open_tag: str, close_tag: str) -> str | None:
    """The text between the first opening tag and the next closing tag, or None.

    Tags match in any capitalization; the span may cover several lines.
    """
    return next((text[start:end] for _, start, end, _ in _spans(text, open_tag, close_tag)), None)


def without_spans(text: str, open_tag: str, close_tag: str) -> str:
    """Remove every complete span from ``text``; an unclosed opening tag stays."""
    kept, position = [], 0
    for start, _, _, end in _spans(text, open_tag, close_tag):
        kept.append(text[position:start])
        position = end
    return "".join([*kept, text[position:]])


def _spans(
    text: str, open_tag: str, close_tag: str, position: int = 0
) -> Iterator[tuple[int, int, int, int]]:
    """Start, content's start, content's end and end of every complete span from ``position`` on."""
    opening, closing = _tag(open_tag), _tag(close_tag)
    while (first := opening.search(text, position)) and (last := closing.search(text, first.end())):
        yield first.start(), first.end(), last.start(), last.end()
        position = last.end()


@cache
def _tag(tag: str) -> re.Pattern[str]:
    return re.compile(re.escape(tag), re.IGNORECASE | re.ASCII)


def _read_verdict(scope: str) -> Verdict | None:
    word = _verdict_word(scope)
    return None if word is None else _VERDICT_OF_WORD[word.group(1).upper()]


def _verdict_word(scope: str) -> re.Match[str] | None:
    field = _VERDICT_FIELD.search(scope)
    if field is None:
        return None
    word = _VERDICT_WORD.match(scope, field.end())
    return None if word is None or _ALTERNATIVE.match(scope, word.end()) else word


def _confidence_number(scope: str) -> re.Match[str] | None:
    field = _CONFIDENCE_FIELD.search(scope)
    if field is None:
        return None
    number = _NUMBER.match(scope, field.end())
    return None if number is None or _OTHER_NUMBER.match(scope, number.end()) else number


def _read_confidence(scope: str) -> float | None:
    number = _confidence_number(scope)
    if number is None:
        return None
    sign, digits, percent = number.groups()
    value = _bounded_float(digits) * (-1.0 if sign == "-" else 1.0)
    if percent or value > 1.0:
        value /= 100.0
    return min(max(value, 0.0), 1.0) + 0.0  # a negative zero would be shown as -0.00


def _bounded_float(digits: str) -> float:
    """Convert decimal digits of any length without ever building a huge number."""
    whole, _, fraction = digits.partition(".")
    whole = whole.lstrip("0")
    if len(whole) > 15:
        return 1e15
    return float(f"{whole or '0'}.{fraction[:30] or '0'}")
