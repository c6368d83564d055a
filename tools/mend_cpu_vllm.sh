#!/usr/bin/env bash
# Lets vLLM's CPU build import where pip found no CPU builds of torchvision and torchaudio but their
# CUDA builds, which do not load beside a CPU build of torch. Does nothing where all is well.
# usage: tools/mend_cpu_vllm.sh PYTHON
set -euo pipefail
python=${1:?usage: tools/mend_cpu_vllm.sh PYTHON}
if "$python" -c 'import torchvision' 2>/dev/null; then exit 0; fi
"$python" -m pip uninstall --quiet --yes torchaudio torchcodec
# What is left of torchvision works without its compiled operators; only their shapes are declared.
folder=$("$python" -c 'import importlib.util as u; print(u.find_spec("torchvision").submodule_search_locations[0])')
sed -i '/^@torch.library.register_fake("torchvision::/d' "$folder/_meta_registrations.py"
"$python" -c 'import torchvision, vllm' 2>/dev/null || {
  echo "vLLM's CPU build does not import: install torchvision for CPUs beside torch" >&2
  exit 1
}
