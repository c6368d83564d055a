"""The token protocol of vLLM's servers on plain values: what is sent, and what an answer means."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct, convert

from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Request
from svr_lightning.engines.server_error import ServerError
from svr_lightning.errors import one_line

LOGPROBS_MODE = "processed_logprobs"
"""The server's, so that log-probabilities are those at the sampling temperature."""
_UNREADABLE = (ValueError, RecursionError)  # msgspec's errors are ValueErrors


class Facts(NamedTuple):
    """What a server reports of itself."""

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
            slots=max(int(config["scheduler_config"]["max_num_seqs"]), 1),
            wrapped=model.get("multimodal_config") is not None,
            on_cpu=config["device_config"]["device"] == "cpu",
        )
    except (*_UNREADABLE, LookupError, TypeError, AttributeError) as error:
        raise ServerError("/server_info does not describe its model; vLLM 0.32 does") from error
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
            "max_tokens": sampling.max_completion_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": request.seed,
            "stop_token_ids": [*stop_token_ids],
            "ignore_eos": True,  # nothing else ends a completion
            "logprobs": 0,
            "detokenize": False,
        },
    }


class _Logprob(Struct):
    # A server reports -9999 for one that is not finite, and rounding may lift the
    # log-probability of a sure token slightly above 0.
    logprob: Annotated[float, Meta(gt=-9999.0, lt=0.1)]


class _Logprobs(Struct):
    content: list[_Logprob]


class _Span(Struct):
    version: str | int


class _Choice(Struct):
    token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
    logprobs: _Logprobs
    finish_reason: Literal["stop", "length"]
    weight_versions: list[_Span] | None = None


class _Answer(Struct):
    choices: Annotated[list[_Choice], Meta(min_length=1)]


class Drawn(NamedTuple):
    """A completion."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


def read_generation(body: bytes, weights: str, max_tokens: int, vocabulary: int) -> Drawn:
    """Read an answer of at most ``max_tokens`` tokens, drawn with the weights of this name.

    Raises:
        ServerError: if it is none, or of other weights.
    """
    try:
        choice = convert(json.loads(body), _Answer).choices[0]
    except _UNREADABLE as error:
        raise ServerError(
            f"its answer is no completion with log-probabilities ({one_line(error)})"
        ) from error
    versions = {str(span.version) for span in choice.weight_versions or ()}
    if versions != {weights}:
        found = one_line(", ".join(sorted(versions))) or "of no name"
        raise ServerError(f"it answers with the weights {found} instead of {weights}")
    tokens = tuple(choice.token_ids)
    if len(tokens) > max_tokens or max(tokens) >= vocabulary:
        raise ServerError(f"its answer has more than {max_tokens} tokens, or unknown ones")
    logprobs = tuple(one.logprob for one in choice.logprobs.content)
    if len(logprobs) != len(tokens):
        raise ServerError("its answer does not have one log-probability for each token")
    return Drawn(tokens, logprobs, FinishReason(choice.finish_reason))
