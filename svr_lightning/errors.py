"""Faults shown to the user: one line that says what is wrong, where, and how to fix it."""


class ConfigError(ValueError):
    """Something from outside is wrong: a configuration, a data set, a checkpoint, a folder."""


def require(condition: bool, message: str) -> None:
    """Raise :class:`ConfigError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def printable(text: str) -> str:
    """On one line, control characters shown as '?'."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def one_line(message: object) -> str:
    """Another library's message on one line: shortened, control characters shown as '?'."""
    text = printable(str(message))
    return text if len(text) <= 300 else f"{text[:297]}..."


def typed_line(error: BaseException) -> str:
    """An error's type and message on one line, for errors whose message alone says too little."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
