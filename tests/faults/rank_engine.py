"""Engines that do something to one rank in the middle of a rollout, and a strategy for ranks."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy

from svr_lightning.engines.base import Output
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import ConfigError


class FaultyRank(TransformersEngine):
    """Samples as its base does until the fault.

    Args:
        rank: the one it happens to; -1 is every rank.
        fault: ``raise``; ``config``, a ConfigError; or ``end``, as a cluster ends both ranks.
        marks: folder that learns every rank's process id, and the time of the fault.
        others: ``wait`` leaves the others to the next collective, ``busy`` keeps them from it.
    """

    def __init__(self, rank: int, fault: str, marks: str, others: str = "wait") -> None:
        super().__init__(max_batch=16)
        self._marks = Path(marks)
        self._rank = rank
        self._fault = fault
        self._others = others
        self._steps = 0

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        super().start(model, stop_token_ids, max_model_len)
        (self._marks / f"pid-{os.getpid()}").touch()

    def step(self) -> dict[int, Output]:
        self._steps += 1
        if self._steps == 5:
            if self._rank in (-1, int(os.environ["LOCAL_RANK"])):
                self._strike()
            elif self._others == "busy":
                time.sleep(600)
        return super().step()

    def _strike(self) -> None:
        (self._marks / "struck").touch()
        if self._fault == "end":
            time.sleep(3)  # until the other one waits for this one
            for path in self._marks.glob("pid-*"):
                os.kill(int(path.name.removeprefix("pid-")), signal.SIGTERM)
        if self._fault == "config":
            raise ConfigError("data.train: what every process finds wrong")
        raise ValueError("the fault of this test")


class Terminated(Callback):
    """Ends its own training as a cluster would."""

    def on_train_batch_start(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class ReducesNoMetrics(DDPStrategy):
    """DDP that, like NCCL, does not reduce the metrics of an evaluation, which are on the CPU."""

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64:
            raise RuntimeError("No backend type associated with device type cpu")
        return super().reduce(tensor, *args, **kwargs)


class KilledOnce(TransformersEngine):
    """Kills the second rank in the middle of the third step's rollout, the first time.

    Args:
        mark: a file that says that it has happened.
    """

    def __init__(self, mark: str) -> None:
        super().__init__(max_batch=16)
        self._mark = Path(mark)
        self._rollouts = 0

    def sync(self, model: Any, version: int) -> None:
        super().sync(model, version)
        self._rollouts = version + 1

    def step(self) -> dict[int, Output]:
        if self._rollouts == 3 and os.environ["LOCAL_RANK"] == "1" and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step()
