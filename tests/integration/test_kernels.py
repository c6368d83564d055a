"""Which kernels a model gets on CUDA."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

from svr_lightning.errors import ConfigError
from svr_lightning.policy import kernels
from svr_lightning.policy.kernels import LIGER_MODELS, use_kernels
from tests.commands import ROOT, ran
from tests.models import tiny_hybrid, tiny_qwen3
from tests.tolerance import of_logprobs


@pytest.fixture
def gpu_packages(tmp_path) -> Path:
    """A folder with kernels that import anywhere and run on a GPU only, as fla's do."""
    kernel = "raise RuntimeError('0 active drivers ([]). There should only be one.')"
    functions = {
        "fla/__init__.py": [],
        "fla/ops/__init__.py": [],
        "fla/ops/gated_delta_rule.py": [
            "chunk_gated_delta_rule",
            "fused_recurrent_gated_delta_rule",
        ],
        "causal_conv1d.py": ["causal_conv1d_fn", "causal_conv1d_update"],
    }
    for name, names in functions.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"def {function}(*args, **kwargs):\n    {kernel}\n" for function in names]
        path.write_text("".join(lines))
    return tmp_path / "packages"


def test_on_a_cpu_a_hybrid_computes_the_same_with_and_without_kernels_for_a_gpu(gpu_packages):
    code = (
        "import torch; from tests.models import tiny_hybrid; "
        "from svr_lightning.policy.kernels import use_kernels; "
        "model = tiny_hybrid(); [use_kernels(model, 'cpu') for _ in range(2)]; "
        "print(model(torch.arange(9)[None]).logits.double().sum().item())"
    )
    path = os.pathsep.join([str(gpu_packages), str(ROOT)])
    beside = ran(sys.executable, "-c", code, PYTHONPATH=path)
    alone = tiny_hybrid()
    use_kernels(alone, "cpu")
    with torch.no_grad():
        found = alone(torch.arange(9)[None]).logits
    allowed = len(found.flatten()) * of_logprobs(alone, found[0])
    expected = pytest.approx(found.double().sum().item(), abs=allowed)
    assert float(beside.stdout) == expected, beside.stderr


def on_gpu_only(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("0 active drivers ([])")


class Layer(torch.nn.Module):
    """A layer that computes with a function of this module."""


@pytest.mark.parametrize("wrappers", [0, 1, 2])
def test_a_kernel_that_others_wrap_computes_in_torch_on_a_cpu_also_by_keyword(
    wrappers, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setitem(sys.modules, "gpu_package", SimpleNamespace(double=on_gpu_only))
    bound = use_kernel_func_from_hub_with_fallback("double", "gpu_package")(lambda x: 2 * x)
    for _ in range(wrappers):
        bound = torch.compiler.disable(bound)
    monkeypatch.setattr(sys.modules[__name__], "double", bound, raising=False)
    for _ in range(2):
        use_kernels(Layer(), "cpu")
    double = sys.modules[__name__].double
    assert double(torch.tensor(3.0)) == double(x=torch.tensor(3.0)) == 6


@pytest.mark.parametrize("chosen", [None, "2"])
def test_a_small_model_on_a_cpu_takes_one_thread_unless_the_user_chose(chosen, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    allowed = torch.get_num_threads()  # a process that is bound to one core has no second one
    try:
        use_kernels(tiny_qwen3(), "cpu")
        assert torch.get_num_threads() == (allowed if chosen else 1)
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def patched(monkeypatch) -> Iterator[list[str]]:
    """The architectures that liger-kernel patches; restores what was chosen for the process."""
    found = []
    monkeypatch.setattr(
        kernels, "apply_liger_kernel", lambda model, _: found.append(model.config.model_type)
    )
    monkeypatch.setenv("FLA_TILELANG", "")
    monkeypatch.delenv("FLA_TILELANG")
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield found
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.fixture
def gpu(monkeypatch, patched: list[str]) -> Callable[..., None]:
    """Prepares a hybrid model for a GPU with this Triton and all other kernels."""

    def prepare(triton, capability=(9, 0)):
        monkeypatch.setattr(kernels, "find_spec", lambda _: object())
        monkeypatch.setattr(kernels, "version", lambda _: triton)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        use_kernels(tiny_hybrid(), "cuda")

    return prepare


def test_liger_is_taken_where_it_is_installed_and_knows_the_architecture(gpu, patched, monkeypatch):
    gpu("3.7.1")
    use_kernels(tiny_qwen3(), "cuda")
    assert patched == [*reversed(LIGER_MODELS)]
    monkeypatch.setattr(kernels, "LIGER_MODELS", ())
    use_kernels(tiny_qwen3(), "cuda")
    assert len(patched) == 2


def test_attention_never_plans_for_each_new_shape(patched):
    torch.backends.cuda.enable_cudnn_sdp(True)
    use_kernels(tiny_qwen3(), "cuda")
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_tilelang_is_off_unless_a_user_chose_it(gpu, monkeypatch):
    gpu("3.7.1")
    assert os.environ["FLA_TILELANG"] == "0"
    monkeypatch.setenv("FLA_TILELANG", "1")
    gpu("3.7.1")
    assert os.environ["FLA_TILELANG"] == "1"


def test_without_its_kernels_linear_attention_is_refused_and_warned_of_where_nothing_trains(
    monkeypatch, patched
):
    monkeypatch.setattr(kernels, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"without flash-linear-attention .* ten times slower"):
        use_kernels(tiny_hybrid(), "cuda")
    with pytest.warns(UserWarning, match="without flash-linear-attention"):
        use_kernels(tiny_hybrid(), "cuda", trains=False)
    assert patched == []


@pytest.mark.parametrize(
    ("capability", "triton", "refused"),
    [
        ((9, 0), "3.6.0", True),
        ((9, 0), "3.7.0+git1", True),
        ((9, 0), "3.7.1", False),
        ((9, 0), "3.3.1", False),
        ((8, 0), "3.6.0", False),
        ((10, 0), "3.6.0", False),
    ],
)
def test_hopper_is_refused_with_a_triton_whose_gradients_are_wrong(
    gpu, capability, triton, refused
):
    if refused:
        with pytest.raises(ConfigError, match=r"install torch 2\.13, which brings 3\.7\.1"):
            gpu(triton, capability)
    else:
        gpu(triton, capability)
