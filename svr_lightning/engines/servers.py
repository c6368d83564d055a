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
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from safetensors import SafetensorError
from safetensors.torch import save_file

from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.engines.connections import Connections
from svr_lightning.engines.generate_protocol import (
    Facts,
    generate_body,
    read_facts,
    read_generation,
)
from svr_lightning.engines.in_flight import InFlight
from svr_lightning.engines.lora import acting_weights
from svr_lightning.engines.openai import check_url
from svr_lightning.engines.server_error import TIMED_OUT, ServerError
from svr_lightning.engines.vllm_process import processes
from svr_lightning.engines.vllm_weights import is_tied, is_vision, wrap
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.files import check_folder

FILE_BYTES = 2**30
"""Weights are written in files of about this size, which is the additional memory needed."""
_CONNECT_SECONDS = 10.0
_PAUSE = 0.5
"""Seconds before a request is repeated after a lost connection."""


class ServersEngine(Engine):
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
        self._running: dict[str, int] = {}
        self._requests = InFlight[Output]()
        self._run, self._syncs, self._weights = uuid.uuid4().hex[:8], 0, ""

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
        self.dtype = getattr(torch, self._facts[self.in_use[0]].dtype)

    def sync(self, model: Any, version: int) -> None:
        """Write the weights and make every server load them, those that were left out as well.

        Raises:
            ConfigError: if the folder cannot be written to, or no server has loaded them.
        """
        if len(self._requests):
            raise RuntimeError("the engine cannot take new weights while it completes requests")
        self.version = -1
        self._weights = _from_first(f"{self._run}-{self._syncs}")
        self._syncs += 1
        folder = Path(self.folder).absolute() / self._weights
        try:
            self._save(model, folder)
            if processes() > 1:
                torch.distributed.barrier()  # none of them samples with the old weights any more
            self._update(partial(self._load, folder))
        finally:
            if _is_first():
                shutil.rmtree(folder, ignore_errors=True)
        self.version = version

    def _save(self, model: Any, folder: Path) -> None:
        """Write weight by weight, in the type that they are served in."""
        if not _is_first():
            return
        part: dict[str, torch.Tensor] = {}
        number = 0
        wrapped = self._facts[self.in_use[0]].wrapped if self.in_use else False
        weights = [w for w in acting_weights(model) if not is_vision(w.name)]
        try:
            folder.mkdir(parents=True)
            for index, weight in enumerate(weights, start=1):
                name = wrap(weight.name) if wrapped else weight.name
                part[name] = weight.read().to("cpu", self.dtype).contiguous()
                if index == len(weights) or sum(w.nbytes for w in part.values()) >= FILE_BYTES:
                    save_file(part, folder / f"model-{number:05}.safetensors")
                    part, number = {}, number + 1
        except (OSError, SafetensorError) as error:  # the latter is no OSError
            reason = getattr(error, "strerror", None) or one_line(error)
            raise ConfigError(
                f"model.engine.folder={self.folder} cannot be written ({reason})"
            ) from error

    def submit(self, request: Request) -> None:
        """Queue a request; it goes to the least busy server once there is room."""
        if self.version < 0:
            raise RuntimeError("the servers have no weights; the engine has to be synced first")
        self._open()
        self._requests.start(request.id, self._complete, request)

    def step(self) -> list[Output]:
        """Wait until at least one request has ended.

        Raises:
            ConfigError: if no server is left.
        """
        return [output for _, output in self._requests.take(wait=True)]

    def cancel(self) -> None:
        """Stop all requests."""
        self.sleep()

    def drop(self, request_id: int) -> None:
        """Stop one request."""
        self._requests.drop(request_id)

    def sleep(self) -> None:
        """Close the connections; the next submit opens new ones."""
        self._requests.close(lambda: self._http.close())

    def _open(self) -> None:
        if not self._requests.is_open:
            self._requests.open()
            slots = max(self.max_batch, len(self.urls))
            self._room = asyncio.Semaphore(slots)
            self._running = dict.fromkeys(self.urls, 0)
            # None is kept open: a server may close an idle one just when it is used again.
            self._http = Connections(slots, _CONNECT_SECONDS, kept=False)

    # --- all servers -----------------------------------------------------------------------------

    def _update(self, action: Callable[[str], Awaitable[None]]) -> None:
        """Let the first process do something with all servers; those that fail are left out.

        Raises:
            ConfigError: if all do.
        """
        if _is_first():
            self._open()
            before, self.faults = self.faults, {}
            self._requests.call(self._try_all, action)
            for url, fault in self.faults.items():
                if url not in before:
                    _warn(url, fault)
        self._facts, self.faults = _from_first((self._facts, self.faults))
        self._require_one()
        self.max_batch = -(-sum(self._facts[url].slots for url in self.in_use) // processes())
        self.sleep()  # what is opened next has room for so many

    async def _try_all(self, action: Callable[[str], Awaitable[None]]) -> None:
        results = await asyncio.gather(*map(action, self.urls), return_exceptions=True)
        for url, result in zip(self.urls, results, strict=True):
            if isinstance(result, ServerError):
                self.faults[url] = str(result)
            elif result is not None:
                raise result

    def _require_one(self) -> None:
        if not self.in_use:
            reasons = "; ".join(f"{url}: {self.faults[url]}" for url in self.urls)
            raise ConfigError(
                f"no server of model.engine.urls is left ({reasons}). Start them as "
                "docs/scaling.md says; --ckpt_path last then continues the training"
            )

    async def _read_facts(self, url: str) -> None:
        """Store a server's options, if it can serve this policy beside the others."""
        answer = await self._exchange(url, "/server_info?config_format=json")
        facts = read_facts(answer, self._max_model_len)
        for other in (self._facts[name] for name in self.urls if name in self._facts):
            if (facts.dtype, facts.wrapped) != (other.dtype, other.wrapped):
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
            await self._exchange(url, "/collective_rpc", load)
        except ServerError as error:
            raise ServerError(
                f"it has not loaded {folder}, which has to be the same there: {error}"
            ) from error
        await self._exchange(url, "/reset_prefix_cache", {})
        await self._exchange(url, "/update_weight_version", {"new_version": self._weights})

    # --- one request -----------------------------------------------------------------------------

    async def _complete(self, request: Request) -> Output:
        """Try one server after the other, until one answers with the present weights."""
        body = generate_body(request, self._stop_token_ids)
        limit = request.sampling.max_completion_tokens
        async with self._room:
            while True:
                self._require_one()
                # The one with the largest share of free slots.
                url = min(self.in_use, key=lambda url: self._running[url] / self._facts[url].slots)
                self._running[url] += 1
                try:
                    answer = await self._exchange(url, "/inference/v1/generate", body)
                    drawn = read_generation(answer, self._weights, limit, self._vocabulary)
                    return Output(id=request.id, version=self.version, **drawn._asdict())
                except ServerError as error:
                    if url not in self.faults:
                        self.faults[url] = str(error)
                        _warn(url, str(error))
                finally:
                    self._running[url] -= 1

    async def _exchange(self, url: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """One answer; a lost connection or a server's own error is tried twice.

        Raises:
            ServerError: if there is none.
        """
        data = None if body is None else json.dumps(body).encode("ascii")
        for last in (False, True):
            try:
                return await self._http.exchange(url + path, data, self.timeout)
            except ServerError as error:
                if last or error.status in (200, TIMED_OUT) or not error.temporary:
                    raise ServerError(f"{path}: {error}") from error
            await asyncio.sleep(_PAUSE)
        raise AssertionError


def _warn(url: str, fault: str) -> None:
    """By each process: others may not have noticed."""
    warnings.warn(
        f"{url} is left out until a later sync: {fault}. Its unfinished requests go to the others",
        stacklevel=3,
    )


def _is_first() -> bool:
    return processes() == 1 or torch.distributed.get_rank() == 0


def _from_first(value: Any) -> Any:
    """The value that the first process has."""
    values = [value]
    if processes() > 1:
        torch.distributed.broadcast_object_list(values, src=0)
    return values[0]
