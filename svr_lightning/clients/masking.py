"""Keys that a server is sent stay out of all text that leaves this program.

A server may repeat a key wherever it writes text: in a message, a code, a header, a refusal, the
name of a field. All of it passes a :class:`Mask`.
"""

import html
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote_plus

from svr_lightning.errors import one_line, printable

SHOWN = "[key]"
_NEVER = "(?!)"
"""Matches nothing."""
_LONG = 8
"""Characters of a key that no other text holds by chance. A shorter one, such as ``none``, guards
nothing and may be a word of an answer: it is masked in errors alone, and there as a whole word."""
_READ = 2**16
"""Characters of a message that are looked at; one line shows fewer."""


class Mask:
    """Replaces keys in text.

    Args:
        keys: what to replace; empty ones are ignored.
    """

    def __init__(self, keys: Iterable[str | None] = ()) -> None:
        present = sorted({key for key in keys if key}, key=len, reverse=True)
        self._in_errors = _pattern(present)
        self._in_answers = _pattern([key for key in present if len(key) >= _LONG])

    def line(self, text: object) -> str:
        """A message of a server as one short line without a key, however the server spells it."""
        # Without white space in plenty, behind which a key would be cut and its beginning shown.
        read = printable(str(text))[:_READ]
        return one_line(self._in_errors.sub(SHOWN, read))

    def json(self, value: Any) -> Any:
        """A JSON value without a long key in any of its texts and names."""
        if self._in_answers.pattern == _NEVER:
            return value
        if isinstance(value, str):
            return self._in_answers.sub(SHOWN, value)
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, dict):
            return {self.json(name): self.json(item) for name, item in value.items()}
        return value


def _pattern(keys: list[str]) -> re.Pattern[str]:
    """Finds every spelling of the keys; nothing if there are none."""
    return re.compile("|".join(map(_spellings, keys)) or _NEVER, re.IGNORECASE)


def _spellings(key: str) -> str:
    """A pattern of a key as text, address, page and JSON spell it."""
    pattern = "".join(map(_spellings_of, key))
    return pattern if len(key) >= _LONG else rf"(?<![^\W_]){pattern}(?![^\W_])"


def _spellings_of(character: str) -> str:
    code = ord(character)
    spelled = {
        character,
        f"\\{character}",
        f"%{code:02x}",
        f"%25{code:02x}",  # an address within an address
        f"\\u{code:04x}",
        f"&#{code};",
        f"&#x{code:x};",
        html.escape(character),
        quote_plus(character),
    }
    return f"(?:{'|'.join(map(re.escape, sorted(spelled)))})"


NOTHING_MASKED = Mask()
