"""The token protocol of vLLM's servers on plain values: what is sent, and what an answer means."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Request
from svr_lightning.errors import one_line

LOGPROBS_MODE = "processed_logprobs"
"""The server's, so that log-probabilities are those at the sampling temperature."""
NO_LOGPROB = -9999.0
"""What a server tells in the place of one that is not finite."""
ROUNDING = 0.1
"""Nats by which rounding may lift the log-probability of a sure token above 0."""
_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError)


class ServerError(Exception):
    """What is wrong with a server; others may do."""


class PassingError(ServerError):
    """A dropped connection or a server's own fault, which may be over if it is healthy."""


class Facts(NamedTuple):
    """What a server says of itself."""

    dtype: str
    """Of its weights, as torch names it."""
    slots: int
    """Requests that it runs at the same time."""
    wrapped: bool
    """Its model wraps the text decoder in a multimodal class."""
    on_cpu: bool


def read_facts(body: bytes, max_model_len: int) -> Facts:
    """Read the answer of ``/server_info``.

    Raises:
        ServerError: if it is none, or the server was started in a way that cannot train.
    """
    try:
        config = json.loads(body)["vllm_config"]
        model = config["model_config"]
        mode, longest = model["logprobs_mode"], int(model["max_model_len"])
        facts = Facts(
            dtype=str(model["dtype"]).removeprefix("torch."),
            slots=int(config["scheduler_config"]["max_num_seqs"]),
            wrapped=model.get("multimodal_config") is not None,
            on_cpu=config["device_config"]["device"] == "cpu",
        )
        if facts.slots < 1:
            raise ValueError(facts.slots)
    except (*_UNREADABLE, AttributeError) as error:
        raise ServerError("/server_info says nothing of its model; vLLM 0.32 does") from error
    if mode != LOGPROBS_MODE:
        raise ServerError(f"it runs with --logprobs-mode {mode}; start it with {LOGPROBS_MODE}")
    if longest < max_model_len:
        raise ServerError(
            f"it runs with --max-model-len {longest}, less than model.policy.max_model_len="
            f"{max_model_len}"
        )
    return facts


def generate_body(request: Request, stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """The body of a request to ``/inference/v1/generate``."""
    sampling = request.sampling
    return {
        "token_ids": [*request.prompt_ids],
        "sampling_params": {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "stop_token_ids": [*stop_token_ids],
            "ignore_eos": True,  # nothing else ends a completion
            "logprobs": 0,
            "detokenize": False,
        },
    }


class Drawn(NamedTuple):
    """A completion."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


def read_generation(body: bytes, weights: str, most: int, vocabulary: int) -> Drawn:
    """Read an answer of at most ``most`` tokens, drawn with the weights of this name.

    Raises:
        ServerError: if it is none, or of other weights.
    """
    try:
        choice = json.loads(body)["choices"][0]
        token_ids = tuple(choice["token_ids"])
        logprobs = tuple(float(one["logprob"]) for one in choice["logprobs"]["content"])
        versions = {str(span["version"]) for span in choice["weight_versions"] or ()}
        reason = FinishReason(choice["finish_reason"])
    except _UNREADABLE as error:
        raise ServerError("its answer is no completion with log-probabilities") from error
    if versions != {weights}:
        found = one_line(", ".join(sorted(versions))) or "none that it names"
        raise ServerError(f"it answers with the weights {found} in the place of {weights}")
    if not all(type(token) is int and 0 <= token < vocabulary for token in token_ids):
        raise ServerError(f"its tokens are not numbers from 0 to {vocabulary - 1}")
    if not 1 <= len(token_ids) <= most:
        raise ServerError(f"it answers with {len(token_ids)} tokens, asked for 1 to {most}")
    if len(logprobs) != len(token_ids) or not all(map(_is_logprob, logprobs)):
        raise ServerError("its log-probabilities are not one finite number for each token")
    return Drawn(token_ids, logprobs, reason)


def _is_logprob(nats: float) -> bool:
    return math.isfinite(nats) and NO_LOGPROB < nats < ROUNDING


def choose(running: Mapping[str, int], slots: Mapping[str, int]) -> str:
    """The server that the next request goes to: that with the emptiest slots, or the first such.

    Args:
        running: requests at each server that is in use, at least one.
        slots: requests that each server runs at the same time.

    Examples:
        >>> choose({"a": 2, "b": 3}, {"a": 4, "b": 8})
        'b'
    """
    return min(running, key=lambda name: running[name] / slots[name])
