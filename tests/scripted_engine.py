"""An engine with scripted completions, for tests and for trying out recipes without a model."""

from collections.abc import Callable
from typing import Any

import torch

from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Engine, Output, Request

Script = Callable[[Request], list[int]]
"""From a request to the token ids of its completion."""


class ScriptedEngine(Engine):
    """Completes each request with what ``script`` returns, one token a step.

    A completion longer than the request's limit is cut there and finishes with ``length``. It runs
    whatever it is given; ``max_batch`` is only what it claims to have room for.
    """

    dtype = torch.float32

    def __init__(self, script: Script, logprob: float = -1.0, max_batch: int = 64) -> None:
        self.version = -1
        self.max_batch = max_batch
        self.steps = 0
        self.requests = []
        self._script = script
        self._logprob = logprob
        self._running = []

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Nothing to prepare."""

    def sync(self, model: Any, version: int) -> None:
        """Take note of the version."""
        self.version = version

    def submit(self, request: Request) -> None:
        """Look the completion up at once; it finishes after as many steps as it has tokens."""
        self.requests.append(request)
        self._running.append((request, self._script(request), 0))

    def step(self) -> dict[int, Output]:
        """Advance all completions by one token."""
        self.steps += 1
        outputs, running = {}, []
        for request, tokens, done in self._running:
            position = done + 1
            limit = request.sampling.max_completion_tokens
            if position < min(len(tokens), limit):
                running.append((request, tokens, position))
                continue
            kept = tuple(tokens[:limit])
            outputs[request.id] = Output(
                token_ids=kept,
                logprobs=(self._logprob,) * len(kept),
                finish_reason=FinishReason.STOP if len(tokens) <= limit else FinishReason.LENGTH,
                version=self.version,
            )
        self._running = running
        return outputs

    def cancel(self) -> None:
        """Forget what runs."""
        self._running = []
