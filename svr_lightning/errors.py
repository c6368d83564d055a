"""The one error a user is meant to see: a single line that says what, where, how to mend it."""


class ConfigError(ValueError):
    """Something from outside is wrong: a configuration, a data set, a checkpoint, a folder."""


def require(condition: bool, message: str) -> None:
    """Raise :class:`ConfigError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)
