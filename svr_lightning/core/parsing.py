"""Reading a self-check out of a completion (appendix "Self-Check Parsing and Fallback Rules").

There are two readers. :func:`parse_self_check` serves the controller: it is tolerant and always
returns a verdict and a confidence. :func:`self_check_format_score` serves the reward: it accepts
only the exact form. Both read the text that they are given; :func:`read_completion` decides which
part of a completion that is. All take time linear in the length of the text.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, islice, pairwise
from typing import Literal

from svr_lightning.core.types import Reading, SelfCheck, Verdict

SelfCheckFields = Literal["joint", "verdict", "confidence"]
"""The fields of a self-check: a verdict and a confidence, or one of them (the paper's
controller-interface ablations)."""

OPEN_TAG = "<self_check>"
CLOSE_TAG = "</self_check>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_THINK_TAG = re.compile(f"{THINK_OPEN}|{THINK_CLOSE}")
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
"""Around an answer, in lower case, as prompts ask."""
METHOD_TAGS = (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE, OPEN_TAG, CLOSE_TAG)

_CHECK_TAG = re.compile(r"<(?P<closes>/?)(?ai:self_check)>")

CONFIDENCE_PRIOR = {Verdict.CORRECT: 0.8, Verdict.INCORRECT: 0.2, Verdict.UNSURE: 0.5}
"""Replaces a missing or malformed confidence. All values lie below the threshold 0.85."""

MAX_CHECKS = 1000
"""Self-checks of a completion; of more, none counts."""

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
_VERDICT = _VERDICT_FIELD, _VERDICT_WORD, _ALTERNATIVE
_CONFIDENCE_FIELD = re.compile(r"\b(?ai:CONFIDENCE)\b[:=\s]*")
_NUMBER = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:[ \t]*(%))?")
# A continuation that makes the digits another number: an exponent, a fraction, a range, a
# sum, a decimal comma, a second point, digits glued on. A comma and a space is punctuation.
_OTHER_NUMBER = re.compile(
    r"\w{0,64}\d|[eE][+\u2212-]\d|[.,]\d"
    r"|[ \t]{0,8}[/*^\u00d7\u00f7\u2044\u2215][ \t]{0,8}[+-]?\.?\d|[+\u2212\u2013-]\.?\d"
)
_CONFIDENCE = _CONFIDENCE_FIELD, _NUMBER, _OTHER_NUMBER
_MARKS = "*_`\"'\u201c\u201d\u2018\u2019|\\\u2013\u2014"
_MINUS = "\u2212-"
_OPENERS = ">[({$\u2192\uff1a\ufe55\ufe30\u2236\uff1d\u2705\u2714\u274c\ufe0f\u200b\u200e\u200f"
"""What a chat model writes around or instead of the colon of a field: emphasis, the quotes of JSON,
dashes; and only between a field and its value brackets, arrows, wide colons, check marks and marks
that do not show, as those of text from right to left."""
_WRAP = r"\\(?:(?:text|math)[a-z]{0,6}|boxed|emph)\{|</?(?:b|i|em|strong|code)>|\}"
"""Emphasis in LaTeX and HTML."""
_START = r"(?<![^\W_])"
_MARK = re.escape(_MARKS + _MINUS)
_SPACE = rf"[\s{_MARK}]"
_ADORNED = re.compile(
    rf"""
    {_START} _{{0,3}} (?P<name>(?ai:VERDICT|CONFIDENCE))
    (?:
        {_SPACE}{{0,8}} (?P<aside>[(\[{{][^()\[\]{{}}\n]{{0,99}}[)\]}}])
        (?={_SPACE}{{0,8}}[:=\uff1a])
    )?
    (?:{_WRAP}|[\s:={re.escape(_MARKS + _OPENERS)}]|[{_MINUS}](?!\.?[0-9]))*
    (?:
        (?P<value>{_WORD}(?![^\W_])|[+-]?(?:[0-9]*\.)?[0-9]+(?:[ ]?%)?)
        [{_MARK}]*
    )?
    """,
    re.VERBOSE,
)
"""A field with the adornment of its name and of its value."""
_REST = {
    "VERDICT": re.compile(rf"(?:(?!{_START}(?ai:CONFIDENCE))[^\n<]){{0,200}}"),
    "CONFIDENCE": re.compile(rf"""(?:(?!{_START}(?ai:VERDICT)|,\s*["'\n])[^\n<;]){{0,200}}"""),
}
"""What is said of a field's value: the rest of its line, to the other field."""
_SIGNS = r"?%\uff05\u066a\u2030"
_DOUBT = re.compile(
    rf"""
    \b(?ai:
        no(?![ ]doubt)|not|never|false|wrong|incorrect|unsure|part(?:ial)?(?:ly)?|almost|nearly
        |if|unless|would|could|might|may|maybe|perhaps|but|however|except|wait|0
        |less|percent|per[ ]cent|pct|points?|stars?
    )\b
    |(?ai:n't|n\u2019t|\bish)\b|[{_SIGNS}\u274c\u2717\u2718]
    """,
    re.VERBOSE,
)
"""Takes a value back, or makes it another one."""
_SURE = re.compile(
    rf"(?:[^\w/~{_SIGNS}]|(?ai:very|quite|fully|\w+ly|sure|certain|confident|and)\b|_)*"
)
"""All that may be said of a number that could be any rating, such as 1."""
_UNIT_SCALE = re.compile(
    r"[(\[][^()\[\]\n1-9]{0,40}0(?:\.0)?\W{0,3}(?:(?ai:to|and)\W)?1(?:\.0)?[)\]]"
)


def final_part(text: str) -> str:
    """What follows the last ``</think>`` that closes a ``<think>``; the whole text without one.

    A ``</think>`` that closes nothing, as in a quotation, is text.

    Examples:
        >>> final_part("<think>VERDICT: CORRECT?</think>5, not </think>6")
        '5, not </think>6'
    """
    unclosed = 0
    start = 0
    for tag in _THINK_TAG.finditer(text):
        if tag[0] == THINK_OPEN:
            unclosed += 1
        elif unclosed:
            unclosed -= 1
            start = tag.end()
    return text[start:]


def read_completion(
    text: str,
    extract: Callable[[str], str | None],
    *,
    first: bool = False,
    truncated: bool = False,
    plain: str | None = None,
) -> Reading:
    """Which text decides, in training, in evaluation and behind servers (docs/method.md).

    Answer and self-check are read from the final part, since reasoning may quote either. Reasoning
    that never closes does not belong to it, unless the completion was cut off, nor does what
    follows an answer and a ``</think>`` that closes nothing. The answer is the task's choice. Its
    self-check is the first one after it. If there is none, the first one of the part counts,
    unless it belongs to another answer or the part's self-checks disagree: then none counts, which
    reads as UNSURE.

    Args:
        text: the completion.
        extract: the task's :meth:`~svr_lightning.tasks.Task.extract_answer`.
        first: whether that takes the first of several answers rather than the last.
        truncated: whether the completion reached its limit.
        plain: where self-checks are sought, if not in ``text`` itself; see :func:`plain_fields`.
    """
    start = len(text) - len(final_part(text))
    reasoning = -1 if truncated else text.find(THINK_OPEN, start)
    end = len(text) if reasoning < 0 else reasoning
    part = text[start:end]
    before, closed, _ = part.partition(THINK_CLOSE)
    answer = extract(before) if closed else None
    if answer is not None:  # it closes nothing: what follows an answer and this mark is a quotation
        part = before
        end = start + len(part)
    else:
        answer = extract(part)
    if answer is None:
        return Reading(None, start, end, start)
    check = _check_start(part, (plain or text)[start:end], answer, extract, first)
    return Reading(answer, start, end, start + check)


def _check_start(
    part: str, plain: str, answer: str, extract: Callable[[str], str | None], first: bool
) -> int:
    """Where the self-check of ``answer`` may begin; the end of ``part`` if it has none."""
    cuts, checks = _self_checks(plain)
    if not checks:
        return 0
    if len(cuts) > MAX_CHECKS:
        return len(part)
    bounds = [0, *chain(*cuts), len(part)]
    pieces = [part[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
    answered = [i for i, piece in enumerate(pieces) if piece and not piece.isspace()]
    taken = answered
    if len(answered) > 1:
        answered = [i for i in answered if ANSWER_CLOSE in pieces[i]] or answered
        answers = {i: extract(pieces[i]) for i in answered}
        answered = [i for i in answered if answers[i] is not None]
        taken = [i for i in answered if answers[i] == answer]
    behind = len(part)
    if taken:
        behind = bounds[2 * taken[0 if first else -1] + 1]
        if behind <= checks[-1][0]:
            return behind
        if len(answered) > 1:  # what precedes it belongs to another answer
            return len(part)
    stated = {parse_self_check(plain[a:b]) for a, b in checks}
    if _read_verdict(plain[behind:]) is not None:
        stated.add(parse_self_check(plain[behind:]))
    return 0 if len(stated) == 1 else len(part)


def _self_checks(plain: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where an answer ends at the latest, and the self-checks of a text.

    A self-check is a complete block, from its last opening tag. Without one, it is what follows
    the name of a verdict or, without these too, of a confidence.
    """
    cuts: list[tuple[int, int]] = []
    blocks: list[tuple[int, int]] = []
    for tag in islice(_CHECK_TAG.finditer(plain), 2 * MAX_CHECKS + 2):
        if not tag["closes"]:
            cuts.append(tag.span())
        elif cuts and (not blocks or blocks[-1] != cuts[-1]):
            cuts[-1] = (cuts[-1][0], tag.end())
            blocks.append(cuts[-1])
    verdicts, confidences = (
        [field.span() for field in islice(name.finditer(plain), MAX_CHECKS + 1)]
        for name in (_VERDICT_FIELD, _CONFIDENCE_FIELD)
    )
    fields = sorted(verdicts + confidences)
    if blocks:
        merged: list[tuple[int, int]] = []
        for cut in sorted(cuts + fields):
            if not merged or merged[-1][1] <= cut[0]:
                merged.append(cut)
        return merged, blocks
    starts = [start for start, _ in verdicts or confidences]
    return fields, [*pairwise([*starts, len(plain)])]


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
    _, scope = _scope(text)
    verdict = (None if interface == "confidence" else _read_verdict(scope)) or Verdict.UNSURE
    stated = None if interface == "verdict" else _read_confidence(scope)
    confidence = CONFIDENCE_PRIOR[verdict] if stated is None else stated
    return SelfCheck(verdict=verdict, confidence=confidence)


def plain_fields(text: str) -> str:
    """A chat model's text with its self-check in the form that :func:`parse_self_check` reads.

    Models that were not trained for this form adorn it. All characters keep their places. A value
    that its line puts in doubt is none, such as ``CORRECT? No`` and ``0.95 -> 0.2``. So is a number
    that may be on another scale, such as ``9 out of 10``, ``1 (low)`` and ``1 percent``.

    Examples:
        >>> plain_fields('**VERDICT:** "CORRECT" - CONFIDENCE: 9 out of 10')
        '**VERDICT     CORRECT  - CONFIDENCE  ? out of 10'
    """
    return _ADORNED.sub(_plain, text)


def _plain(field: re.Match[str]) -> str:
    """A field without adornment, and question marks for a value that does not count."""
    name, aside, value = field.groups("")
    before, _, behind = field[0].partition(name)
    adornment, _, rest = behind.rpartition(value) if value else (behind, "", "")
    if value and not _counts(field, aside, value):
        value = re.sub("[A-Za-z0-9]", "?", value)
    before, adornment, rest = (re.sub(r"\S", " ", part) for part in (before, adornment, rest))
    return before + name + adornment + value + rest


def _counts(field: re.Match[str], aside: str, value: str) -> bool:
    """Whether the rest of its line leaves a value as it stands."""
    rest = _REST[field["name"].upper()].match(field.string, field.end())
    said = _UNIT_SCALE.sub("", rest[0] if rest else "")
    if value.upper() in _VERDICT_OF_WORD:
        # Only CORRECT lets an answer be accepted.
        claims = _VERDICT_OF_WORD[value.upper()] == Verdict.CORRECT
        return not (claims and _DOUBT.search(said))
    if re.fullmatch(r"[+-]?0?\.[0-9]+|.*%", value):
        return not (_DOUBT.search(said) or re.search(r"[0-9]", said))
    return not _UNIT_SCALE.sub("", aside) and _SURE.fullmatch(said) is not None


def self_check_format_score(text: str, interface: SelfCheckFields = "joint") -> float:
    """Score the serialization of the self-check (r_scfmt): 1.0, 0.0 or -1.0.

    1.0 for a complete block with a valid verdict and a parseable confidence, or the one of them
    that ``interface`` asks for; 0.0 for a block (an opening tag at least) that lacks any of these;
    -1.0 without a block.
    """
    if self_check_start(text) == len(text):
        return -1.0
    start, block = _scope(text)
    if start == 0:  # it is not complete
        return 0.0
    verdict = interface == "confidence" or _read_verdict(block) is not None
    confidence = interface == "verdict" or _read_confidence(block) is not None
    return float(verdict and confidence)


def verdict_span(text: str, start: int = 0) -> tuple[int, int] | None:
    """The position of the word from which :func:`parse_self_check` read the verdict.

    Args:
        text: the completion.
        start: where the part begins that was read; see :attr:`Reading.check`.

    Returns:
        Its first character and the one after its last; None where no valid word was found.
    """
    start, scope = _scope(text, start)
    word = _stated(scope, *_VERDICT)
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
    start, scope = _scope(text, start)
    number = _stated(scope, *_CONFIDENCE)
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


def _scope(text: str, start: int = 0) -> tuple[int, str]:
    """The content of the first complete self-check and where it begins; else all from ``start``."""
    blocks = _spans(text, OPEN_TAG, CLOSE_TAG, start)
    _, start, end, _ = next(blocks, (start, start, len(text), len(text)))
    return start, text[start:end]


def without_spans(text: str, open_tag: str, close_tag: str) -> str:
    """Remove every complete span from ``text``; an unclosed opening tag stays.

    Tags match in any capitalization; a span may cover several lines.
    """
    pieces = []
    position = 0
    for start, _, _, end in _spans(text, open_tag, close_tag):
        pieces.append(text[position:start])
        position = end
    return "".join([*pieces, text[position:]])


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
    word = _stated(scope, *_VERDICT)
    return None if word is None else _VERDICT_OF_WORD[word[1].upper()]


def _stated(
    scope: str, name: re.Pattern[str], value: re.Pattern[str], other: re.Pattern[str]
) -> re.Match[str] | None:
    """The value of the first field of this name, unless what follows makes it another one."""
    field = name.search(scope)
    found = field and value.match(scope, field.end())
    return None if found is None or other.match(scope, found.end()) else found


def _read_confidence(scope: str) -> float | None:
    number = _stated(scope, *_CONFIDENCE)
    if number is None:
        return None
    sign, digits, percent = number.groups()
    value = float(digits) * (-1.0 if sign == "-" else 1.0)
    if percent or value > 1.0:
        value /= 100.0
    return min(max(value, 0.0), 1.0) + 0.0  # a negative zero would be shown as -0.00
