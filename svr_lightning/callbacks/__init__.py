"""Observers of a run. None of them changes a gradient; any of them can be left out."""

from .before_after import BeforeAfter
from .hf_export import HFExport
from .progress import Progress
from .rollout_log import RolloutLog

__all__ = ["BeforeAfter", "HFExport", "Progress", "RolloutLog"]
