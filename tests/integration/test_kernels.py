"""Which kernels a model gets, and what is logged of them."""

import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from svr_lightning.errors import ConfigError
from svr_lightning.training import policy
from svr_lightning.training.policy import LIGER_MODELS, cuda_kernels, use_kernels
from tests.models import tiny_hybrid, tiny_qwen3


def test_a_cpu_is_given_no_kernels_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    for model in (tiny_qwen3(), tiny_hybrid()):
        before = str(model)
        with caplog.at_level(logging.INFO):
            use_kernels(model, "cpu")
        assert str(model) == before
        assert caplog.messages == ["kernels on cpu: torch"]
        caplog.clear()


# Linear attention and attention on CUDA


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What is logged of a GPU with these packages; restores what was chosen for the process."""

    def cuda_kernels_with(
        triton: str, capability: tuple[int, int] = (9, 0), **options: Any
    ) -> list[str]:
        found = {"triton": triton, "fla-core": "0.6.0"}
        monkeypatch.setattr(policy, "find_spec", lambda _: object())
        monkeypatch.setattr(policy, "version", found.__getitem__)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        return cuda_kernels(tiny_hybrid(), **options)

    monkeypatch.setenv("FLA_TILELANG", "")
    monkeypatch.delenv("FLA_TILELANG")
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield cuda_kernels_with
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_liger_is_taken_where_it_is_installed_and_knows_the_architecture(
    gpu: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu("3.7.1")
    monkeypatch.setattr(policy, "version", lambda _: "3.7.1")
    patched: list[str] = []
    monkeypatch.setattr(
        policy, "apply_liger_kernel", lambda model, _: patched.append(model.config.model_type)
    )
    for model in (tiny_qwen3(), tiny_hybrid()):
        use_kernels(model, "cuda")
    assert patched == list(LIGER_MODELS)
    monkeypatch.setattr(policy, "LIGER_MODELS", ())
    use_kernels(tiny_qwen3(), "cuda")
    assert patched == list(LIGER_MODELS)


def test_attention_never_plans_for_each_new_shape(gpu: Callable[..., list[str]]) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert cuda_kernels(tiny_qwen3()) == ["attention without cuDNN"]
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_the_log_names_the_releases_of_linear_attention_and_a_users_choice_stays(
    gpu: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "flash-linear-attention 0.6.0 on Triton 3.7.1, TileLang"
    assert gpu("3.7.1") == ["attention without cuDNN", f"{line} off"]
    assert os.environ["FLA_TILELANG"] == "0"
    monkeypatch.setenv("FLA_TILELANG", "1")
    assert gpu("3.7.1")[1] == f"{line} as it chooses"


def test_without_its_kernels_linear_attention_is_refused_and_warned_of_where_nothing_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"without flash-linear-attention .* ten times slower"):
        cuda_kernels(tiny_hybrid())
    with pytest.warns(UserWarning, match="without flash-linear-attention"):
        cuda_kernels(tiny_hybrid(), trains=False)


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
    gpu: Callable[..., list[str]], capability: tuple[int, int], triton: str, refused: bool
) -> None:
    if refused:
        with pytest.raises(ConfigError, match=r"install torch 2\.13, which brings 3\.7\.1"):
            gpu(triton, capability)
    else:
        assert f"on Triton {triton}" in gpu(triton, capability)[1]
