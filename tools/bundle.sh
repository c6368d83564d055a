#!/usr/bin/env bash
# Packs what the tests of a GPU need for a CUDA machine without network, which holds Python 3.12, torch 2.11 (CUDA 13) and the
# packages named under "held" already. The checkout travels by itself, and nothing is compiled there.
#
#   tools/bundle.sh DIR      makes DIR/install.sh and the parts DIR/base.NN (about 290 MiB) and DIR/vllm.NN (1.4 GiB), each of 36 MiB at most
#
# Bring the parts into one folder of that machine, one by one if need be, then run each of these as two commands of at most ten
# minutes, from the checkout; FILE is one that survives a machine that goes away:
#
#   A, without vLLM: bash FOLDER/install.sh base
#     PYTHONPATH=FOLDER/site:. python3 -m pytest -p no:cacheprovider -m gpu tests/gpu -k "gradients or transformers or resumes" --gpu-report FILE
#   B: bash FOLDER/install.sh vllm, then the same with -k vllm
#   C: the same with -k "full_depth or card or server"
#
# The lists are complete by the packages' own requirements, which is checked here.
set -euo pipefail
out=$(mkdir -p "${1:?usage: tools/bundle.sh DIR}" && cd "$1" && pwd)
python=${PYTHON:-python3}
all=$(mktemp -d)
trap 'rm -rf "$all"' EXIT

base=(
  'datasets>=5.2,<6' dill multiprocess 'jsonargparse>=4.53,<5' docstring-parser typeshed-client
  'latex2sympy2_extended>=1.11,<1.12' antlr4-python3-runtime==4.13.2 hjson 'starlette>=1,<2' 'uvicorn>=0.35,<1'
  'msgspec>=0.19,<1' pydantic==2.14.4 pydantic-core==2.50.5 annotated-types typing-inspection
  # Kernels of the update. Triton, since torch 2.11's computes wrong gradients of linear attention on Hopper; TileLang beside it.
  'liger-kernel>=0.8.5,<0.9' 'flash-linear-attention>=0.6,<0.7' 'fla-core>=0.6,<0.7' triton==3.7.1
  tilelang==0.1.12 apache-tvm-ffi==0.1.11 z3-solver torch-c-dlpack-ext
)
# The release that the engine takes, with its torch and the CUDA libraries whose minor release that raises; the others are the machine's.
vllm=(
  vllm==0.32.0 torch==2.13.0 torchvision==0.28.0 nvidia-cudnn-cu13==9.20.0.48 nvidia-nccl-cu13==2.29.7 cachetools blake3 'fastapi>=0.133,<0.137' 'openai>=3,<4'
  'prometheus-fastapi-instrumentator>=8' lm-format-enforcer==0.11.3 'llguidance>=1.7,<1.8' outlines_core==0.2.14
  lark==1.2.2 xgrammar==0.2.8 partial-json-parser 'jsonschema>=4.23' jsonschema-specifications referencing rpds-py pyzmq
  'mistral_common>=1.11.6' compressed-tensors==0.17.0 depyf==0.20.0 astor watchfiles python-json-logger pybase64 cbor2 ijson setproctitle
  'oss-harmony>=0.0.11' 'model-hosting-container-standards<1' jiter sniffio interegular loguru
  pydantic-extra-types pycountry jmespath nvtx==0.2.15 httpx2 httpcore2 truststore
)
held="torchaudio transformers lightning pytorch-lightning lightning-utilities torchmetrics accelerate tensorboard
  numpy sympy mpmath safetensors tokenizers huggingface-hub filelock fsspec packaging pyyaml requests urllib3 charset-normalizer
  tqdm regex jinja2 markupsafe typing-extensions psutil pillow protobuf networkx setuptools aiohttp attrs click ninja pip
  anyio annotated-doc certifi cloudpickle contourpy cycler einops fonttools h11 httpcore httpx idna kiwisolver markdown-it-py matplotlib
  mdurl ml-dtypes msgpack numba pandas peft prometheus-client py-cpuinfo pyarrow pygments pyparsing python-dateutil rich scipy
  sentencepiece six tiktoken uvloop wheel xxhash cuda-toolkit nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-cublas cuda-bindings"
# Parts of vLLM that the engine of a text model never imports.
left_out="flashinfer-python opencv-python-headless anthropic mcp quack-kernels nvidia-cutlass-dsl nvidia-cudnn-frontend
  fastsafetensors humming-kernels tokenspeed-mla pynvvideocodec torchcodec instanttensor opentelemetry-api opentelemetry-sdk
  opentelemetry-exporter-otlp opentelemetry-semantic-conventions-ai supervisor"

platforms=()
for p in 2_34 2_31 2_28 2_27 2_26 2_24 2_18 2_17; do platforms+=(--platform "manylinux_${p}_x86_64"); done
for set in base vllm; do
  declare -n packages=$set
  mkdir "$all/$set"
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --dest "$all/$set" "${packages[@]}"
done
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$all/base" 'deepspeed>=0.19.8,<0.20'
"$python" - "$all" "$held $left_out" <<'PYTHON'
"""Every requirement of a packed wheel is packed too, held by the machine, or left out by name; base needs nothing of vllm."""
import re, sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile
from pip._vendor.packaging.requirements import Requirement

def plain(name): return re.sub("[-_.]+", "-", name).lower()

wheels = sorted(Path(sys.argv[1]).glob("*/*.whl"))
packed, named = Counter(plain(w.name.split("-")[0]) for w in wheels), {plain(name) for name in sys.argv[2].split()}
machine = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux", "platform_system": "Linux",
           "platform_machine": "x86_64", "extra": ""}
faults = {f"{name} is packed twice" for name, count in packed.items() if count > 1 or name in named}
base = {plain(w.name.split("-")[0]) for w in wheels if w.parent.name == "base"} | {"torch"}  # the machine's
for wheel in wheels:
    there = named | (base if wheel.parent.name == "base" else {*packed})
    with ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        lines = archive.read(name).decode().split("\n\n")[0].splitlines()
    for line in lines:
        if line.startswith("Requires-Dist: "):
            wanted = Requirement(line.removeprefix("Requires-Dist: "))
            if (wanted.marker is None or wanted.marker.evaluate(machine)) and plain(wanted.name) not in there:
                faults.add(f"{wheel.name.split('-')[0]} needs {wanted}")
sys.exit("\n".join(["bundle.sh: correct base, vllm, held or left_out:", *sorted(faults)]) if faults else 0)
PYTHON

rm -f "$out"/base.* "$out"/vllm.*
for set in base vllm; do tar --create --directory "$all" $set | split --bytes 36M --numeric-suffixes - "$out/$set."; done
cat > "$out/install.sh" <<INSTALL
#!/usr/bin/env bash
# bash install.sh base|vllm: joins the parts of this folder and installs them into its folder site.
set -euo pipefail
cd "\$(dirname "\$0")"
grep " \${1:?usage: install.sh base|vllm}[.]" <<'SUMS' | sha256sum --check --quiet
$(cd "$out" && sha256sum base.* vllm.*)
SUMS
cat "\$1".[0-9]* | tar --extract
python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target site "\$1"/*.whl
rm -rf "\$1"
INSTALL
du --si --summarize "$out"
