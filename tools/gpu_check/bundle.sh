#!/usr/bin/env bash
# Packs this checkout and what its GPU check needs for a CUDA machine without network, which holds Python 3.12, torch 2.11
# (CUDA 13), torchvision, torchaudio, transformers, lightning, torchmetrics, accelerate and tensorboard already.
#
#   tools/gpu_check/bundle.sh DIR      makes DIR/run.sh and DIR/part.00, part.01 ..., each below 56 MiB
#
# Bring all of it into one folder of that machine, one by one if need be, and there:
#
#   bash run.sh                        installs once, then python -m tools.gpu_check; arguments are passed on
#
# The list is complete by the packages' own requirements, which is checked here. It has not run on a GPU.
set -euo pipefail
out=$(mkdir -p "${1:?usage: tools/gpu_check/bundle.sh DIR}" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
all=$(mktemp -d)
trap 'rm -rf "$all"' EXIT

packages=(
  # vLLM, the last minor release but one that takes torch 2.11: those that are tested pin 2.13, which with its CUDA libraries
  # is several times the size of all this. The report names what differs.
  vllm==0.25.1 cachetools blake3 'fastapi>=0.133,<0.137' 'starlette>=1.0.1' 'openai>=2,<3' pydantic==2.14.3 pydantic-core==2.50.4
  prometheus-fastapi-instrumentator prometheus-client lm-format-enforcer==0.11.3 'llguidance>=1.7,<1.8' outlines_core==0.2.14
  diskcache==5.6.3 lark==1.2.2 xgrammar==0.2.1 apache-tvm-ffi==0.1.9 partial-json-parser 'jsonschema>=4.23'
  jsonschema-specifications referencing rpds-py pyzmq msgspec 'mistral_common>=1.11.5' compressed-tensors==0.17.0 depyf==0.20.0
  astor watchfiles python-json-logger pybase64 cbor2 ijson setproctitle openai-harmony model-hosting-container-standards jiter
  distro sniffio annotated-types annotated-doc typing-inspection interegular loguru uvicorn uvloop
  cloudpickle pydantic-extra-types pycountry jmespath nvtx==0.2.15
  # The project, without what that machine holds.
  'datasets>=5.2,<6' dill multiprocess pyarrow pandas xxhash 'jsonargparse>=4.53,<5' docstring-parser typeshed-client
  importlib-resources 'math-verify>=0.9,<0.10' 'latex2sympy2_extended>=1.11,<1.12' antlr4-python3-runtime==4.13.2
  'rich>=14.1' markdown-it-py mdurl pygments 'httpx>=0.27,<1' httpcore h11 'anyio>=4.2,<5' certifi idna
  'matplotlib>=3.10' contourpy cycler fonttools kiwisolver pyparsing python-dateutil six pytz tzdata hjson py-cpuinfo msgpack
  # Kernels of the update. Triton, since torch 2.11's computes wrong gradients of linear attention on Hopper.
  'liger-kernel>=0.8.5,<0.9' 'flash-linear-attention>=0.4' 'fla-core>=0.4' 'einops>=0.8' triton==3.7.1
  wheel  # for causal-conv1d, below
)
held="torch torchvision torchaudio transformers lightning pytorch-lightning lightning-utilities torchmetrics accelerate tensorboard
  numpy sympy mpmath safetensors tokenizers huggingface-hub filelock fsspec packaging pyyaml requests urllib3 charset-normalizer
  tqdm regex jinja2 markupsafe typing-extensions psutil pillow protobuf networkx setuptools aiohttp attrs click ninja pip"
# Parts of vLLM that the engine of a text model never imports.
left_out="flashinfer-python flashinfer-cubin opencv-python-headless numba gguf tiktoken sentencepiece anthropic mcp ray tilelang
  quack-kernels nvidia-cutlass-dsl nvidia-cudnn-frontend fastsafetensors humming-kernels tokenspeed-mla scipy
  pynvvideocodec torchcodec supervisor opentelemetry-api opentelemetry-sdk opentelemetry-exporter-otlp
  opentelemetry-semantic-conventions-ai"

platforms=()
for p in 2_34 2_31 2_28 2_27 2_26 2_24 2_17; do platforms+=(--platform "manylinux_${p}_x86_64"); done
"$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --dest "$all" "${packages[@]}"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$all" 'deepspeed>=0.19.8,<0.20'
# It has no wheels: that machine compiles it, where it can. To learn its name and version, pip needs torch here.
CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE "$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary causal-conv1d \
  --dest "$all" 'causal-conv1d>=1.5' || echo "bundle.sh: without causal-conv1d: torch's convolution will run" >&2
"$python" - "$all" "$held $left_out" <<'EOF'
"""Every requirement of a packed wheel is packed too, held by the machine, or left out by name."""
import re, sys
from pathlib import Path
from zipfile import ZipFile
from packaging.requirements import Requirement

def plain(name): return re.sub("[-_.]+", "-", name).lower()

wheels = list(Path(sys.argv[1]).glob("*.whl"))
known = {plain(name) for name in sys.argv[2].split()} | {plain(w.name.split("-")[0]) for w in wheels}
machine = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux", "platform_system": "Linux",
           "platform_machine": "x86_64", "extra": ""}
missing = set()
for wheel in wheels:
    with ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        lines = archive.read(name).decode().split("\n\n")[0].splitlines()
    for line in lines:
        if line.startswith("Requires-Dist: "):
            wanted = Requirement(line.removeprefix("Requires-Dist: "))
            if (wanted.marker is None or wanted.marker.evaluate(machine)) and plain(wanted.name) not in known:
                missing.add(f"{wheel.name.split('-')[0]} needs {wanted}")
sys.exit("\n".join(["bundle.sh: add to packages, held or left_out:", *sorted(missing)]) if missing else 0)
EOF

git -C "$root" archive --format=tar.gz --output "$all/checkout.tar.gz" HEAD
rm -f "$out"/part.*
tar --create --directory "$all" . | split --bytes 55M --numeric-suffixes - "$out/part."
cat > "$out/run.sh" <<EOF
#!/usr/bin/env bash
set -euo pipefail
cd "\$(dirname "\$0")"
if [ ! -e installed ]; then
  sha256sum --check --quiet <<'SUMS'
$(cd "$out" && sha256sum part.*)
SUMS
  mkdir -p wheels checkout
  cat part.* | tar --extract --directory wheels
  tar --extract --gzip --file wheels/checkout.tar.gz --directory checkout
  python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target site wheels/*.whl
  if [ -e wheels/causal_conv1d-*.tar.gz ] && { command -v nvcc || [ -e /usr/local/cuda/bin/nvcc ]; } > /dev/null; then
    PYTHONPATH=\$PWD/site CAUSAL_CONV1D_FORCE_BUILD=TRUE timeout 300 python3 -m pip install --quiet --no-index --no-deps --no-compile \\
      --no-build-isolation --target site wheels/causal_conv1d-*.tar.gz || echo "run.sh: causal-conv1d was not compiled" >&2
  fi
  touch installed
fi
here=\$PWD
export PYTHONPATH="\$here/site:\$here/checkout" VLLM_CACHE_ROOT="\$here/cache" HF_HUB_OFFLINE=1
cd checkout && exec python3 -m tools.gpu_check --out "\$here/gpu_check.json" "\$@"
EOF
du --si --summarize "$out"
