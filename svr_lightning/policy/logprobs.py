"""Log-probabilities of completions under a transformers model, as the loss needs them.

Shapes: B sequences, P of them different, L positions of the longest, T completion positions, H
features, C choices.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from svr_lightning.core.linear_logprobs import linear_logprobs
from svr_lightning.core.losses import expected_score
from svr_lightning.core.types import TokenChoice

if TYPE_CHECKING:
    from svr_lightning.training.update import TrainBatch


class Choices(NamedTuple):
    """Places where the policy chose among some tokens, and what each would earn."""

    rows: Tensor
    """[C] row in the token ids of a batch."""
    logit_positions: Tensor
    """[C] position in L whose hidden state predicts the token."""
    token_ids: Tensor
    """[C, A] alternatives, padded with -1."""
    scores: Tensor
    """[C, A]."""

    @classmethod
    def placed(cls, choices: Sequence[tuple[int, int, TokenChoice]]) -> "Choices":
        """Choices of several sequences, each with its row and its position in L."""
        rows, positions = columns([(row, position) for row, position, _ in choices])
        if not choices:
            return cls(rows, positions, rows.reshape(0, 1), torch.zeros(0, 1))
        ids = padded((choice.token_ids for _, _, choice in choices), -1)
        return cls(rows, positions, ids, padded(choice.scores for _, _, choice in choices))

    def to(self, *args: Any, **kwargs: Any) -> "Choices":
        """Move every tensor."""
        return Choices(*(tensor.to(*args, **kwargs) for tensor in self))


def padded(rows: Iterable[Sequence[float]], value: float = 0) -> Tensor:
    """[B, longest row], with ``value`` on the right of shorter ones."""
    tensors = [torch.tensor(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value)


def columns(pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Two columns of indices, also of no pairs."""
    first, second = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).unbind(dim=1)
    return first, second


def completion_logprobs(model: Any, batch: "TrainBatch", temperature: float) -> Tensor:
    """[B, T] nats of the completion tokens under a transformers model, 0 outside of the mask.

    The output layer is applied only to positions that predict them: no prompt, no padding.
    """
    return logprobs_of(model, hidden_states(model, batch), batch, temperature)


def hidden_states(model: Any, batch: "TrainBatch") -> Tensor:
    """[P, L, H] what the output layer reads."""
    output = model.base_model(input_ids=batch.input_ids, use_cache=False, **_no_mask(model))
    hidden: Tensor = output.last_hidden_state
    return hidden


def logprobs_of(model: Any, hidden: Tensor, batch: "TrainBatch", temperature: float) -> Tensor:
    """[B, T] nats from the [P, L, H] ``hidden`` states of a batch, 0 outside of the mask."""
    ids, rows, positions = batch.input_ids, batch.rows, batch.logit_positions
    head = model.get_output_embeddings()
    bias = getattr(head, "bias", None)
    token_ids = ids[rows, positions + 1]
    logp = linear_logprobs(hidden[rows, positions], head.weight, bias, token_ids, temperature)
    return logp.new_zeros(batch.mask.shape).masked_scatter(batch.mask.bool(), logp)


def choice_scores(model: Any, hidden: Tensor, choices: Choices, temperature: float) -> Tensor:
    """[C] the expected score of each choice, from the [P, L, H] ``hidden`` states.

    The output layer is applied only to the alternatives' tokens.
    """
    rows, positions, token_ids, scores = choices
    head = model.get_output_embeddings()
    bias = getattr(head, "bias", None)
    ids = token_ids.clamp(min=0)
    states = hidden[rows, positions]
    logits = torch.einsum("ch,cah->ca", states, head.weight[ids].to(states.dtype)).float()
    if bias is not None:
        logits = logits + bias[ids]
    return expected_score(logits.masked_fill(token_ids < 0, -torch.inf), scores, temperature)


_MASKLESS_MODELS = ("qwen3", "qwen3_5_text")
"""Architectures that take a mask for each kind of layer, as their source says."""
_MASKLESS_LAYERS = ("full_attention", "linear_attention")


def _no_mask(model: Any) -> dict[str, Any]:
    """Arguments that tell ``model`` that its rows need no mask, if it supports them.

    Causal layers never look to the right of a token, and the loss leaves padding out. Otherwise
    transformers derives a mask from the positions, which waits for the GPU.
    """
    layers = set(getattr(model.config, "layer_types", None) or ())
    attention = str(model.config._attn_implementation)
    supported = model.config.model_type in _MASKLESS_MODELS and layers <= set(_MASKLESS_LAYERS)
    causal = attention == "sdpa" or attention.startswith("flash")
    return {"attention_mask": dict.fromkeys(_MASKLESS_LAYERS)} if supported and causal else {}
