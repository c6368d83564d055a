"""Turns in lock-step, as trainers without pipelined turns run them: the thing to compare with."""

from typing import Any

import torch

from svr_lightning.engines.base import Engine, Output, Request


class LockStep:
    """Holds what is submitted back until everything that runs has finished.

    Driven by trajectories of equally many turns, no turn begins before the last one ended.

    Args:
        engine: what samples.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._held: list[Request] = []
        self._running = 0

    @property
    def version(self) -> int:
        """Optimizer steps behind the weights now served."""
        return self.engine.version

    @property
    def dtype(self) -> torch.dtype:
        """In which the weights are served."""
        return self.engine.dtype

    @property
    def max_batch(self) -> int:
        """Completions that the engine runs at the same time."""
        return self.engine.max_batch

    @property
    def ranks(self) -> int:
        """Processes that share the engine."""
        return self.engine.ranks

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Start the engine."""
        self.engine.start(model, stop_token_ids, max_model_len)

    def sync(self, model: Any, version: int) -> None:
        """Sync the engine."""
        self.engine.sync(model, version)

    def submit(self, request: Request) -> None:
        """Hold a request until the turn before is over."""
        self._held.append(request)

    def step(self) -> list[Output]:
        """Begin a turn where none runs, and advance it."""
        if not self._running:
            for request in self._held:
                self.engine.submit(request)
            self._running, self._held = len(self._held), []
        outputs = self.engine.step()
        self._running -= len(outputs)
        return outputs

    def cancel(self) -> None:
        """Drop everything held or running."""
        self._held, self._running = [], 0
        self.engine.cancel()

    def sleep(self) -> None:
        """Let the engine sleep."""
        self.engine.sleep()
