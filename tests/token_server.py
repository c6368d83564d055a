"""A server of vLLM's token protocol whose completions follow from prompt and seed alone."""

import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

EOS = 7


def drawn(body: dict[str, Any]) -> list[int]:
    """Five tokens, the last one an end."""
    start = sum(body["token_ids"]) + body["sampling_params"]["seed"]
    return [*((start * place) % 31 + 8 for place in range(1, 5)), EOS]


class Listening(ThreadingHTTPServer):
    """With room for many connections at once: five are the default."""

    request_queue_size = 128
    daemon_threads = True


class TokenServer:
    """Serves on a free port of this machine.

    Args:
        model: changes to what it says of its model.
        device: where its model is.
    """

    def __init__(self, *, device: str = "cuda", **model: Any) -> None:
        self.info: dict[str, Any] = {
            "model_config": {
                **{"logprobs_mode": "processed_logprobs", "max_model_len": 512},
                **{"dtype": "torch.float32", "multimodal_config": None, **model},
            },
            "scheduler_config": {"max_num_seqs": 4},
            "device_config": {"device": device},
        }
        self.weights: dict[str, Any] = {}
        """As it has loaded them."""
        self.pushes = 0
        self.bodies: list[dict[str, Any]] = []
        """Of the completions that it was asked for."""
        self.fault = ""
        """Of its completions: a status, ``drop``, ``garbage``, ``restarted``, ``infinite``; of all
        that it is asked for: ``hang``, ``gone``."""
        self.faulty = math.inf
        """Completions after which its fault is over."""
        self._version = "default"
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server._answer(self, {})

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                server._answer(self, json.loads(self.rfile.read(length)))

            def log_message(self, *_: Any) -> None:
                pass

        self._http = Listening(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    def _answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        path = handler.path.split("?")[0].removeprefix("/")
        if self.fault in ("hang", "gone"):
            while self.fault == "hang":
                time.sleep(0.01)
            return
        if path == "inference/v1/generate":
            self.bodies.append(body)
            if len(self.bodies) > self.faulty:
                self.fault = ""
            if self.fault == "drop":
                return
        status = int(self.fault) if self.fault.isdigit() and "generate" in path else 200
        said = {"error": "too bad"} if status != 200 else self._said(path, body)
        data = b"<html>" if self.fault == "garbage" else json.dumps(said).encode()
        try:
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)
        except OSError:
            pass  # whoever asked has gone

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
        tokens = drawn(body)
        version = "default" if self.fault == "restarted" else self._version
        nats = -9999.0 if self.fault == "infinite" else -0.5
        choice = {
            "token_ids": tokens,
            "logprobs": {"content": [{"token_id": token, "logprob": nats} for token in tokens]},
            "finish_reason": "stop",
            "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}],
        }
        return {"choices": [choice]}

    def stop(self) -> None:
        """Answer nothing any more."""
        self.fault = ""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
