"""Supervised training on demonstrations, for any policy."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from experiments.warmstart.documents import Document, Encoded, encode
from svr_lightning.core.schedule import warmup_stable_decay


def train(
    model: Any,
    tokenizer: Any,
    demonstrations: Iterator[Document],
    *,
    steps: int,
    rate: float,
    batch: int = 32,
    micro_batch: int = 16,
    check_weight: float = 1.0,
) -> list[float]:
    """Train in place on fresh demonstrations; returns the loss of every step, in nats a token.

    Args:
        model: a causal language model, on any device.
        tokenizer: its tokenizer, with a chat template.
        demonstrations: endless.
        steps: optimizer steps.
        rate: peak learning rate.
        batch: demonstrations per step.
        micro_batch: demonstrations per forward pass.
        check_weight: of the self-check's tokens in the loss; all others weigh 1.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    shape = {"warmup_fraction": 0.02, "decay_fraction": 0.5, "floor": 0.01}
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warmup_stable_decay(step, steps, **shape)
    )
    encoded = (encode(tokenizer, document, check_weight) for document in demonstrations)
    losses: list[float] = []
    model.train()
    for step in range(1, steps + 1):
        chosen = sorted(itertools.islice(encoded, batch), key=lambda e: len(e.ids))
        losses.append(_accumulate(model, chosen, micro_batch))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0 or step == steps:
            print(f"step {step}/{steps}  loss {fmean(losses[-10:]):.4f}", flush=True)
    model.eval()
    return losses


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """A checkpoint folder that the package reads."""
    model.save_pretrained(out)
    for weights in out.glob("*.safetensors"):  # which safetensors lets only the owner read
        shutil.copymode(out / "config.json", weights)
    tokenizer.save_pretrained(out)


def _accumulate(model: Any, chosen: list[Encoded], micro_batch: int) -> float:
    """Add the gradient of one step, in batches of similar length; returns its mean loss."""
    total = sum(sum(e.weights[1:]) for e in chosen)
    loss_sum = 0.0
    for start in range(0, len(chosen), micro_batch):
        some = chosen[start : start + micro_batch]
        # [B, L], padded on the right, where causal attention never reaches the padding.
        ids, weights = (
            pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(model.device)
            for rows in ([e.ids for e in some], [e.weights for e in some])
        )
        ids, targets, weights = ids[:, :-1], ids[:, 1:], weights[:, 1:]
        learn = weights > 0
        # Other processors compute products in bfloat16 in software, more slowly than in fp32.
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda or fast):
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            logits = model.get_output_embeddings()(hidden[learn]).float()
        losses = torch.nn.functional.cross_entropy(logits, targets[learn], reduction="none")
        loss = (losses * weights[learn]).sum()
        (loss / total).backward()  # type: ignore[no-untyped-call]
        loss_sum += loss.item()
    return loss_sum / total
