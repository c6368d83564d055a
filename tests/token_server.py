"""A server of vLLM's token protocol whose completions follow from prompt and seed alone."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from tests.chat_server import ChatServer, Reply

EOS = 7


def drawn(prompt: Sequence[int], seed: int) -> list[int]:
    """Five tokens, the last one an end."""
    start = sum(prompt) + seed
    return [*((start * place) % 31 + 8 for place in range(1, 5)), EOS]


class TokenServer(ChatServer):
    """Serves from the start.

    Args:
        model: changes to what it says of its model.
        device: where its model is.
    """

    def __init__(self, *, device: str = "cuda", **model: Any) -> None:
        super().__init__(lambda *_: Reply(b""))
        self.url = self.url.removesuffix("/v1")
        self.info = {
            "model_config": {
                **{"logprobs_mode": "processed_logprobs", "max_model_len": 512},
                **{"dtype": "torch.float32", "multimodal_config": None, **model},
            },
            "scheduler_config": {"max_num_seqs": 4},
            "device_config": {"device": device},
        }
        self.weights = {}
        """As it has loaded them."""
        self.pushes = 0
        self.fault = ""
        """Of its completions: a status, ``drop``, ``restarted``; of all that it is asked for:
        ``hang``, ``gone``."""
        self.faulty = math.inf
        """Completions after which its fault is over."""
        self._version = "default"
        self.__enter__()

    def reply(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        """The answer to a request; ``bodies`` are of completions alone."""
        path = path.split("?")[0].removeprefix("/")
        if self.fault in ("hang", "gone"):
            while self.fault == "hang":
                time.sleep(0.01)
            return Reply(b"", drop=True)
        if path == "inference/v1/generate":
            self.bodies.append(body)
            if len(self.bodies) > self.faulty:
                self.fault = ""
            if self.fault == "drop":
                return Reply(b"", drop=True)
        if self.fault.isdigit() and "generate" in path:
            return Reply(b'{"error": "too bad"}', int(self.fault))
        return Reply(json.dumps(self._said(path, body)).encode())

    def _said(self, path: str, body: dict[str, Any]) -> Any:
        match path:
            case "server_info":
                return {"vllm_config": self.info}
            case "collective_rpc":
                assert body["method"] == "reload_weights"
                self._load(Path(body["kwargs"]["weights_path"]))
            case "update_weight_version":
                self._version = body["new_version"]
            case "inference/v1/generate":
                return self._completion(body)
        return {"success": True}

    def _load(self, folder: Path) -> None:
        self.pushes += 1
        self.weights = {}
        for file in sorted(folder.iterdir()):
            self.weights |= load_file(file)

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens = drawn(body["token_ids"], body["sampling_params"]["seed"])
        version = "default" if self.fault == "restarted" else self._version
        choice = {
            "token_ids": tokens,
            "logprobs": {"content": [{"token_id": token, "logprob": -0.5} for token in tokens]},
            "finish_reason": "stop",
            "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}],
        }
        return {"choices": [choice]}

    def stop(self) -> None:
        """Answer nothing any more."""
        self.fault = ""
        self.__exit__()
