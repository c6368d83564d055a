"""Samples to tensors: right-padded micro-batches whose losses add up to one plain mean."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from svr_lightning.core.types import Sample


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """One micro-batch. B sequences, L prompt and completion positions, T completion positions."""

    input_ids: Tensor
    """[B, L] prompt, then completion, then padding on the right."""
    attention_mask: Tensor
    """[B, L] 1 on real tokens."""
    predictor: Tensor
    """[B, T] position in L whose hidden state predicts each completion token."""
    token_ids: Tensor
    """[B, T] completion tokens."""
    mask: Tensor
    """[B, T] 1 on real completion tokens: the only ones in the loss."""
    logprobs: Tensor
    """[B, T] nats, under the policy that sampled."""
    advantages: Tensor
    """[B]."""
    weight: float
    """Multiplies the sum of the sequences' losses: B-independent, so that the mean over an
    optimizer step is the plain mean over its sequences however they are split."""
    group_ids: tuple[str, ...]
    """[B] problem of each sequence, for messages."""

    def to(self, *args: Any, **kwargs: Any) -> "TrainBatch":
        """Move every tensor, as Lightning does with a batch."""
        moved = {
            f.name: value.to(*args, **kwargs)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)

    def __len__(self) -> int:
        return len(self.group_ids)


def micro_batches(
    samples: Sequence[Sample], *, accumulate: int, updates: int, version: int
) -> list[TrainBatch]:
    """Split one rollout's samples into the micro-batches of its optimizer steps.

    Whole groups go to each of the ``updates`` optimizer steps in turn; within one step sequences
    are sorted by length, which saves padding and, each sequence weighing the same, changes nothing.

    Args:
        samples: one rank's share of the rollout.
        accumulate: micro-batches per optimizer step.
        updates: optimizer steps per rollout.
        version: optimizer steps behind the weights that must have sampled all of them.

    Raises:
        RuntimeError: if a sample comes from other weights than the present ones.
        ValueError: if the samples do not divide into equal optimizer steps.
    """
    stale = {sample.policy_version for sample in samples} - {version}
    if stale:
        raise RuntimeError(
            f"the engine sampled with weights of step {sorted(stale)[0]} at step {version}; "
            "it was not synced after the last update"
        )
    if len(samples) % (accumulate * updates):
        raise ValueError(
            f"{len(samples)} samples do not divide into {updates} x {accumulate} micro-batches"
        )
    per_step = len(samples) // updates
    batches = []
    for start in range(0, len(samples), per_step):
        step = sorted(
            samples[start : start + per_step],
            key=lambda s: len(s.prompt_ids) + len(s.completion_ids),
        )
        size = per_step // accumulate
        batches += [pad(step[i : i + size], weight=1.0 / size) for i in range(0, per_step, size)]
    return batches


def pad(samples: Sequence[Sample], weight: float) -> TrainBatch:
    """Pad sequences on the right to a common length."""
    sequences = [[*s.prompt_ids, *s.completion_ids] for s in samples]
    length = max(len(sequence) for sequence in sequences)
    completion = max(len(s.completion_ids) for s in samples)
    predictor = [
        [min(len(s.prompt_ids) - 1 + t, length - 1) for t in range(completion)] for s in samples
    ]
    return TrainBatch(
        input_ids=_rows(sequences, length, 0),
        attention_mask=_rows([[1] * len(sequence) for sequence in sequences], length, 0),
        predictor=torch.tensor(predictor),
        token_ids=_rows([s.completion_ids for s in samples], completion, 0),
        mask=_rows([[1] * len(s.completion_ids) for s in samples], completion, 0),
        logprobs=_rows([s.logprobs for s in samples], completion, 0.0),
        advantages=torch.tensor([s.advantage for s in samples]),
        weight=weight,
        group_ids=tuple(s.group_id for s in samples),
    )


def _rows(rows: Sequence[Sequence[float]], length: int, fill: float) -> Tensor:
    return torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows])
