r"""Boxed expressions: finding them, and the paper's test of whether two of them are equal.

Two are equal if :func:`normalise` makes the same text of them, or if :func:`read_number` reads
numbers that are close. :func:`last_boxed` is one pass over the text. Everything else works on
answers of at most :data:`MAX_ANSWER` characters with substitutions and exact rational numbers;
nothing is evaluated. Two expressions that only algebra can identify, like ``2\sqrt{3}`` and
``\sqrt{12}``, are different here, as in the paper.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

MAX_ANSWER = 2000
"""Characters of an answer; a longer one is never correct."""
MAX_WORDS = 3
"""Words beside the numbers of an answer; a text with more is a solution."""

_BRACES = re.compile(
    r"""
    \\boxed\s*(?P<box>\{)
    |\\\\(?!boxed)          # before "boxed", a doubled backslash is an over-escaped command
    |\\[{}]                 # escaped braces are no braces
    |[{}]
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"(?<![\\\w])[A-Za-z]{2,}(?!\w)")
_REASONING = {"because", "hence", "let", "since", "so", "then", "therefore", "thus", "we"}
"""With numbers, words of a solution."""
_STATED = re.compile(r"(?i:(?:the )?(?:final |correct )?answer(?: is:?|:)\s+)")
_BARE_BOXED = re.compile(r"\\boxed\s+(?P<content>[^\s{}$\\]+)")
_DOUBLED_COMMAND = re.compile(r"(?<!\\)(?:\\\\)+(?=[A-Za-z]{2}|[{}%$])")
_SINGLE_BACKSLASH = re.compile(r"(?<!\\)(?:\\\\)*\\(?!\\)")
_ENVIRONMENT = re.compile(r"(\\begin.*\\end\s*\{[^{}]*\})", re.DOTALL)

_APART = re.compile(
    r"""
    (?<=[0-9])[ ]
    (?<!frac[ ][0-9][ ])(?<!binom[ ][0-9][ ])    # not the second argument of a command
    (?![0-9]{3}(?![0-9]))(?=[0-9])              # nor thousands of the digits before
    """,
    re.VERBOSE,
)

_SPACE = re.compile(r"\s+(?!(?<=[0-9],\s)[0-9]{3}(?![0-9]))")
"""Space that means nothing; after a comma, three digits are no thousands of those before it."""
_ONE_SIGN = re.compile(r"[\u00bc-\u00be\u2150-\u215e\u2189]")
"""A fraction, such as \u00bd."""
_CIRCLE = r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])|\u00b0"
_SPELLINGS = (
    # A sign that is removed keeps the numbers beside it apart: 10%3 is not 103.
    (re.compile(rf"(?<=[0-9])(?:\s*(?:\\?[$%]|\\[(\[]|{_CIRCLE}))+\s*(?=[0-9])"), ";"),
    (re.compile(r"([0-9]+)\u2044([0-9]+)"), r"\\frac{\1}{\2}"),
    (re.compile(r"[\u2044\u2215]"), "/"),
    (re.compile(r"\{,\}\s*|,\s*\\!\s*"), ","),
    (re.compile(r"(?<!\\)\\(?:[,;:! ]|q?quad(?![a-zA-Z]))|~"), " "),
    (re.compile(r"\\(?:left|right)\s*\."), ""),
    (re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|bf)(?![a-zA-Z])"), ""),
    (re.compile(r"(?<!\\)\\[()\[\]]|\\?\$|[\u200b-\u200f\u2060\ufeff]"), ""),
    (re.compile(_CIRCLE), ""),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\leq?(?:slant)?(?![a-zA-Z])|\u2264"), r"\\leq "),
    (re.compile(r"\\geq?(?:slant)?(?![a-zA-Z])|\u2265"), r"\\geq "),
    (re.compile(r"\\neq?(?![a-zA-Z])|\u2260"), r"\\neq "),
    (re.compile(r"\\(?:times|cdot)(?![a-zA-Z])|[\u00d7\u00b7]"), r"\\cdot "),
    (re.compile(r"\\varnothing(?![a-zA-Z])|\u2205"), r"\\emptyset "),
    (re.compile(r"\u222a"), r"\\cup "),
    (re.compile(r"\u221a\s*(?:\(([^()]{0,99})\)|([0-9]+|\w))"), r"\\sqrt{\1\2}"),
    (re.compile(r"\u03c0"), r"\\pi "),
    (re.compile(r"\u221e"), r"\\infty "),
    (re.compile(r"[\u2212\u2013]"), "-"),
    (re.compile(r"\\?%|(?<=[0-9)}])\s*percent\b"), r"\\%"),
)

_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE_WORD = f"(?i:{'|'.join(_POWERS)})"
SCALE = rf"{_SCALE_WORD}s?(?![\w-])"
"""A word after a number that belongs to it, and is no unit."""
_FONT = r"\\(?:text(?:rm|bf|it|normal)?|mbox|math(?:rm|bf|it)|operatorname|boldsymbol|bm)\s*"
_TEXT = rf"{_FONT}\{{([^{{}}]*)\}}"
_TEXT_COMMAND = re.compile(_TEXT)
_FONT_OF_GROUP = re.compile(rf"{_FONT}(?=\{{)")
_POWER = r"(?:\s*\^\s*\{?\s*[0-9]\s*\}?)?"
_TEXT_UNIT = re.compile(
    rf"""
    (?<=[0-9A-Za-z)}}\]])\s*
    # What may belong to the number stays, as does a variable: 18x is no 18.
    (?!{_FONT}\{{\s*(?:{SCALE}|(?:[abeijnqrtuv]|[xyzXYZ]+|pi)\s*\}}))
    {_TEXT}{_POWER}\s*\.?$
    """,
    re.VERBOSE,
)
"""A final ``\text{ cm}^2``."""
_UNIT_WORD = (
    "degrees?|cm|mm|km|inch(?:es)?|feet|foot|ft|yards?|miles?|meters?|metres?|centimeters?"
    "|kilometers?|seconds?|minutes?|hours?|days?|weeks?|months?|years?|dollars?|cents?|euros?"
    "|units?|percent|points?|mph|pounds?|grams?|kg|liters?|gallons?|ways?"
)
_BARE_UNIT = re.compile(
    rf"""
    (?<=[0-9)}}\s])
    (?:(?:square|sq\.?|cubic)\s+)?
    (?:{_UNIT_WORD}){_POWER}\s*\.?$
    """,
    re.VERBOSE,
)
_CONJUNCTION = re.compile(r"(?:\s*,)?\s+(?:and|or)\s+")
_MIXED = re.compile(r"(?P<whole>[0-9]+)\s+(?P<above>[0-9]+)\s*/\s*(?P<below>[0-9]+)")

_NAME = r"[A-Za-z](?:_(?:\{[^{}]*\}|\w))?(?:\([A-Za-z](?:,[A-Za-z])*\))?"
_NAMED = re.compile(rf"(?:{_NAME})?(?:=|\\in(?!fty|t)|\\approx)(?=.)")
r"""``x =``, ``f(x) =`` or ``x \in`` before an answer."""
_SCRIPT = re.compile(r"([\^_])\{(\w)\}")
_POINT = re.compile(r"(?<![0-9])\.(?=[0-9])")
# A number can be read in one way only: two ways for each digit would take cubic time on fractions.
_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SLASH = re.compile(
    rf"""
    (?:(?<=[,(\[+\-=;{{])|^)
    (?P<above>{_DECIMAL})/(?P<below>{_DECIMAL})
    (?=[,)\]+\-=;}}]|$)
    """,
    re.VERBOSE,
)
_CHOICE = re.compile(r"^\(([A-Z])\)$")

_TAKES_BRACES = re.compile(r"[\^_}\]]|\\[a-zA-Z]+")
_LATEX_TOKEN = re.compile(r"\\sqrt\[[^\[\]]*\]|\\frac|\\sqrt|\\[a-zA-Z]+|\\.|.", re.DOTALL)

_PLAIN = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_NUMBER = re.compile(rf"(?P<digits>[+-]?{_DECIMAL})(?:(?P<power>{_SCALE_WORD})s?)?")
_SCIENTIFIC = re.compile(
    rf"""
    (?P<sign>[+-]?)
    (?:(?P<digits>{_DECIMAL})(?:[eE]|\\cdot10\^)|10\^)
    \{{?(?P<exponent>[+-]?[0-9]{{1,3}})\}}?
    """,
    re.VERBOSE,
)
_FRACTION = re.compile(
    rf"""
    (?P<sign>[+-]?)
    (?P<whole>[0-9]+(?=\\frac\{{[0-9]))?
    \\frac\{{(?P<above>[+-]?{_DECIMAL})\}}\{{(?P<below>[+-]?{_DECIMAL})\}}
    """,
    re.VERBOSE,
)
_NO_TERM = re.compile(
    r"""
    ["`?#@]
    |(?<!\^)[-+*/=^_,:;<>]$               # an operator without what it works on; 0^- is a limit
    |(?<![\\A-Za-z{])                     # neither a command nor an argument, as in \begin{matrix}
    (?!(?:
        arc\w+|sinh?|cosh?|tanh?|cot|sec|csc|log|ln|exp|sqrt|mod|gcd|lcm|min|max
    )(?![a-z]))
    [A-Za-z][a-z]{2,}
    """,
    re.VERBOSE,
)
"""What makes a normalised answer none: a quote, a doubt, half an expression, a word."""
_REPEATING = re.compile(
    r"""
    (?P<sign>[+-]?)
    (?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)
    \.
    (?P<fixed>[0-9]*)
    \\(?:overline|bar|dot)\{?
    (?P<period>[0-9]+)
    \}?
    """,
    re.VERBOSE,
)


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete, non-blank ``\boxed{...}``, or None.

    Braces are matched, escaped ones (``\{``) are not braces, and a box that never closes is no
    box. Of boxes within each other the inner one opens last.

    Examples:
        >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{a}{b}}")
        '\\frac{a}{b}'
    """
    start = text.find("\\boxed")
    if start < 0:
        return None
    last = None
    last_opened = -1
    open_braces: list[int] = []  # where a box's content begins; -1 for any other brace
    for token in _BRACES.finditer(text, start):
        if token["box"]:
            open_braces.append(token.end())
        elif token[0] == "{":
            open_braces.append(-1)
        elif token[0] == "}" and open_braces:
            opened = open_braces.pop()
            if opened > last_opened and (content := text[opened : token.start()].strip()):
                last = content
                last_opened = opened
    return last


def gold_answer(text: str) -> str | None:
    r"""The answer that a reference states: its last box, what follows its last ``####``, or all.

    ``\boxed 5`` without braces and ``<answer>`` tags are read too, and doubled backslashes are
    single ones. None if there is none: a blank box, a blank text, or lines or a sentence of
    reasoning that mark no answer.

    Examples:
        >>> gold_answer("So it is 5.\n#### 5"), gold_answer("It is 2 + 3, which makes 5.")
        ('5', None)
    """
    text = text.rpartition("<answer>")[2].partition("</answer>")[0]
    _, marked, answer = text.rpartition("####")
    start = answer.rfind("\\boxed")
    if start >= 0:
        bare = _BARE_BOXED.match(answer, start)
        boxed = bare["content"].rstrip(".,") if bare else last_boxed(answer[start:])
        return boxed and single_backslashes(boxed)
    answer = answer.strip(" *\n\r\t")
    if stated := _STATED.match(answer):
        answer = answer[stated.end() :]
    if not marked:
        words = _WORD.findall(_TEXT_COMMAND.sub("", answer))
        several_lines = "\n" in answer and "\\begin" not in answer
        reasons = len(words) > MAX_WORDS or not _REASONING.isdisjoint(map(str.casefold, words))
        if several_lines or (reasons and re.search("[0-9]", answer)):
            return None
    return single_backslashes(answer) or None


def single_backslashes(text: str) -> str:
    r"""``\\frac`` as ``\frac``: a text that was escaped once too often.

    If every backslash is doubled, all are halved. Else only those before a command, and not within
    ``\begin`` and ``\end``, where two of them end a row.

    Examples:
        >>> single_backslashes(r"\\frac{3}{7}"), single_backslashes(r"\sqrt2 + \\sqrt{3}")
        ('\\frac{3}{7}', '\\sqrt2 + \\sqrt{3}')
    """
    while _DOUBLED_COMMAND.search(text) and not _SINGLE_BACKSLASH.search(text):
        text = text.replace("\\\\", "\\")
    parts = _ENVIRONMENT.split(text)
    outside = [_DOUBLED_COMMAND.sub(r"\\", part) for part in parts[::2]]
    parts[::2] = outside
    return "".join(parts)


@lru_cache(maxsize=16384)
def normalise(answer: str) -> str:
    r"""Remove what does not change an answer's meaning, and give the rest one spelling.

    Gone are spaces, but for that of ``1, 234``, which is no number, and spacing commands, ``\left``
    and ``\right``, dollar, percent and degree signs, braces that only group, trailing units and
    the final period, and a leading ``x =``.
    Rewritten are synonymous commands, ``\frac12`` and ``1/2`` to ``\frac{1}{2}``, ``\sqrt3`` to
    ``\sqrt{3}``, ``.5`` to ``0.5``, ``x^{2}`` to ``x^2``, lists with "and" to lists with commas,
    ``(C)`` to ``C``.
    """
    if _PLAIN.fullmatch(answer):
        return answer
    text = _APART.sub(";", spell(answer).replace(r"\%", ""))
    text = _SPACE.sub("", text).removesuffix(".")
    if text.count("=") + text.count("\\in") - text.count("\\infty") <= 1:
        text = _NAMED.sub("", text, count=1) if _NAMED.match(text) else text
    text = _SCRIPT.sub(r"\1\2", with_braces(text).removesuffix("."))
    text = _SLASH.sub(r"\\frac{\g<above>}{\g<below>}", _POINT.sub("0.", text))
    return _CHOICE.sub(r"\1", text)


def is_understood(answer: str) -> bool:
    r"""Whether graders can read an answer that is no number, and has digits, as more than a text.

    ``5 apples`` and a digit that is not ASCII are equal to nothing but themselves. Names of
    functions, scripts and environments are no words.

    Examples:
        >>> is_understood(r"\frac{\sin x}{2}"), is_understood("$5$ apples")
        (True, False)
    """
    text = normalise(answer)
    digits = any(c.isnumeric() for c in text)
    return not digits or (text.isascii() and not _NO_TERM.search(text))


def spell(answer: str) -> str:
    """The first half of :func:`normalise`, which leaves percent signs, braces and names alone.

    Synonymous commands are one, and sizes, signs of units, units and text commands are gone.
    """
    text = _ONE_SIGN.sub(lambda sign: f" {unicodedata.normalize('NFKC', sign[0])}", answer)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split())
    unit = _TEXT_UNIT.search(text)
    if unit and any(c.isdigit() for c in text[: unit.start()]):
        text = text[: unit.start()]
    for _ in range(4):  # commands nest
        text = _TEXT_COMMAND.sub(r" \1 ", text)
    text = _BARE_UNIT.sub("", _FONT_OF_GROUP.sub(" ", text).strip())
    return _MIXED.sub(r"\g<whole>\\frac{\g<above>}{\g<below>}", _CONJUNCTION.sub(",", text))


def read_number(normalised: str) -> Fraction | None:
    r"""The exact value of a normalised answer that is written as one number, or None.

    Read are integers and decimals with thousands commas, ``4.5e33``, ``4.5\cdot10^{33}``, ``45
    million``, ``\frac{a}{b}`` of such decimals, mixed numbers and repeating decimals, as
    ``0.1\overline{6}``. Exponents have at most three digits.
    """
    if number := _NUMBER.fullmatch(normalised):
        power = _POWERS.get((number["power"] or "").lower(), 0)
        return _decimal(f"{number['digits']}e{power}")
    if number := _SCIENTIFIC.fullmatch(normalised):
        digits = number["digits"] or "1"
        return _decimal(f"{number['sign']}{digits}e{number['exponent']}")
    if number := _FRACTION.fullmatch(normalised):
        below = _decimal(number["below"])
        if not below:
            return None
        value = int(number["whole"] or 0) + _decimal(number["above"]) / below
    elif number := _REPEATING.fullmatch(normalised):
        # 0.1(6) is (16 - 1) / 90: the digits with one period, less those before it.
        start = number["whole"].replace(",", "") + number["fixed"]
        period = number["period"]
        below = 10 ** len(number["fixed"]) * (10 ** len(period) - 1)
        value = Fraction(int(start + period) - int(start or "0"), below)
    else:
        return None
    return -value if number["sign"] == "-" else value


def _decimal(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))


def with_braces(text: str) -> str:
    r"""Put braces round the arguments of ``\frac`` and ``\sqrt`` that go without them.

    Braces that are no argument's, as in ``{7}``, are left out. One pass: ``due`` counts the
    arguments still to come, and a stack keeps the count and the closing brace of each group that is
    open, so nesting costs no recursion.
    """
    written: list[str] = []
    due = 0
    suspended: list[tuple[int, str]] = []
    before = ""
    for piece in _LATEX_TOKEN.findall(text):
        if piece == "\\frac" or piece.startswith("\\sqrt"):
            due = 2 if piece == "\\frac" else 1
            written.append(piece)
        elif piece == "{":
            plain = not (due or _TAKES_BRACES.fullmatch(before))
            suspended.append((max(due - 1, 0), "" if plain else "}"))
            due = 0
            written.append("" if plain else piece)
        elif piece == "}":
            due, closing = suspended.pop() if suspended else (0, piece)
            written.append(closing)
        elif due and (piece.isalnum() or piece.startswith("\\")):
            due -= 1
            written.append(f"{{{piece}}}")
        elif piece == " ":
            written.append(piece)
            continue
        else:
            due = 0
            written.append(piece)
        before = piece
    if any(closing == "" for _, closing in suspended):  # a group that never ends stays as it is
        return text
    return "".join(written)
