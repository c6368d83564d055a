"""Observers of a run. None of them changes a gradient; any of them can be left out."""

from svr_lightning.training.progress import Progress

from .before_after import BeforeAfter
from .hf_export import HFExport
from .rollout_log import RolloutLog

__all__ = ["BeforeAfter", "HFExport", "Progress", "RolloutLog"]
