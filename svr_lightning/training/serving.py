"""The policy as an engine serves it: started, synced, watched, and checked against the trainer."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from svr_lightning.engines.base import Engine
from svr_lightning.engines.choice import choose_engine
from svr_lightning.training.weight_watch import PATIENCE, WeightWatch


class PolicyEngine:
    """Keeps one engine on the present weights of one policy.

    Args:
        policy: a transformers causal language model.
        engine: what samples; None chooses by device.
        stop_token_ids: what ends a completion.
        max_model_len: longest prompt and completion together, in tokens.
        device_type: where the policy trains.
    """

    def __init__(
        self,
        policy: Any,
        engine: Engine | None,
        *,
        stop_token_ids: tuple[int, ...],
        max_model_len: int,
        device_type: str,
    ) -> None:
        if engine is None:
            engine, why = choose_engine(device_type)
            rank_zero_info(f"engine: {why}")
        engine.start(policy, stop_token_ids, max_model_len)
        self.engine = engine
        self._policy = policy
        self._watch: WeightWatch | None = None
        self._replaced = True
        self._sync_seconds: float | None = None

    def weights_replaced(self) -> None:
        """The policy's weights are others now, though no optimizer step was taken."""
        self._replaced = True

    @contextmanager
    def sampling(self, version: int) -> Iterator[None]:
        """The policy in eval mode, the engine awake and on its weights of ``version`` steps."""
        training = self._policy.training
        self._policy.eval()
        try:
            if self._replaced or self.engine.version != version:
                self._sync(version)
            with torch.no_grad():
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
        assert self.engine.dtype is not None
        self._watch = WeightWatch(self._policy, self.engine.dtype)

    def changed_share(self) -> float:
        """The share of the served weights that the last optimizer step changed, in [0, 1].

        Warns where several steps in a row changed none.
        """
        assert self._watch is not None
        share = self._watch.changed_share(self._policy)
        if self._watch.still == PATIENCE:
            rank_zero_warn(
                f"no weight that the engine serves has changed over {PATIENCE} optimizer steps: "
                f"model.optimizer.lr is too small for {str(self.engine.dtype).split('.')[-1]}"
            )
        return share

    def _sync(self, version: int) -> None:
        started = time.perf_counter()
        self.engine.sync(self._policy, version)
        self._replaced = False
        self._sync_seconds = time.perf_counter() - started


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
