"""What a user is meant to see of a fault: a single line that says what, where, how to mend it."""


class ConfigError(ValueError):
    """Something from outside is wrong: a configuration, a data set, a checkpoint, a folder."""


def require(condition: bool, message: str) -> None:
    """Raise :class:`ConfigError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def one_line(message: object) -> str:
    """A message of someone else's on one line: shortened, control characters shown as '?'."""
    text = " ".join(str(message).split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= 300 else f"{text[:297]}..."


def typed_line(error: BaseException) -> str:
    """An error's type and its message on one line, for faults that only their type tells apart."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
