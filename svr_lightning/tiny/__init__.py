"""The embedded default: a small Countdown and a policy of half a million parameters for it.

``problems`` defines the problems and their splits. ``countdown_policy/`` is the checkpoint that
ships with the package; ``experiments/warmstart`` of the repository builds it.
"""
