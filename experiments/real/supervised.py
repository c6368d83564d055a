"""Supervised training of the pretrained model, in fp32 on one thread."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.warmstart.documents import Document
from experiments.warmstart.training import save, train


def supervise(
    source: Path, out: Path, demonstrations: Iterator[Document], *, seed: int, **options: Any
) -> None:
    """Train the checkpoint in ``source`` and save it to ``out``, which appears when it is whole.

    Args:
        source: folder of a checkpoint.
        out: folder for the trained one.
        demonstrations: endless.
        seed: of the draws of torch.
        options: further ones of :func:`experiments.warmstart.training.train`.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    )
    train(model, tokenizer, demonstrations, micro_batch=8, report_every=10, **options)
    part = out.with_name(out.name + ".part")
    save(model, tokenizer, part)
    part.replace(out)
