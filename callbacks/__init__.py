"""Observers of a run. None of them changes a gradient; any of them can be left out."""

from svr_lightning.callbacks.before_after import BeforeAfter
from svr_lightning.callbacks.hf_export import HFExport
from svr_lightning.callbacks.progress import Progress
from svr_lightning.callbacks.rollout_log import RolloutLog

__all__ = ["BeforeAfter", "HFExport", "Progress", "RolloutLog"]
