"""The policy as an engine serves it: started, synced, watched, and checked against the trainer."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from svr_lightning.engines.base import Engine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.engines.vllm import VLLMEngine

WATCHED = 4096
"""Elements of each parameter that are watched for changes."""
PATIENCE = 5
"""Steps without any change before it is worth a warning."""


def choose_engine(device_type: str) -> tuple[Engine, str]:
    """The engine of a configuration that names none, and why this one in a few words.

    Args:
        device_type: where the policy trains, ``cuda`` or ``cpu``.

    Raises:
        ConfigError: if the vLLM that would be chosen is of a release that is not supported.
    """
    if device_type != "cuda":
        return TransformersEngine(), "transformers, since the policy is not on a GPU"
    if find_spec("vllm") is None:
        return TransformersEngine(), "transformers, since vLLM is not installed; it is slower"
    return VLLMEngine(), "vLLM, in the training process"


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Outside of every ambient mode: default device and dtype, autocast, inference mode.

    Lightning loads models under a default device and dtype, and validates under autocast and
    inference mode. An engine that makes tensors of its own would take them over.
    """
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with ExitStack() as modes:
            if torch.get_default_device().type != "cpu":
                modes.enter_context(torch.device("cpu"))
            modes.enter_context(torch.inference_mode(False))
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    modes.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        torch.set_default_dtype(dtype)


class PolicyEngine:
    """Keeps one engine on the present weights of one policy.

    Args:
        policy: a transformers causal language model.
        engine: what samples; None chooses by device.
        stop_token_ids: what ends a completion.
        max_model_len: longest prompt and completion together, in tokens.
        device_type: where the policy trains.
        trajectories: of one rollout on this engine; None where nothing trains.
    """

    def __init__(
        self,
        policy: Any,
        engine: Engine | None,
        *,
        stop_token_ids: tuple[int, ...],
        max_model_len: int,
        device_type: str,
        trajectories: int | None = None,
    ) -> None:
        if engine is None:
            engine, why = choose_engine(device_type)
            rank_zero_info(f"engine: {why}")
        engine.trajectories = trajectories
        with plain_tensors():
            engine.start(policy, stop_token_ids, max_model_len)
        self.engine = engine
        self._policy = policy
        self._replaced = True
        self._sync_seconds: float | None = None
        self._watched: list[Tensor] = []
        self._still = 0

    def weights_replaced(self) -> None:
        """The policy's weights are others now, though no optimizer step was taken."""
        self._replaced = True

    @contextmanager
    def sampling(self, version: int) -> Iterator[None]:
        """The policy in eval mode, the engine awake and on its weights of ``version`` steps."""
        training = self._policy.training
        self._policy.eval()
        try:
            with plain_tensors(), torch.no_grad():
                if self._replaced or self.engine.version != version:
                    started = time.perf_counter()
                    self.engine.sync(self._policy, version)
                    self._replaced = False
                    self._sync_seconds = time.perf_counter() - started
                yield
        finally:
            self.engine.sleep()
            self._policy.train(training)

    def sync_seconds(self) -> float | None:
        """How long the last sync took; None where there was none since this was last asked."""
        seconds, self._sync_seconds = self._sync_seconds, None
        return seconds

    def start_watching(self) -> None:
        """Take the present weights as those that the next optimizer step changes."""
        self._watched = self._served_sample()

    def changed_share(self) -> float:
        """The share of the served weights that the last optimizer step changed, in [0, 1].

        A learning rate of 4e-8 moves an fp32 weight by far less than bf16 can show, so that many
        steps may pass before a weight that is served in bf16 changes. Several steps in a row that
        change none give a warning.
        """
        now = self._served_sample()
        pairs = zip(now, self._watched, strict=True)
        changed = sum(int((new != old).sum()) for new, old in pairs)
        self._watched = now
        self._still = 0 if changed else self._still + 1
        if self._still == PATIENCE:
            rank_zero_warn(
                f"no weight that the engine serves has changed over {PATIENCE} optimizer steps: "
                f"model.optimizer.lr is too small for {str(self.engine.dtype).split('.')[-1]}"
            )
        return changed / max(sum(weights.numel() for weights in now), 1)

    @torch.no_grad()
    def _served_sample(self) -> list[Tensor]:
        """Evenly spaced elements of each trained parameter, in the engine's type."""
        samples = []
        for parameter in self._policy.parameters():
            if parameter.requires_grad:
                flat = parameter.detach().reshape(-1)
                stride = max(1, flat.numel() // WATCHED)
                samples.append(flat[::stride].to(self.engine.dtype, copy=True))
        return samples


def require_agreement(gap: float, limit: float, step: int) -> None:
    """The canary: trainer and engine must agree on how likely the sampled tokens were.

    Args:
        gap: mean absolute difference of their log-probabilities, in nats.
        limit: largest gap that rounding explains.
        step: the optimizer step that was about to be taken.

    Raises:
        RuntimeError: above the limit, or where the gap is not a number.
    """
    if not gap <= limit:
        raise RuntimeError(
            f"engine/logprob_diff is {gap:.3g} at optimizer step {step}, above "
            f"model.sampling.max_logprob_diff={limit}: the engine does not sample from the policy "
            "that trains. Its weights are stale or wrong, or it computes in another precision. "
            "Stopped before the update; the last checkpoint is intact"
        )
