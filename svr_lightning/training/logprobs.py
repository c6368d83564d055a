"""Per-token log-probabilities of a batch's completions under a model."""

from typing import Any

from torch import Tensor

from svr_lightning.core.losses import token_logprobs
from svr_lightning.training.batching import TrainBatch


def completion_logprobs(model: Any, batch: TrainBatch, temperature: float) -> Tensor:
    """Score only the positions that predict a completion token.

    Args:
        model: a transformers causal language model.
        batch: right-padded sequences.
        temperature: of the rollout.

    Returns:
        [B, T] nats; what stands under padding means nothing and is masked by the loss.
    """
    hidden = model.base_model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
    ).last_hidden_state
    index = batch.predictor.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
    logits = model.get_output_embeddings()(hidden.gather(1, index))
    return token_logprobs(logits, batch.token_ids, temperature)
