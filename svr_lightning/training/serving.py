"""The engine that serves the policy, and how it gets the current weights."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch._C import _len_torch_function_stack
from torch.overrides import _pop_mode_temporarily

from svr_lightning.engines.base import Engine
from svr_lightning.engines.lora import acting_weights
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.engines.vllm import VLLMEngine
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.logs import seconds_now
from svr_lightning.training.policy import probe, stop_token_ids

PATIENCE = 5
"""Steps without a changed weight before a warning."""


def choose_engine(device_type: str) -> Engine:
    """The default engine for a policy on ``cuda`` or ``cpu``; logs which one, and why.

    Raises:
        ConfigError: if the vLLM that would be chosen is of a release that is not supported.
    """
    if device_type == "cuda" and find_spec("vllm") is not None:
        rank_zero_info("engine: vLLM, in the training process")
        return VLLMEngine()
    without = "vLLM is not installed" if device_type == "cuda" else "the policy is not on a GPU"
    rank_zero_info(f"engine: transformers, since {without}")
    return TransformersEngine()


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Turns every ambient mode off: default device and dtype, autocast, inference mode.

    Lightning loads models under a default device and dtype, and validates under autocast and
    inference mode. They would apply to tensors that an engine creates.
    """
    with ExitStack() as modes:
        modes.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        for _ in range(_len_torch_function_stack()):  # a default device is one
            modes.enter_context(_pop_mode_temporarily())
        modes.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        yield


class PolicyEngine:
    """Keeps the current weights of one policy in one engine.

    Args:
        policy: a transformers causal language model.
        engine: what samples.
        renderer: of the policy's prompts.
    """

    def __init__(self, policy: Any, engine: Engine, renderer: Renderer) -> None:
        ends = stop_token_ids(policy, renderer.tokenizer)
        with plain_tensors():
            engine.start(policy, ends, renderer.max_model_len)
        self.engine = engine
        self._policy = policy
        self.weights_replaced()
        self._watched: list[Tensor] = []
        self._unchanged_steps = 0

    def weights_replaced(self) -> None:
        """Sync before the next sampling: the weights changed without an optimizer step."""
        self.engine.version = -1

    @contextmanager
    def sampling(self, version: int) -> Iterator[float | None]:
        """The policy in eval mode, the engine awake and with its weights of ``version`` steps.

        Yields the seconds that a sync took; None if the engine had these weights.
        """
        seconds, training = None, self._policy.training
        self._policy.eval()
        with plain_tensors(), torch.no_grad():
            try:
                if self.engine.version != version:
                    started = seconds_now()
                    self.engine.sync(self._policy, version)
                    seconds = seconds_now() - started
                yield seconds
            finally:
                self.engine.sleep()
                self._policy.train(training)

    def start_watching(self) -> None:
        """Remember the current weights, to compare with those after the next optimizer step."""
        self._watched = self._served_sample()

    def changed_share(self) -> float:
        """The share of the served weights that the last optimizer step changed, in [0, 1].

        A learning rate of 4e-8 changes an fp32 weight by far less than bf16 can represent, so many
        steps may pass before a weight served in bf16 changes. Several steps in a row without any
        change give a warning.
        """
        now = self._served_sample()
        pairs = zip(now, self._watched, strict=True)
        changed = sum(int((new != old).sum()) for new, old in pairs)
        self._watched = now
        self._unchanged_steps = 0 if changed else self._unchanged_steps + 1
        if self._unchanged_steps == PATIENCE:
            rank_zero_warn(
                f"no weight that the engine serves has changed over {PATIENCE} optimizer steps: "
                f"model.optimizer.lr is too small for {str(self.engine.dtype).split('.')[-1]}"
            )
        return changed / max(sum(weights.numel() for weights in now), 1)

    def _served_sample(self) -> list[Tensor]:
        """A probe of each trained weight, adapters merged, in the engine's type."""
        trained = (weight for weight in acting_weights(self._policy) if weight.trains)
        return [probe(weight.read()).to(self.engine.dtype, copy=True) for weight in trained]
