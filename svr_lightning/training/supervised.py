"""Supervised training on documents, for any policy."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from svr_lightning.core.schedule import warmup_stable_decay
from svr_lightning.core.types import Verdict
from svr_lightning.policy.logprobs import Choices, padded
from svr_lightning.training.checkpoint import DurableCheckpointIO
from svr_lightning.training.documents import Encoded
from svr_lightning.training.logs import require_finite_number

SAVE_STEPS = 50
SAVE_SECONDS = 600
"""After so many optimizer steps, or so long, there is another checkpoint."""
VARIANCE = 0.0484
"""Of the confidences that a policy learns to draw: their standard deviation is 0.22."""


def train(
    model: Any,
    documents: Iterator[Encoded],
    *,
    steps: int,
    rate: float,
    batch: int,
    micro_batch: int = 16,
    checkpoint: Path | None = None,
) -> list[float]:
    """Train the weights that require a gradient, in place.

    Args:
        model: a causal language model, on any device.
        documents: endless.
        steps: optimizer steps.
        rate: peak learning rate.
        batch: documents per step.
        micro_batch: documents per forward pass.
        checkpoint: file from which an interrupted training continues; None keeps none.

    Returns:
        The loss of every step, in nats a token.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    shape = {"warmup_fraction": 0.02, "decay_fraction": 0.5, "floor": 0.01}
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warmup_stable_decay(step, steps, **shape)
    )
    losses = [] if checkpoint is None else _restore(checkpoint, model, optimizer, schedule)
    next(itertools.islice(documents, len(losses) * batch, len(losses) * batch), None)
    done = len(losses)
    started = saved = time.monotonic()
    model.train()
    for step in range(done + 1, steps + 1):
        chosen = sorted(itertools.islice(documents, batch), key=lambda e: len(e.ids))
        losses.append(_accumulate(model, chosen, micro_batch))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        require_finite_number("gradient", norm.item(), step, ())
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0 or step == steps:
            taken = (time.monotonic() - started) / 60
            left = taken * (steps - step) / (step - done)
            loss = fmean(losses[-10:])
            rank_zero_info(
                f"step {step}/{steps}  loss {loss:.4f}  minutes {taken:.1f}, left {left:.1f}"
            )
        due = step % SAVE_STEPS == 0 or time.monotonic() - saved >= SAVE_SECONDS
        if checkpoint is not None and due:
            _save(checkpoint, model, optimizer, schedule, losses)
            saved = time.monotonic()
    model.eval()
    return losses


def _restore(path: Path, model: Any, optimizer: Any, schedule: Any) -> list[float]:
    """Continue from a checkpoint, if there is one; the losses of the steps behind it."""
    if not path.is_file():
        return []
    saved = DurableCheckpointIO().load_checkpoint(path, map_location=model.device)
    model.load_state_dict(saved["weights"], strict=False)
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    return list(saved["losses"])


def _save(path: Path, model: Any, optimizer: Any, schedule: Any, losses: list[float]) -> None:
    """Write a checkpoint of the weights that train, whole or not at all."""
    state = {
        "weights": {name: p for name, p in model.named_parameters() if p.requires_grad},
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "losses": losses,
    }
    DurableCheckpointIO().save_checkpoint(state, path)


def _accumulate(model: Any, chosen: list[Encoded], micro_batch: int) -> float:
    """Add the gradient of one step, in batches of similar length; returns its mean loss."""
    total = sum(sum(e.weights[1:]) for e in chosen)
    loss_sum = 0.0
    for start in range(0, len(chosen), micro_batch):
        some = chosen[start : start + micro_batch]
        # [B, L], padded on the right, where causal attention never reaches the padding.
        ids = padded(e.ids for e in some).to(model.device)
        weights = padded(e.weights for e in some).to(model.device)
        ids, targets, weights = ids[:, :-1], ids[:, 1:], weights[:, 1:]
        choices = Choices.placed(
            [
                (row, choice.position - 1, choice)
                for row, encoded in enumerate(some)
                for choice in encoded.choices
            ]
        ).to(model.device)
        places = choices.rows, choices.logit_positions
        learn = weights > 0
        learn[places] = False
        # Other processors compute products in bfloat16 in software, more slowly than in fp32.
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda or fast):
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            logits = model.get_output_embeddings()(hidden[learn]).float()
            stated = model.get_output_embeddings()(hidden[places]).float()
        losses = torch.nn.functional.cross_entropy(logits, targets[learn], reduction="none")
        labels = torch.tensor([float(e.correct) for e in some]).to(stated)
        missed = _choice_losses(stated, choices, labels)
        loss = (losses * weights[learn]).sum() + (missed * weights[places]).sum()
        (loss / total).backward()  # type: ignore[no-untyped-call]
        loss_sum += loss.item()
    return loss_sum / total


def _choice_losses(logits: Tensor, choices: Choices, labels: Tensor) -> Tensor:
    """[C] nats: that one of the alternatives stands there, and which one.

    A verdict, a choice among three words, learns the label's word by cross-entropy, which makes its
    probability the probability of being right. A confidence is decoded as its likeliest number, and
    by cross-entropy that would be the same one for most answers. So it learns the expected Brier
    score E (c - y)^2 / (2 VARIANCE), minus the entropy: least where p(c) is proportional to
    exp(-(c - mean of y)^2 / (2 VARIANCE)).

    Args:
        logits: [C, V].
        choices: C of them.
        labels: [B] y of the documents, 0 or 1.
    """
    fewer = choices.token_ids < 0
    of_words = (~fewer).sum(1) <= len(Verdict)
    of_them = logits.gather(1, choices.token_ids.clamp(min=0)).masked_fill(fewer, -torch.inf)
    missed = logits.logsumexp(1) - of_them.logsumexp(1)
    brier = (choices.scores - labels[choices.rows].unsqueeze(1)) ** 2
    word = brier.masked_fill(fewer, torch.inf).argmin(1)
    verdict = torch.nn.functional.cross_entropy(of_them, word, reduction="none")
    drawn = torch.distributions.Categorical(logits=of_them, validate_args=False)
    entropy = drawn.entropy()  # type: ignore[no-untyped-call]
    confidence = (drawn.probs * brier).sum(1) / (2 * VARIANCE) - entropy
    return missed + torch.where(of_words, verdict, confidence)
