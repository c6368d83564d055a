"""The embedded default: two small tasks, and a policy of half a million parameters for each.

The files of rows are made by ``experiments/problems`` of the repository, the checkpoints by
``experiments/warmstart``.
"""
