"""The embedded default: two small tasks, and a policy of half a million parameters for each.

The files of rows are made by ``experiments/problems`` of the repository, the checkpoints by
``experiments/warmstart``.
"""

COUNTDOWN_TINY = "embedded:countdown-tiny"
ARITHMETIC_TINY = "embedded:arithmetic-tiny"
EMBEDDED = {COUNTDOWN_TINY: "countdown", ARITHMETIC_TINY: "arithmetic"}
"""Folders of what ships with the package, by the name that a configuration gives it."""
