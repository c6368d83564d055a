"""Drawing one token per row of a batch, each row from its own seed."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from svr_lightning.core.types import Decoding


def uniforms(seed: int, count: int) -> list[float]:
    """``count`` uniform numbers in [0, 1) for one completion, the same wherever it runs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64).tolist()


def draw_tokens(
    logits: Tensor, params: Sequence[Decoding], draws: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw the next token of every row by inverting its distribution function.

    Args:
        logits: [B, V] raw scores.
        params: [B] how each row samples.
        draws: [B] one uniform number per row; greedy rows ignore theirs.

    Returns:
        [B] token ids and [B] log-probabilities (nats) over the full vocabulary, at the row's
        temperature (at 1 for greedy rows). top-p and top-k limit what is drawn, not what the
        log-probabilities are normalised over.
    """
    temperatures = [p.temperature if p.temperature > 0 else 1.0 for p in params]
    scale = torch.tensor(temperatures, device=logits.device).unsqueeze(1)
    logp = torch.log_softmax(logits.float() / scale, dim=-1)
    greedy = [p.temperature <= 0 for p in params]
    if all(greedy):
        tokens = logp.argmax(dim=-1)
    else:
        tokens = _invert(_restrict(logp, params), draws)
        if any(greedy):
            chosen_greedily = torch.tensor(greedy, device=logits.device)
            tokens = torch.where(chosen_greedily, logp.argmax(dim=-1), tokens)
    chosen = logp.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return tokens.tolist(), chosen.tolist()


def _invert(probs: Tensor, draws: Sequence[float]) -> Tensor:
    """[B] the first token whose cumulative probability exceeds the row's draw."""
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    target = torch.tensor(draws, dtype=torch.float64, device=probs.device).unsqueeze(1)
    token = torch.searchsorted(cumulative, target * cumulative[:, -1:], right=True)
    return token.squeeze(1).clamp(max=probs.shape[-1] - 1)


def _restrict(logp: Tensor, params: Sequence[Decoding]) -> Tensor:
    """[B, V] probabilities with what top-k and top-p exclude set to zero."""
    if all(p.top_p >= 1.0 and p.top_k <= 0 for p in params):
        return logp.exp()
    size, device = logp.shape[-1], logp.device
    ordered, order = logp.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.exp()
    ranks = torch.arange(size, device=device).unsqueeze(0)
    limits = [p.top_k if p.top_k > 0 else size for p in params]
    top_k = torch.tensor(limits, device=device).unsqueeze(1)
    ordered = torch.where(ranks < top_k, ordered, 0.0)
    # Rounding must not cut the tail of a row that keeps all: it would depend on its batch. And a
    # mass that is 0 in fp32 would keep nothing.
    masses = [max(p.top_p, 1e-30) if p.top_p < 1.0 else math.inf for p in params]
    top_p = torch.tensor(masses, device=device).unsqueeze(1)
    mass_before = ordered.cumsum(dim=-1) - ordered
    ordered = torch.where(mass_before < top_p * ordered.sum(dim=-1, keepdim=True), ordered, 0.0)
    return torch.zeros_like(logp).scatter(1, order, ordered)
