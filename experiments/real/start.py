"""``python -m experiments.real.start``: what a seed's trainings begin with, on one thread in fp32.

SmolLM2 solves next to none of these problems in its own words, so that ``svr warmstart`` has
nothing to learn from: demonstrations teach it the arithmetic, and the form of a turn.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.real.demonstrations import demonstrations
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.documents import encode
from svr_lightning.training.supervised import train


def main() -> None:
    """Train and save; the checkpoint appears when it is whole."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real.start", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained one")
    parser.add_argument("--seed", type=int, required=True, help="of what is taught, and its order")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32, attn_implementation="eager"
    )
    renderer = Renderer(tokenizer)
    documents = (encode(renderer, document) for document in demonstrations(options.seed))
    train(model, documents, steps=128, rate=5e-4, batch=32, micro_batch=8)
    part = options.out.with_name(options.out.name + ".part")
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.replace(options.out)


if __name__ == "__main__":
    main()
