"""Several vLLM servers, on this machine or others, as one engine.

At every sync the policy's weights are written to a folder that the servers share. Each server loads
it under a new name, and every answer must have this name. Seeds belong to requests, so a rollout
does not depend on which server completes which request. A server that fails is left out until the
next sync, and its unfinished requests go to the others.
"""

import asyncio
import json
import shutil
import uuid
import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_only
from msgspec import Meta, Struct, convert
from safetensors import SafetensorError
from safetensors.torch import save_file

from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Output, Request
from svr_lightning.engines.chat_answers import ServerError
from svr_lightning.engines.connections import Connections, Retries, check_url
from svr_lightning.engines.in_flight import RemoteEngine
from svr_lightning.engines.lora import acting_weights
from svr_lightning.engines.vllm_process import processes
from svr_lightning.engines.vllm_weights import is_tied, is_vision, wrap
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.files import check_folder

LOGPROBS_MODE = "processed_logprobs"
"""What servers must be started with: log-probabilities are then at the sampling temperature."""
_UNREADABLE = (ValueError, RecursionError)  # msgspec's errors are ValueErrors
T = TypeVar("T")


class ServersEngine(RemoteEngine):
    """Sends requests to vLLM servers that serve the policy.

    Each is started with ``VLLM_SERVER_DEV_MODE=1``, ``--enable-scale-out`` and ``--logprobs-mode
    processed_logprobs``; see docs/scaling.md.

    Args:
        urls: addresses of the servers, such as ``http://10.0.0.7:8000``.
        folder: for the weights; the same path here and on every server.
        timeout: seconds that an answer may take, waiting in a server's queue included. A server
            that takes longer is left out.

    Raises:
        ConfigError: if an argument is out of range, or the folder cannot be written to.
    """

    def __init__(self, urls: list[str], folder: str, timeout: float = 600.0) -> None:
        super().__init__()
        self.urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        for url in self.urls:
            check_url(url, "model.engine.urls")
        require(
            0 < len(set(self.urls)) == len(self.urls),
            "model.engine.urls: give at least one server, and none twice",
        )
        require(timeout > 0, f"model.engine.timeout={timeout} must be positive")
        rank_zero_only(check_folder)(folder, f"model.engine.folder={folder}")  # it alone writes
        self.folder, self.timeout = folder, timeout
        self.version, self.dtype, self.max_batch = -1, torch.bfloat16, 0
        self.faults: dict[str, str] = {}
        """Servers that are left out, with the reason."""
        self._facts: dict[str, Facts] = {}
        self._busy = dict.fromkeys(self.urls, 0)
        self._weights = ""

    @property
    def in_use(self) -> list[str]:
        """The servers that requests go to."""
        return [url for url in self.urls if url not in self.faults]

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Read the options of all servers; those that do not answer may be used later.

        Raises:
            ConfigError: if none can be used.
        """
        self._stop_token_ids, self._max_model_len = stop_token_ids, max_model_len
        self._tied, self._vocabulary = is_tied(model), model.config.get_text_config().vocab_size
        self._update(self._read_facts)
        self.dtype = self._facts[self.in_use[0]].dtype

    def sync(self, model: Any, version: int) -> None:
        """Write the weights and make every server load them, those that were left out as well.

        Raises:
            ConfigError: if the folder cannot be written to, or no server has loaded them.
        """
        if self._running:
            raise RuntimeError("the engine cannot take new weights while it completes requests")
        self.version = -1
        self._weights = _from_first(uuid.uuid4().hex)
        folder = Path(self.folder).absolute() / self._weights
        try:
            if _is_first():
                self._save(model, folder)
            if processes() > 1:
                torch.distributed.barrier()  # none of them samples with the old weights any more
            self._update(partial(self._load, folder))
        finally:
            if _is_first():
                shutil.rmtree(folder, ignore_errors=True)
        self.version = version

    def _save(self, model: Any, folder: Path) -> None:
        """Write a file for each weight, in the type that they are served in."""
        wrapped = any(self._facts[url].wrapped for url in self.in_use)
        try:
            folder.mkdir(parents=True)
            for number, weight in enumerate(acting_weights(model)):
                if not is_vision(weight.name):
                    name = wrap(weight.name) if wrapped else weight.name
                    value = weight.read().to("cpu", self.dtype).contiguous()
                    save_file({name: value}, folder / f"{number:05}.safetensors")
        except (OSError, SafetensorError) as error:  # the latter is no OSError
            reason = getattr(error, "strerror", None) or one_line(error)
            raise ConfigError(
                f"model.engine.folder={self.folder} cannot be written ({reason})"
            ) from error

    def submit(self, request: Request) -> None:
        """Send a request to the least busy server."""
        if self.version < 0:
            raise RuntimeError("the servers have no weights; the engine has to be synced first")
        super().submit(request)

    def connect(self) -> Connections:
        """None is kept open: a server may close an idle one just when it is used again."""
        retries = Retries(tries=2, first_delay=0.5, timeout=self.timeout, patience=self.timeout)
        return Connections(max(self.max_batch, len(self.urls)), retries, kept=False)

    # --- all servers -----------------------------------------------------------------------------

    def _update(self, action: Callable[[str], Awaitable[None]]) -> None:
        """Let the first process do something with all servers; those that fail are left out.

        Raises:
            ConfigError: if all do.
        """

        async def attempt(url: str) -> None:
            try:
                await action(url)
            except ServerError as error:
                self._leave_out(url, error)

        async def attempt_all() -> None:
            await asyncio.gather(*map(attempt, self.urls))

        if _is_first():
            self.faults = {}
            self.loop().call(attempt_all)
        self._facts, self.faults = _from_first((self._facts, self.faults))
        self._require_one()
        self.max_batch = -(-sum(self._facts[url].slots for url in self.in_use) // processes())
        self.sleep()  # what is opened next has room for so many

    def _leave_out(self, url: str, error: ServerError) -> None:
        """Each process says so: others may not have noticed."""
        if url not in self.faults:
            self.faults[url] = str(error)
            warnings.warn(
                f"{url} is left out until a later sync: {error}. Its unfinished requests go to the "
                "others",
                stacklevel=2,
            )

    def _require_one(self) -> None:
        if not self.in_use:
            reasons = "; ".join(f"{url}: {self.faults[url]}" for url in self.urls)
            raise ConfigError(
                f"no server of model.engine.urls is left ({reasons}). Start them as "
                "docs/scaling.md says; --ckpt_path last then continues the training"
            )

    async def _read_facts(self, url: str) -> None:
        """Store a server's options, if it can serve this policy beside the others."""
        answer = await self._ask(url, "/server_info?config_format=json")
        facts = read_facts(answer, self._max_model_len)
        if any(one[:2] != facts[:2] for other, one in self._facts.items() if other != url):
            raise ServerError("its model is of another type or class than other servers'")
        if facts.on_cpu and self._tied:
            raise ServerError(
                "the policy's output layer is its embedding, of which vLLM on a CPU keeps a copy "
                "that no reload reaches; use a GPU, or a policy with an output layer of its own"
            )
        self._facts[url] = facts

    async def _load(self, folder: Path, url: str) -> None:
        """Make a server load a folder and use the present name for these weights."""
        await self._read_facts(url)  # it may have been restarted with other options
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        try:
            await self._ask(url, "/collective_rpc", load)
        except ServerError as error:
            raise ServerError(
                f"it has not loaded {folder}, which has to be the same there: {error}"
            ) from error
        await self._ask(url, "/reset_prefix_cache", {})
        await self._ask(url, "/update_weight_version", {"new_version": self._weights})

    async def _ask(self, url: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        try:
            return await self._http.exchange(url + path, body, bytes)
        except ServerError as error:
            raise ServerError(f"{path}: {error}") from error

    async def complete(self, request: Request) -> Output:
        """Try one server after the other, until one answers with the present weights.

        Raises:
            ConfigError: if no server is left.
        """
        body = generate_body(request, self._stop_token_ids)
        drawn = (request, self._weights, self.version, self._vocabulary)
        while True:
            self._require_one()
            # The one with the largest share of free slots.
            url = min(self.in_use, key=lambda url: self._busy[url] / self._facts[url].slots)
            self._busy[url] += 1
            try:
                answer = await self._ask(url, "/inference/v1/generate", body)
                return read_generation(answer, *drawn)
            except ServerError as error:
                self._leave_out(url, error)
            finally:
                self._busy[url] -= 1


def _is_first() -> bool:
    return processes() == 1 or torch.distributed.get_rank() == 0


def _from_first(value: T) -> T:
    """The value that the first process has."""
    values = [value]
    if processes() > 1:
        torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


# --- the protocol -------------------------------------------------------------------------------


class Facts(NamedTuple):
    """What a server reports of itself."""

    dtype: torch.dtype
    """Type of its weights."""
    wrapped: bool
    """Its model wraps the text decoder in a multimodal class."""
    slots: int
    """Requests that it runs at the same time."""
    on_cpu: bool


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
    finish_reason: FinishReason
    weight_versions: list[_Span] | None = None


class _Answer(Struct):
    choices: Annotated[list[_Choice], Meta(min_length=1)]


def read_facts(body: bytes, max_model_len: int) -> Facts:
    """Read the answer of ``/server_info``.

    Raises:
        ServerError: if it is none, or the server was started in a way that cannot train.
    """
    try:
        config = json.loads(body)["vllm_config"]
        model = config["model_config"]
        mode, longest = one_line(model["logprobs_mode"]), int(model["max_model_len"])
        facts = Facts(
            dtype=getattr(torch, str(model["dtype"]).removeprefix("torch.")),
            wrapped=model.get("multimodal_config") is not None,
            slots=max(int(config["scheduler_config"]["max_num_seqs"]), 1),
            on_cpu=config["device_config"]["device"] == "cpu",
        )
    except (*_UNREADABLE, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ServerError("/server_info does not describe its model; vLLM 0.32 does") from error
    if mode != LOGPROBS_MODE:
        raise ServerError(f"it runs with --logprobs-mode {mode}; start it with {LOGPROBS_MODE}")
    least = f"less than model.policy.max_model_len={max_model_len}"
    if longest < max_model_len:
        raise ServerError(f"it runs with --max-model-len {longest}, {least}")
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


def read_generation(
    body: bytes, request: Request, weights: str, version: int, vocabulary: int
) -> Output:
    """Read the completion of a request, drawn with the weights of this name.

    Raises:
        ServerError: if it is none, or of other weights.
    """
    try:
        choice = convert(json.loads(body), _Answer).choices[0]
    except _UNREADABLE as error:
        raise ServerError(
            f"its answer is no completion with log-probabilities ({one_line(error)})"
        ) from error
    names = {str(span.version) for span in choice.weight_versions or ()}
    if names != {weights}:
        found = one_line(", ".join(sorted(names))) or "of no name"
        raise ServerError(f"it answers with the weights {found} instead of {weights}")
    tokens, most = tuple(choice.token_ids), request.sampling.max_completion_tokens
    if len(tokens) > most or max(tokens) >= vocabulary:
        raise ServerError(f"its answer has more than {most} tokens, or unknown ones")
    logprobs = tuple(one.logprob for one in choice.logprobs.content)
    if len(logprobs) != len(tokens):
        raise ServerError("its answer does not have one log-probability for each token")
    return Output(
        id=request.id,
        token_ids=tokens,
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        version=version,
    )
