"""The canary: trainer and engine must agree on the probabilities of the sampled tokens.

They compute the same numbers with different kernels, so they never agree exactly. The difference by
rounding alone depends on precision, depth and architecture; the run measures it.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from svr_lightning.training.gathering import gather_lists, of_this_rank
from svr_lightning.training.update import TrainBatch, completion_logprobs

LEAST = 1e-6
"""Floor in nats that the softmax alone has: in fp32 scores of size ten are rounded by as much."""
WINDOW = 10
"""Latest rollouts whose floors are averaged: one of few tokens, or sure ones, says little."""
PATIENCE = 3
"""Rollouts in a row above the limit that end a run; those before give warnings."""


@torch.no_grad()
def rounding_floor(
    policy: Any, batch: TrainBatch, temperature: float, *, served: torch.dtype, seed: int
) -> float:
    """The change of a batch's log-probabilities by rounding alone, in nats per token.

    The mean absolute difference between the log-probabilities of the policy and those of the same
    policy whose layers each make a rounding error (:func:`roundings`).

    Args:
        policy: a transformers causal language model, in the precision context of the update.
        batch: completions, on the policy's device.
        temperature: of the rollout.
        served: type in which the engine computes.
        seed: of the errors.
    """
    device = batch.input_ids.device.type
    autocast = torch.is_autocast_enabled(device)
    trained = torch.get_autocast_dtype(device) if autocast else policy.dtype
    coarser = max(served, trained, key=lambda dtype: torch.finfo(dtype).eps)
    plain = completion_logprobs(policy, batch, temperature)
    with roundings(policy, coarser, seed):
        rounded = completion_logprobs(policy, batch, temperature)
    moved = ((plain - rounded).abs() * batch.mask).sum() / batch.mask.sum()
    return max(moved.item(), LEAST)


@contextmanager
def roundings(model: nn.Module, dtype: torch.dtype, seed: int) -> Iterator[None]:
    """Within it, a rounding error of ``dtype`` is added to the output of each layer with weights.

    An output y becomes y (1 + e), with e uniform in [-eps / 2, eps / 2] for each element: what
    storing y in ``dtype`` does to it.
    """
    eps = torch.finfo(dtype).eps
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)

    def disturb(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return output
        error = torch.rand(output.shape, generator=generator, device=device).sub_(0.5).mul_(eps)
        return (output.float() * error.add_(1.0)).to(output.dtype)

    with ExitStack() as hooks:
        for layer in model.modules():
            if next(layer.parameters(recurse=False), None) is not None:
                hooks.callback(layer.register_forward_hook(disturb).remove)
        yield


class Canary:
    """Checks the agreement of each rollout, and ends a run that fails several times in a row.

    Args:
        most: largest allowed mean difference, as a multiple of the rounding floor.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._above = 0
        self._floors: deque[float] = deque(maxlen=WINDOW)

    def state_dict(self) -> dict[str, Any]:
        """The states of all processes for a checkpoint: a run that is often resumed is judged too.

        Every process must call it.
        """
        return {"ranks": gather_lists([{"above": self._above, "floors": list(self._floors)}])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        If the number of processes is another, each takes the longest row of rollouts above the
        limit and the floors of all.
        """
        states = state.get("ranks", [state])  # earlier versions had that of the first process alone
        own = of_this_rank(states)
        states = states if own is None else [own]
        self._above = max(one["above"] for one in states)
        self._floors.extend(floor for one in states for floor in one["floors"])

    def judge(self, gap: float, floor: float, step: int) -> str | None:
        """A warning if ``gap`` is above the limit.

        Args:
            gap: mean absolute difference of trainer's and engine's log-probabilities, in nats.
            floor: what rounding alone explains of it, in nats, measured on a part of the rollout;
                the limit follows from the mean of the last :data:`WINDOW`.
            step: optimizer step, from 1.

        Raises:
            RuntimeError: above the limit for the :data:`PATIENCE`-th time in a row, or at once
                where the gap is not a number.
        """
        self._floors.append(floor)
        limit = self._most * fmean(self._floors)
        self._above = 0 if gap <= limit else self._above + 1
        if not self._above:
            return None
        said = (
            f"engine/logprob_diff is {gap:.3g} at optimizer step {step}, above {limit:.3g}, which "
            f"is model.sampling.max_logprob_noise={self._most:g} times the mean of "
            "engine/logprob_floor: the engine does not sample from the policy that trains. Its "
            "weights are stale or wrong, or it computes in another precision"
        )
        if math.isnan(gap) or self._above == PATIENCE:
            raise RuntimeError(f"{said}. Stopped before the update; the last checkpoint is intact")
        return f"{said}. The run stops after {PATIENCE} such rollouts in a row"
