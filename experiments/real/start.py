"""``python -m experiments.real.start``: the policy that a seed's trainings begin with."""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.real.demonstrations import demonstrations
from experiments.warmstart.training import save, train


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real.start", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the language model")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, required=True, help="of the demonstrations")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32, help="demonstrations per step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32, attn_implementation="eager"
    )
    train(
        model,
        tokenizer,
        demonstrations(options.seed),
        steps=options.steps,
        rate=5e-4,
        batch=options.batch,
        micro_batch=8,
        report_every=10,
    )
    part = options.out.with_name(options.out.name + ".part")
    save(model, tokenizer, part)
    part.replace(options.out)


if __name__ == "__main__":
    main()
