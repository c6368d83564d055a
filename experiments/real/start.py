"""``python -m experiments.real.start``: supervised training of a policy, on one thread in fp32.

    python -m experiments.real.start --model MODEL --out START --seed 1
    python -m experiments.real.start --model START --out OUT --seed 1 --labelled samples.jsonl

The first makes what a seed's trainings begin with, the second the arm ``labelled``.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.real import labelled
from experiments.real.demonstrations import demonstrations
from experiments.warmstart.training import save, train


def main() -> None:
    """Train and save; the checkpoint appears when it is whole."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m experiments.real.start", description=__doc__, formatter_class=form
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained one")
    parser.add_argument("--seed", type=int, required=True, help="of what is taught, and its order")
    parser.add_argument("--labelled", type=Path, help="its recording of training problems")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32, attn_implementation="eager"
    )
    taught = demonstrations(options.seed)
    how: dict[str, Any] = {"steps": 128, "rate": 5e-4}  # a step has 32 documents
    if options.labelled:
        taught = labelled.documents(options.labelled, options.seed)
        how = {"steps": 94, "rate": 3e-4, "check_weight": labelled.CHECK_WEIGHT}  # two passes
    train(model, tokenizer, taught, micro_batch=8, **how)
    part = options.out.with_name(options.out.name + ".part")
    save(model, tokenizer, part)
    part.replace(options.out)


if __name__ == "__main__":
    main()
