"""Several vLLM servers, on this machine or others, as one engine.

At every sync the policy's weights are written to a folder that the servers share. Each server loads
it under a new name, and every answer must have this name. Seeds belong to requests, so a rollout
does not depend on which server completes which request.
"""

import shutil
import uuid
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from safetensors import SafetensorError
from safetensors.torch import save_file

from svr_lightning.engines.base import Engine, Output, Request
from svr_lightning.engines.in_flight import InFlight
from svr_lightning.engines.lora import acting_weights
from svr_lightning.engines.openai import check_url
from svr_lightning.engines.server_pool import ServerPool
from svr_lightning.engines.vllm_process import processes
from svr_lightning.engines.vllm_weights import is_tied, is_vision, wrap
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.files import check_folder

FILE_BYTES = 2**30
"""Weights are written in files of about this size, which is the additional memory needed."""


class ServersEngine(Engine):
    """Sends requests to vLLM servers that serve the policy.

    Each is started with ``VLLM_SERVER_DEV_MODE=1``, ``--enable-scale-out`` and ``--logprobs-mode
    processed_logprobs``; see docs/scaling.md.

    Args:
        urls: addresses of the servers, such as ``http://10.0.0.7:8000``.
        folder: for the weights; the same path here and on every server.
        timeout: seconds that an answer may take, waiting in a server's queue included.
        health_seconds: without an answer for so long, a server is asked for its health, and has as
            long to tell it. Without a server left, twenty times as long is waited for one.

    Raises:
        ConfigError: if an argument is out of range, or the folder cannot be written to.
    """

    def __init__(
        self, urls: list[str], folder: str, timeout: float = 1800.0, health_seconds: float = 30.0
    ) -> None:
        plain = [url.rstrip("/").removesuffix("/v1") for url in urls]
        for url in plain:
            check_url(url, "model.engine.urls")
        require(
            0 < len(set(plain)) == len(plain),
            "model.engine.urls: give at least one server, and none twice",
        )
        for name, value in {"timeout": timeout, "health_seconds": health_seconds}.items():
            require(value > 0, f"model.engine.{name}={value} must be positive")
        rank_zero_only(check_folder)(folder, f"model.engine.folder={folder}")  # it alone writes
        self.folder = folder
        self.version = -1
        self.dtype = torch.bfloat16
        self.max_batch = 0
        self._pool = ServerPool(plain, timeout, health_seconds)
        self._told: set[str] = set()
        self._stop_token_ids: tuple[int, ...] = ()
        self._run, self._pushes, self._weights = uuid.uuid4().hex[:8], 0, ""
        self._asked = InFlight[Output]()

    def start(self, model: Any, stop_token_ids: tuple[int, ...], max_model_len: int) -> None:
        """Ask all servers for their options; those that do not answer may be used later.

        Raises:
            ConfigError: if none answers, or one was started in a way that cannot train.
        """
        self._stop_token_ids = stop_token_ids
        self._pool.max_model_len, self._pool.tied = max_model_len, is_tied(model)
        self._pool.vocabulary = model.config.get_text_config().vocab_size
        if _is_first():
            self._call(self._pool.meet)
        self._agree()
        self.dtype = getattr(torch, next(iter(self._pool.facts.values())).dtype)

    def sync(self, model: Any, version: int) -> None:
        """Write the weights, make every server load them, and use those again that answer.

        Raises:
            ConfigError: if the folder cannot be written to, or no server has loaded them.
        """
        if len(self._asked):
            raise RuntimeError("the engine cannot take new weights while it completes requests")
        self.version = -1
        self._weights = _of_first(f"{self._run}-{self._pushes}")
        self._pushes += 1
        folder = Path(self.folder).absolute() / self._weights
        try:
            self._save(model, folder)
            if processes() > 1:
                torch.distributed.barrier()  # none of them samples with the old weights any more
            if _is_first():
                for url in self._call(self._pool.push, folder, self._weights):
                    rank_zero_info(f"{url} is in use again")
        finally:
            if _is_first():
                shutil.rmtree(folder, ignore_errors=True)
        self._agree()
        self.version = version

    def _save(self, model: Any, folder: Path) -> None:
        """Write weight by weight, in the type that they are served in."""
        part: dict[str, torch.Tensor] = {}
        number = 0
        wrapped = any(facts.wrapped for facts in self._pool.facts.values())
        try:
            if _is_first():
                folder.mkdir(parents=True)
            weights = [w for w in acting_weights(model) if not is_vision(w.name)]
            for place, weight in enumerate(weights, start=1):
                value = weight.read()  # by all processes
                if not _is_first():
                    continue
                name = wrap(weight.name) if wrapped else weight.name
                part[name] = value.to("cpu", self.dtype).contiguous()
                if place == len(weights) or sum(w.nbytes for w in part.values()) >= FILE_BYTES:
                    save_file(part, folder / f"model-{number:05}.safetensors")
                    part, number = {}, number + 1
        except (OSError, SafetensorError) as error:  # the latter is no OSError
            why = getattr(error, "strerror", None) or one_line(error)
            raise ConfigError(
                f"model.engine.folder={self.folder} cannot be written ({why})"
            ) from error

    def _agree(self) -> None:
        """Copy the first process's information on the servers."""
        pool = self._pool
        pool.facts, pool.down = _of_first((pool.facts, pool.down))
        self._tell()
        pool.require_one()
        slots = sum(pool.facts[url].slots for url in pool.in_use)
        self.max_batch = -(-slots // processes())
        self.sleep()  # what is opened next has room for so many

    def submit(self, request: Request) -> None:
        """Queue a request; it goes to the least loaded server once there is room."""
        if self.version < 0:
            raise RuntimeError("the servers have no weights; the engine has to be synced first")
        self._open()
        self._asked.start(request.id, self._complete, request)

    async def _complete(self, request: Request) -> Output:
        drawn = await self._pool.complete(request, self._stop_token_ids, self._weights)
        return Output(id=request.id, version=self.version, **drawn._asdict())

    def step(self) -> list[Output]:
        """Wait until at least one request has ended.

        Raises:
            ConfigError: if no server is left, and none comes back in time.
        """
        try:
            return [output for _, output in self._asked.take(wait=True)]
        finally:
            self._tell()

    def cancel(self) -> None:
        """Stop all requests."""
        self.sleep()

    def drop(self, request_id: int) -> None:
        """Stop one request."""
        self._asked.drop(request_id)

    def sleep(self) -> None:
        """Close the connections; the next submit opens new ones."""
        self._asked.close(self._pool.close)

    def _open(self) -> None:
        if not self._asked.is_open:
            self._asked.open()
            self._asked.call(self._pool.open, max(self.max_batch, 1))

    def _call(self, coroutine: Any, *arguments: Any) -> Any:
        self._open()
        return self._asked.call(coroutine, *arguments)

    def _tell(self) -> None:
        """Name lost servers; here, since the loop has a separate thread."""
        down = dict(self._pool.down)
        for url in down.keys() - self._told:
            warnings.warn(  # by each process: others may not have asked it
                f"{url} is left out until a later sync: {down[url]}. What it has not completed "
                "goes to the other servers",
                stacklevel=2,
            )
        self._told = set(down)


def _is_first() -> bool:
    return processes() == 1 or torch.distributed.get_rank() == 0


def _of_first(value: Any) -> Any:
    """The value that the first process has."""
    held = [value]
    if processes() > 1:
        torch.distributed.broadcast_object_list(held, src=0)
    return held[0]
