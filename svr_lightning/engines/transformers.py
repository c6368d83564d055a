"""The in-process engine: any transformers causal language model, on CPU or GPU, batches kept full.

It uses the module that is trained, so its weights are never outdated; its outputs still name the
steps of the last sync, which detects a missing one.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.utils.generic import is_flash_attention_requested

from svr_lightning.core.ranges import Count, check_arguments
from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.engines.batch_cache import merge, new_cache, read_prompts, trim_left
from svr_lightning.engines.sampling import draw_tokens, uniforms

MAX_WAIT = 8
"""Longest wait, in steps, of a request in a free slot for others to be prefilled with it."""


@dataclass
class _Row:
    """One running completion."""

    request: Request
    draws: list[float]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.request.prompt_ids) + len(self.tokens)


class TransformersEngine(Engine):
    """Continuous batching over a transformers model.

    Args:
        max_batch: completions that run at the same time.
    """

    @check_arguments
    def __init__(self, max_batch: Count = 64) -> None:
        self.max_batch = max_batch
        self.version = -1
        self._model: Any = None
        self._stop_ids: frozenset[int] = frozenset()
        self._queue: deque[Request] = deque()
        self._rows: list[_Row] = []
        self._cache: Any = None
        self._waited = 0

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Serve ``model``; its context was checked against ``max_model_len`` by the caller."""
        new_cache(model.config)
        self._model = model
        self._stop_ids = frozenset(stop_token_ids)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """The type of the weights when it computes; the model may have moved to a device since."""
        return torch.bfloat16 if _computes_in_bf16(self._model) else self._model.dtype

    def sync(self, model: Any, version: int) -> None:
        """Take the module itself, without a copy, and the version of its weights."""
        self._model = model
        self.version = version

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self._queue.append(request)

    def cancel(self) -> None:
        """Drop everything queued or running."""
        self._queue.clear()
        self._rows, self._cache = [], None

    @torch.no_grad()
    def drop(self, request_id: int) -> None:
        """Drop one request."""
        self._queue = deque(one for one in self._queue if one.id != request_id)
        gone = {i for i, row in enumerate(self._rows) if row.request.id == request_id}
        if gone:
            self._compact(gone)

    @torch.no_grad()
    def step(self) -> dict[int, Output]:
        """Admit requests into free slots, then sample a token for every row, in eval mode."""
        device, in_bf16 = self._model.device.type, _computes_in_bf16(self._model)
        with torch.autocast(device, torch.bfloat16, enabled=in_bf16):
            return self._admit() | self._decode()

    def _admit(self) -> dict[int, Output]:
        """Prefill queued requests together: one costs nearly as much as many."""
        room = min(self.max_batch - len(self._rows), len(self._queue))
        worthwhile = not self._rows or room >= max(1, self.max_batch // 8)
        self._waited = self._waited + 1 if room else 0
        if not room or not (worthwhile or self._waited > MAX_WAIT):
            return {}
        self._waited = 0
        requests = [self._queue.popleft() for _ in range(room)]
        rows = [_Row(r, uniforms(r.seed, r.sampling.max_completion_tokens)) for r in requests]
        rows, logits, cache = self._prefill(rows)
        self._cache = cache if self._cache is None else merge([self._cache, cache])
        first_new = len(self._rows)
        self._rows.extend(rows)
        self._take(logits, rows)
        return self._retire(range(first_new, len(self._rows)))

    def _prefill(self, rows: Sequence[_Row]) -> tuple[list[_Row], Tensor, Any]:
        """The rows in another order, [B, V] scores of their first tokens, and their cache."""
        rows_of: dict[tuple[int, ...], list[_Row]] = {}
        for row in rows:
            rows_of.setdefault(row.request.prompt_ids, []).append(row)
        order, logits, cache = read_prompts(list(rows_of), self._forward, self._model.config)
        ordered = [row for prompt in order for row in rows_of[prompt]]
        if len(order) < len(ordered):
            copies = [row for row, prompt in enumerate(order) for _ in rows_of[prompt]]
            index = torch.tensor(copies, device=logits.device)
            cache.reorder_cache(index)
            logits = logits[index]
        return ordered, logits, cache

    def _decode(self) -> dict[int, Output]:
        if not self._rows:
            return {}
        last = [[row.tokens[-1]] for row in self._rows]
        logits = self._forward(last, [row.length for row in self._rows], self._cache)
        self._take(logits, self._rows)
        return self._retire(range(len(self._rows)))

    def _forward(self, ids: list[list[int]], lengths: list[int], cache: Any) -> Tensor:
        """[B, V] scores of the tokens after ``ids`` [B, T], which end rows of these lengths."""
        device = self._model.device
        width = max(lengths)
        input_ids = torch.tensor(ids, device=device)
        starts = width - torch.tensor(lengths, device=device).unsqueeze(1)
        columns = torch.arange(width, device=device).unsqueeze(0)
        positions = (columns[:, -input_ids.shape[1] :] - starts).clamp(min=0)
        mask = (columns >= starts).long()
        if input_ids.shape[1] == 1 and not is_flash_attention_requested(self._model.config):
            # The [B, 1, 1, L] that transformers would make of it, which costs more than a layer.
            mask = torch.zeros_like(mask, dtype=self.dtype).masked_fill(columns < starts, -math.inf)
            mask = mask[:, None, None]
        output = self._model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits
        return logits[:, -1]

    def _take(self, logits: Tensor, rows: Sequence[_Row]) -> None:
        """Sample a token for each row and append it."""
        params = [row.request.sampling for row in rows]
        draws = [row.draws[len(row.tokens)] for row in rows]
        tokens, logprobs = draw_tokens(logits, params, draws)
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)

    def _retire(self, candidates: range) -> dict[int, Output]:
        """Return finished rows and close the gaps that they leave in the batch."""
        outputs, gone = {}, set()
        for index in candidates:
            row = self._rows[index]
            stopped = row.tokens[-1] in self._stop_ids
            if stopped or len(row.tokens) >= row.request.sampling.max_completion_tokens:
                gone.add(index)
                outputs[row.request.id] = Output(
                    token_ids=tuple(row.tokens),
                    logprobs=tuple(row.logprobs),
                    finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
                    version=self.version,
                )
        if gone:
            self._compact(gone)
        return outputs

    def _compact(self, gone: set[int]) -> None:
        """Fill the gaps with the last rows, so that no other row has to move."""
        width = max(row.length for row in self._rows)
        count = len(self._rows) - len(gone)
        last = (i for i in range(count, len(self._rows)) if i not in gone)
        kept = [next(last) if i in gone else i for i in range(count)]
        self._rows = [self._rows[i] for i in kept]
        if not kept:
            self._cache = None
            return
        self._cache.reorder_cache(torch.tensor(kept, device=self._model.device))
        trim_left(self._cache, width - max(row.length for row in self._rows))


def _computes_in_bf16(model: Any) -> bool:
    """Whether the forward pass runs in bf16 from fp32 weights, as in the update: on a GPU."""
    return bool(model.device.type != "cpu" and model.dtype == torch.float32)
