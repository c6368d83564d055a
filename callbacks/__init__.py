"""The observers of a run, under the short name ``callbacks`` for work in a checkout.

They are modules of :mod:`svr_lightning.callbacks`: an installed package should not claim a
top-level name that every other project uses too.
"""

from svr_lightning.callbacks import BeforeAfter, HFExport, Progress, RolloutLog

__all__ = ["BeforeAfter", "HFExport", "Progress", "RolloutLog"]
