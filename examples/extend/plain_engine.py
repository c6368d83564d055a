"""An engine of your own: one request at a time, one forward pass over the sequence per token."""

from collections import deque
from typing import Any

import torch

from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Engine, Output, Request


class PlainEngine(Engine):
    """Slow and complete: token ids in; token ids, log-probabilities and a finish reason out."""

    max_batch = 1

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Serve the model itself, without a copy of its weights."""
        self.dtype = next(model.parameters()).dtype
        self._stop = stop_token_ids

    def sync(self, model: Any, version: int) -> None:
        """Use the current weights; every output carries their version."""
        self._model, self.version = model, version

    def submit(self, request: Request) -> None:
        """Queue a request; the driver calls this at any time, also between steps."""
        self._queue.append(request)

    def step(self) -> dict[int, Output]:
        """Complete the oldest request."""
        oldest = [self._queue.popleft()] if self._queue else []
        return {request.id: self._complete(request) for request in oldest}

    def cancel(self) -> None:
        """Drop what is queued."""
        self._queue.clear()

    @torch.no_grad()
    def _complete(self, request: Request) -> Output:
        draw = request.sampling
        # A separate generator: a completion depends on its seed, not on others in the batch.
        generator = torch.Generator().manual_seed(request.seed % 2**63)
        ids, logprobs = list(request.prompt_ids), []
        while len(logprobs) < draw.max_completion_tokens and (
            not logprobs or ids[-1] not in self._stop
        ):
            scores = self._model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            logp = torch.log_softmax(scores.float() / (draw.temperature or 1.0), dim=-1)
            if draw.temperature == 0:
                token = int(logp.argmax())
            else:
                token = int(torch.multinomial(logp.exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(logp[token]))
        stopped = ids[-1] in self._stop
        return Output(
            token_ids=tuple(ids[len(request.prompt_ids) :]),
            logprobs=tuple(logprobs),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            version=self.version,
        )
