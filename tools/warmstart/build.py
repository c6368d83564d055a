"""Build the Countdown policy that ships: ``python -m tools.warmstart.build --out FOLDER``.

It reads demonstrations until it searches as they do, and is as overconfident. Nothing is
downloaded: problems, traces and tokenizer come from this repository. A rebuilt tokenizer also
splits off boxes around answers, which no Countdown text has.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from tools.warmstart.embedded import build_tokenizer, new_model
from tools.warmstart.method_traces import method_documents
from tools.warmstart.traces import INSIST_CHANCE, documents
from tools.warmstart.training import save, train

DEFAULT_STEPS = 6000
SECOND_STAGE, THIRD_STAGE = 8, 4
"""The second and third stage take this fraction of the first stage's steps: 1/8 and 1/4."""
RATE, LATER_RATE = 3e-3, 1e-3


def build(out: Path, *, steps: int = DEFAULT_STEPS, seed: int = 0) -> list[float]:
    """Tokenizer, model, training, and a checkpoint folder at ``out``; returns the losses.

    The first stage teaches to search, the second to insist on what was called CORRECT, the third
    the prompts of the methods that SVR is compared with.
    """
    tokenizer = build_tokenizer(documents(0))
    model = new_model(tokenizer, seed)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    stages = (
        (documents(seed), steps, RATE),
        (documents(seed + 1, insist=INSIST_CHANCE), steps // SECOND_STAGE, LATER_RATE),
        (method_documents(seed + 2), steps // THIRD_STAGE, LATER_RATE),
    )
    losses: list[float] = []
    for demonstrations, length, rate in stages:
        losses += train(model, tokenizer, demonstrations, steps=max(1, length), rate=rate)
    save(model, tokenizer, out)
    return losses


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument(
        "--steps", type=int, default=DEFAULT_STEPS, help="optimizer steps of the first stage"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and demonstrations")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    build(options.out, steps=options.steps, seed=options.seed)


if __name__ == "__main__":
    main()
