"""Text of models and data sets in HTML, Markdown and LaTeX: shown, never obeyed.

A character that would not show, or that would change how others show (controls, line separators,
direction marks, lone surrogates), is written as its code point. All results are ASCII.
"""

import re
from html import escape

_MARKUP = re.compile(r"[\\`*_{}\[\]()#+!|~$<>&\"']")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    # At the beginning of a row these two would be arguments of the row break before it.
    "[": "{[}",
    "*": "{*}",
    # Symbols of the tables' own.
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
    "\u00b3": r"\textsuperscript{3}",
    "\u03b1": r"$\alpha$",
    "\u03b3": r"$\gamma$",
    "\u03bb": r"$\lambda$",
    "\u0394": r"$\Delta$",
}


def visible(text: str) -> str:
    """Text as HTML element content."""
    return _ascii("".join(c if _shows(c) else f"<b class=u>{_point(c)}</b>" for c in _html(text)))


def attribute(text: str) -> str:
    """Text as the value of a quoted HTML attribute."""
    return _ascii("".join(c if _shows(c) else f"[{_point(c)}]" for c in _html(text)))


def markdown(text: str) -> str:
    """Text as part of one line of Markdown, also inside a table."""
    flat = " ".join(text.split(" ")).replace("\n", " ").replace("\t", " ")
    quoted = _MARKUP.sub(lambda match: f"&#{ord(match.group())};", flat)
    return _ascii("".join(c if _shows(c) else f"[{_point(c)}]" for c in quoted))


def latex(text: str) -> str:
    """Text as part of one line of LaTeX."""
    return "".join(_LATEX.get(c) or _latex_character(c) for c in text)


def clip(text: str, head: int, tail: int) -> tuple[str, str, int]:
    """The beginning and the end of a text, and how many characters between them are left out."""
    if len(text) <= head + tail:
        return text, "", 0
    return text[:head], text[len(text) - tail :], len(text) - head - tail


def _html(text: str) -> str:
    return escape(text, quote=True)


def _shows(character: str) -> bool:
    return character.isprintable() or character in "\n\t"


def _point(character: str) -> str:
    return f"U+{ord(character):04X}"


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _latex_character(character: str) -> str:
    if character in "\n\t":
        return " "
    return character if " " <= character <= "~" else f"{{[}}{_point(character)}]"
