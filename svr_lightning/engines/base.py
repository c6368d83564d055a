"""What samples: token ids in; token ids, log-probabilities and a finish reason out.

An engine is driven step by step. A caller submits requests at any time, also between steps, so
that a trajectory's next turn enters the batch the moment its previous turn ends.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from svr_lightning.core.types import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one completion is drawn."""

    max_tokens: int
    """Completion limit; reaching it means finish reason ``length``."""
    temperature: float = 0.0
    """0 is greedy decoding."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    seed: int = 0
    """Seeds this completion alone: batch mates and order do not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to complete."""

    id: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One finished completion."""

    id: int
    token_ids: tuple[int, ...]
    """[L] sampled ids, the stop token included where it was sampled."""
    logprobs: tuple[float, ...]
    """[L] nats over the full vocabulary: at the sampling temperature, at 1 when greedy."""
    finish_reason: FinishReason
    version: int
    """Weight version that sampled it."""


@runtime_checkable
class Engine(Protocol):
    """Samples completions from one version of the policy's weights."""

    version: int
    """Optimizer steps behind the weights now served; -1 where there are none to serve."""
    dtype: torch.dtype
    """In which the weights are served; known from :meth:`start` on."""
    max_batch: int
    """Completions that it runs at the same time; known from :meth:`start` on."""
    ranks: int
    """Neighbouring processes that share one engine. They submit the same requests in the same
    order and step together."""

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Get ready to serve ``model``, a transformers causal language model."""

    def sync(self, model: Any, version: int) -> None:
        """Serve exactly ``model``'s present weights under the number ``version``."""

    def submit(self, request: Request) -> None:
        """Queue a request; it joins the batch at the next step that has room."""

    def step(self) -> list[Output]:
        """Advance every running completion by one token and return those that finished."""

    def cancel(self) -> None:
        """Drop everything queued or running."""

    def sleep(self) -> None:
        """Release what only sampling needs. The next :meth:`sync` takes it back."""
