"""``python -m experiments.real.start``: the policy that a seed's trainings begin with."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.real.demonstrations import demonstrations
from experiments.warmstart.documents import Document
from experiments.warmstart.training import save, train


def supervise(
    source: Path, out: Path, documents: Iterator[Document], *, seed: int, **options: Any
) -> None:
    """Train the checkpoint in ``source`` and save it to ``out``, which appears when it is whole.

    In fp32 on one thread; ``seed`` is of the draws of torch, further options are those of
    :func:`experiments.warmstart.training.train`.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    )
    train(model, tokenizer, documents, micro_batch=8, report_every=10, **options)
    part = out.with_name(out.name + ".part")
    save(model, tokenizer, part)
    part.replace(out)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real.start", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the language model")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, required=True, help="of the demonstrations")
    parser.add_argument("--steps", type=int, default=128, help="of 32 demonstrations")
    options = parser.parse_args()
    taught, seed = demonstrations(options.seed), options.seed
    supervise(options.model, options.out, taught, seed=seed, steps=options.steps, rate=5e-4)


if __name__ == "__main__":
    main()
