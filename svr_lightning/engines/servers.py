"""Several vLLM servers, on this machine or others, as one engine.

At every sync the policy's weights are written to a folder that the servers share. Each server loads
it under a new name, which every answer must have. Seeds belong to requests, so it does not matter
which server completes one. A server that fails or takes too long is left out until the next sync,
and its unfinished requests go to the others.
"""

import json
import shutil
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_only
from msgspec import Meta, Struct, convert
from safetensors import SafetensorError
from safetensors.torch import save_file

from svr_lightning.clients.chat_answers import ServerError
from svr_lightning.clients.connections import Connections, Retries, check_url
from svr_lightning.core.ranges import Positive, check_arguments
from svr_lightning.core.types import FinishReason
from svr_lightning.engines.acting_weights import acting_weights
from svr_lightning.engines.base import Output, Request
from svr_lightning.engines.in_flight import RemoteEngine
from svr_lightning.engines.vllm import LOGPROBS_MODE, RELEASE, sampling_params
from svr_lightning.engines.vllm_process import processes
from svr_lightning.engines.vllm_weights import is_tied, is_vision, wrap
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.files import check_folder

_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Of JSON of another form; msgspec's errors are ValueErrors."""


class ServersEngine(RemoteEngine):
    """Sends requests to vLLM servers that serve the policy.

    Each is started with ``VLLM_SERVER_DEV_MODE=1``, ``--enable-scale-out`` and ``--logprobs-mode
    processed_logprobs``; see docs/scaling.md.

    Args:
        urls: addresses of the servers, such as ``http://10.0.0.7:8000``.
        folder: for the weights; the same path here and on every server.
        timeout: seconds that an answer may take, waiting in a server's queue included.

    Raises:
        ConfigError: if an argument is out of range, or the folder cannot be written to.
    """

    @check_arguments
    def __init__(self, urls: list[str], folder: str, timeout: Positive = 600.0) -> None:
        super().__init__()
        self.urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        for url in self.urls:
            check_url(url, "model.engine.urls")
        distinct = 0 < len(set(self.urls)) == len(self.urls)
        require(distinct, "model.engine.urls: give at least one server, and none twice")
        self.folder, self.timeout = folder, timeout
        rank_zero_only(check_folder)(folder, f"model.engine.folder={folder}")  # it alone writes
        self.version, self.dtype, self.max_batch = -1, torch.bfloat16, 0
        self.faults: dict[str, str] = {}
        """Servers that are left out, with the reason."""
        self._facts: dict[str, Facts] = {}
        self._busy = dict.fromkeys(self.urls, 0)
        self._weights = ""

    @property
    def in_use(self) -> list[str]:
        """The servers that requests go to.

        Raises:
            ConfigError: if none is left.
        """
        urls = [url for url in self.urls if url not in self.faults]
        reasons = "; ".join(f"{url}: {self.faults.get(url)}" for url in self.urls)
        require(
            bool(urls),
            f"no server of model.engine.urls is left ({reasons}). Start them as docs/scaling.md "
            "says; --ckpt_path last then continues the training",
        )
        return urls

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Read the options of all servers; those that do not answer may be used later.

        Raises:
            ConfigError: if none can be used.
        """
        self._stop_token_ids, self._max_model_len = stop_token_ids, max_model_len
        self._tied, self._vocabulary = is_tied(model), model.config.get_text_config().vocab_size
        self._first = processes() == 1 or torch.distributed.get_rank() == 0
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
        if processes() > 1:
            torch.distributed.barrier()  # none of them samples with the old weights any more
        self._weights = uuid.uuid4().hex  # in the end, the first process's
        folder = Path(self.folder).absolute() / self._weights
        try:
            if self._first:
                self._save(model, folder)
            self._update(partial(self._load, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.version = version

    def _save(self, model: Any, folder: Path) -> None:
        """Write a file for each weight, in the type that they are served in."""
        wrapped = any(facts.wrapped for facts in self._facts.values())
        try:
            folder.mkdir(parents=True)
            for number, weight in enumerate(acting_weights(model)):
                if not is_vision(weight.name):
                    name = wrap(weight.name) if wrapped else weight.name
                    value = weight.read().to("cpu", self.dtype).contiguous()
                    save_file({name: value}, folder / f"{number:05}.safetensors")
        except (OSError, SafetensorError) as error:  # the latter is no OSError
            reason = getattr(error, "strerror", None) or one_line(error)
            fault = f"model.engine.folder={self.folder} cannot be written ({reason})"
            raise ConfigError(fault) from error

    def connect(self) -> Connections:
        """No keep-alive: the server may drop an idle connection just as we reuse it."""
        retries = Retries(tries=2, first_delay=0.5, timeout=self.timeout, patience=self.timeout)
        return Connections(max(self.max_batch, len(self.urls)), retries, kept=False)

    def _update(self, action: Callable[[str], Awaitable[None]]) -> None:
        """Let the first process do something with all servers, and all know which are left."""
        if self._first:
            self.faults = {}
            tasks = {url: self.loop().start_task_soon(action, url) for url in self.urls}
            for url, task in tasks.items():
                with self._asking(url):
                    task.result()
        state: list[Any] = [self._weights, self._facts, self.faults]
        if processes() > 1:
            torch.distributed.broadcast_object_list(state, src=0)
        self._weights, self._facts, self.faults = state
        self.max_batch = -(-sum(self._facts[url].slots for url in self.in_use) // processes())
        self.sleep()  # what is opened next has room for so many

    @contextmanager
    def _asking(self, url: str) -> Iterator[None]:
        """Leaves a server out that fails. Each process says so: others may not have noticed."""
        self._busy[url] += 1
        try:
            yield
        except ServerError as error:
            if url not in self.faults:
                self.faults[url] = str(error)
                warnings.warn(
                    f"{url} is left out until a later sync: {error}. Its unfinished requests go to "
                    "the others",
                    stacklevel=3,
                )
        finally:
            self._busy[url] -= 1

    async def _read_facts(self, url: str) -> None:
        """Store a server's options, if it can serve this policy beside the others."""
        answer = await self._ask(url, "/server_info?config_format=json")
        facts = read_facts(answer, self._max_model_len, tied=self._tied)
        if any(theirs[:2] != facts[:2] for other, theirs in self._facts.items() if other != url):
            raise ServerError("its model is of another type or class than other servers'")
        self._facts[url] = facts

    async def _load(self, folder: Path, url: str) -> None:
        """Make a server load a folder and use the present name for these weights."""
        await self._read_facts(url)  # it may have been restarted with other options
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        fault = f"it did not load {folder}; give a folder with the same path there"
        await self._ask(url, "/collective_rpc", load, fault)
        await self._ask(url, "/reset_prefix_cache", {})
        await self._ask(url, "/update_weight_version", {"new_version": self._weights})

    async def _ask(self, url: str, path: str, body: Any = None, fault: str = "") -> bytes:
        try:
            return await self._http.exchange(url + path, body, bytes)
        except ServerError as error:
            raise ServerError(f"{fault or path}: {error}") from error

    async def complete(self, request: Request) -> Output:
        """Try one server after the other, until one answers with the present weights."""
        sampling = sampling_params(request, self._stop_token_ids)
        body = {"token_ids": [*request.prompt_ids], "sampling_params": sampling}
        drawn = (request, self._weights, self.version, self._vocabulary)
        while True:
            # The one with the largest share of free slots.
            url = min(self.in_use, key=lambda url: self._busy[url] / self._facts[url].slots)
            with self._asking(url):
                answer = await self._ask(url, "/inference/v1/generate", body)
                return read_generation(answer, *drawn)


class Facts(NamedTuple):
    """What a server reports of itself."""

    dtype: torch.dtype
    wrapped: bool
    """Its model wraps the text decoder in a multimodal class."""
    slots: int
    """Requests that it runs at the same time."""


class _Logprob(Struct):
    # A server reports -9999 for one that is not finite, and rounding may lift the
    # log-probability of a sure token slightly above 0.
    logprob: Annotated[float, Meta(gt=-9999.0, lt=0.1)]


class _Choice(Struct):
    token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
    logprobs: dict[str, list[_Logprob]]
    finish_reason: FinishReason
    weight_versions: list[dict[str, Any]] | None = None


def read_facts(body: bytes, max_model_len: int, *, tied: bool) -> Facts:
    """Read the answer of ``/server_info``; ``tied`` if the policy's output layer is its embedding.

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
        )
        on_cpu = config["device_config"]["device"] == "cpu"
    except _UNREADABLE as error:
        fault = f"/server_info does not describe its model; vLLM {RELEASE} does"
        raise ServerError(fault) from error
    if mode != LOGPROBS_MODE:
        raise ServerError(f"it runs with --logprobs-mode {mode}; start it with {LOGPROBS_MODE}")
    if longest < max_model_len:
        least = f"less than model.policy.max_model_len={max_model_len}"
        raise ServerError(f"it runs with --max-model-len {longest}, {least}")
    if on_cpu and tied:
        raise ServerError(
            "the policy's output layer is its embedding, of which vLLM on a CPU keeps a copy that "
            "no reload reaches; use a GPU, or a policy with an output layer of its own"
        )
    return facts


def read_generation(
    body: bytes, request: Request, weights: str, version: int, vocabulary: int
) -> Output:
    """Read the completion of a request, drawn with the weights of this name.

    Raises:
        ServerError: if it is none, or of other weights.
    """
    try:
        choice = convert(json.loads(body)["choices"][0], _Choice)
        logprobs = tuple(token.logprob for token in choice.logprobs["content"])
    except _UNREADABLE as error:
        fault = f"its answer is no completion with log-probabilities ({one_line(error)})"
        raise ServerError(fault) from error
    names = {str(span.get("version")) for span in choice.weight_versions or ()}
    if names != {weights}:
        found = one_line(", ".join(sorted(names))) or "of no name"
        raise ServerError(f"it answers with the weights {found} instead of {weights}")
    tokens, most = tuple(choice.token_ids), request.sampling.max_completion_tokens
    if len(tokens) > most or max(tokens) >= vocabulary or len(tokens) != len(logprobs):
        raise ServerError(
            f"its answer is not {most} known tokens at most, each with its probability"
        )
    return Output(
        id=request.id,
        token_ids=tokens,
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        version=version,
    )
