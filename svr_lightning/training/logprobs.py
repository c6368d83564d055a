"""Per-token log-probabilities of a batch's completions under a model."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from svr_lightning.core.linear_logprobs import linear_logprobs
from svr_lightning.training.batching import TrainBatch


def completion_logprobs(model: Any, batch: TrainBatch, temperature: float) -> Tensor:
    """Score only the positions that predict a completion token.

    Hidden states of those positions are packed, so that neither prompt nor padding meets the
    output layer. Where the batch comes in several parts, the model runs on one at a time, and the
    backward pass repeats each part's forward pass: one part's activations exist at a time.

    Args:
        model: a transformers causal language model.
        batch: right-padded sequences.
        temperature: of the rollout.

    Returns:
        [B, T] nats, 0 under padding.
    """
    parts = batch.forwards()
    if len(parts) > 1 and torch.is_grad_enabled():
        packed = [
            checkpoint(_packed_hidden, model, *part, use_reentrant=False, preserve_rng_state=False)
            for part in parts
        ]
    else:
        packed = [_packed_hidden(model, *part) for part in parts]
    head = model.get_output_embeddings()
    token_ids = batch.input_ids[batch.rows, batch.logit_positions + 1]
    logp = linear_logprobs(
        torch.cat(packed), head.weight, getattr(head, "bias", None), token_ids, temperature
    )
    return logp.new_zeros(batch.mask.shape).masked_scatter(batch.mask.bool(), logp)


def _packed_hidden(
    model: Any, input_ids: Tensor, attention_mask: Tensor, rows: Tensor, logit_positions: Tensor
) -> Tensor:
    """[N, H] hidden states of the positions that predict a completion token."""
    hidden = model.base_model(
        input_ids=input_ids, attention_mask=attention_mask, use_cache=False
    ).last_hidden_state
    return hidden[rows, logit_positions]  # type: ignore[no-any-return]
