"""The one error a user is meant to see: a single line that says what, where, how to mend it."""


class ConfigError(ValueError):
    """Something from outside is wrong: a configuration, a data set, a checkpoint, a folder."""
