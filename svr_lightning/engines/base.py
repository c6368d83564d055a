"""The engine protocol: requests in, completions out.

A caller submits requests at any time, also between steps, so that a trajectory's next turn enters
the batch as soon as its previous turn ends. Engines in this process read token ids and serve the
policy's weights; a server reads messages and has its own weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from svr_lightning.core.types import Decoding, FinishReason, Message, RemoteCompletion

if TYPE_CHECKING:
    import torch  # a client of a server needs none


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to complete."""

    id: int
    sampling: Decoding
    seed: int = 0
    """Seeds this completion alone: other requests and their order have no influence."""
    messages: Sequence[Message] = ()
    """The prompt as chat messages."""
    prompt_ids: tuple[int, ...] = ()
    """The same prompt as token ids, for an engine whose ``reads_tokens`` is true; else empty."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """A completion with its token ids."""

    token_ids: tuple[int, ...]
    """[L] sampled ids, the stop token included where it was sampled."""
    logprobs: tuple[float, ...]
    """[L] nats at the sampling temperature, at 1 if greedy. Normalised over the full vocabulary; by
    vLLM over what top-p and top-k leave of it."""
    finish_reason: FinishReason
    version: int
    """Optimizer steps of the weights that sampled it, as :meth:`Engine.sync` got it."""


@dataclass(frozen=True)
class Refusal:
    """Why a server will never complete a request."""

    reason: str


AnyOutput = Output | RemoteCompletion | Refusal
"""What an engine makes of a request."""


class Engine(ABC):
    """Samples completions."""

    reads_tokens: bool = True
    """Whether requests need ``prompt_ids``. If so, it serves the weights that :meth:`sync` hands
    it and returns :class:`Output`; else it returns texts and cannot be trained on."""
    dtype: Optional["torch.dtype"] = None
    """Type of the served weights, known from :meth:`start` on; None where it is not known."""
    max_batch: int
    """Requests that it runs at the same time; known from :meth:`start` on."""
    holds_copy: bool = False
    """Whether it keeps its own copy of the weights on the GPU. An evaluation then leaves the policy
    on the CPU."""
    trajectories: int | None = None
    """Trajectories of one rollout that use this engine, set before :meth:`start` in a training."""

    @abstractmethod
    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Get ready to serve ``model``, a transformers causal language model."""

    @abstractmethod
    def sync(self, model: Any, version: int) -> None:
        """Serve exactly ``model``'s current weights under the number ``version``."""

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Start a request, or queue it until there is room."""

    @abstractmethod
    def step(self) -> Mapping[int, AnyOutput]:
        """Work on all requests: one token each, or wait for an answer; what is finished, by id."""

    @abstractmethod
    def cancel(self) -> None:
        """Drop everything queued or running."""

    def drop(self, request_id: int) -> None:
        """Stop working on a request whose output is no longer needed; it may still be returned."""
        return

    def sleep(self) -> bool:
        """Release memory that only sampling needs. The next sync or submit allocates it again.

        Returns:
            Whether it released the weights, so that a sync has to come before the next request.
        """
        return False
