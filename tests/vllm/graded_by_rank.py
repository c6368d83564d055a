"""A task whose labels differ between the processes of a training, as those of a timeout may."""

import torch

from svr_lightning.core.types import Problem
from svr_lightning.tasks.countdown import Countdown


class GradedByRank(Countdown):
    """Countdown where the first process finds every completion right, and no other finds any."""

    def grade(self, completion: str, problem: Problem) -> bool:
        """Whether this process is the first one."""
        return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
