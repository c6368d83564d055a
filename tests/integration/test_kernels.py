"""Which kernels a model gets, and what is said about it."""

import inspect
import logging
import sys
import tomllib
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback
from transformers.models.qwen3_5 import modeling_qwen3_5

from svr_lightning.errors import ConfigError
from svr_lightning.training.kernels import (
    CONVOLUTION,
    LIGER_MODELS,
    LINEAR_ATTENTION,
    called,
    check_triton,
    choose_functions,
    chooses_liger,
    use_kernels,
)
from tests import forked
from tests.models import tiny_hybrid, tiny_qwen3
from tests.small_fit import data, module, trainer


def chosen(wanted: bool | None, **changes: Any) -> bool:
    settings = {"model_type": "qwen3", "device": "cuda", "installed": True}
    return chooses_liger(wanted, **{**settings, **changes})


@pytest.mark.parametrize("model_type", LIGER_MODELS)
def test_liger_is_taken_on_cuda_where_it_is_installed_unless_it_is_not_wanted(
    model_type: str,
) -> None:
    assert chosen(None, model_type=model_type)
    assert chosen(True, model_type=model_type)
    assert not chosen(False, model_type=model_type)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cpu"}, "need CUDA and this run computes on 'cpu'"),
        ({"installed": False}, "not both installed; pip install liger-kernel"),
        ({"model_type": "gpt2"}, "'gpt2' is none of qwen3, qwen3_5_text"),
    ],
)
def test_where_liger_cannot_be_it_is_left_out_or_refused_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    assert not chosen(None, **changes)
    assert not chosen(False, **changes)
    with pytest.raises(ConfigError, match=reason) as error:
        chosen(True, **changes)
    assert "\n" not in str(error.value)


def test_the_names_of_architectures_are_those_of_the_models() -> None:
    models = [tiny_qwen3(), tiny_hybrid()]
    assert [m.config.get_text_config().model_type for m in models] == list(LIGER_MODELS)


def test_a_cpu_is_given_no_kernels_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    for model in (tiny_qwen3(), tiny_hybrid()):
        before = str(model)
        with caplog.at_level(logging.INFO):
            use_kernels(model, None, "cpu")
        assert str(model) == before
        assert caplog.messages == ["kernels on cpu: torch"]
        caplog.clear()


# Linear attention: what is really called


class Kernels:
    """Packages that transformers may find, whose functions note that they were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._patch = monkeypatch

    def install(self, package: str, inside: str, name: str, stock: Any) -> None:
        """Let transformers choose anew while ``package`` can be imported."""

        def kernel(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            return stock(*args, **kwargs)

        kernel.__name__, kernel.__module__ = name, inside
        # transformers leaves out arguments that a kernel does not take.
        kernel.__signature__ = inspect.signature(stock)  # type: ignore[attr-defined]
        parts = inside.split(".")
        for end in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:end]))
            module.__path__ = []  # type: ignore[attr-defined]
            self._patch.setitem(sys.modules, module.__name__, module)
        setattr(module, name, kernel)
        self.choose(package, name, stock)

    def choose(self, package: str, name: str, stock: Any) -> None:
        """As transformers does once, when it is imported."""
        chosen = use_kernel_func_from_hub_with_fallback(name, package)(stock)
        self._patch.setattr(modeling_qwen3_5, word_of(name), chosen)


PLACES = [
    (LINEAR_ATTENTION, "fla", "fla.ops.gated_delta_rule"),
    (CONVOLUTION, "causal_conv1d", "causal_conv1d"),
]
FOR_ONE_TOKEN = [
    ("fused_recurrent_gated_delta_rule", *PLACES[0][1:]),
    ("causal_conv1d_update", *PLACES[1][1:]),
]


def word_of(name: str) -> str:
    """What the model calls the function."""
    name = name.removeprefix("fused_")
    return next(word for word in vars(modeling_qwen3_5) if word.endswith(name))


def stock(name: str) -> Any:
    """The function of transformers itself."""
    return inspect.unwrap(getattr(modeling_qwen3_5, word_of(name)))


@pytest.mark.parametrize(("name", "package", "inside"), PLACES)
def test_the_function_that_is_named_is_the_one_that_the_model_calls(
    name: str, package: str, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = tiny_hybrid(), torch.tensor([[1, 2, 3]])
    plain = stock(name)
    assert called(model, name) is plain
    kernels = Kernels(monkeypatch)
    kernels.install(package, inside, name, plain)
    found = called(model, name)
    assert found is not None
    assert (found.__module__, found.__name__) == (inside, name)
    model(ids)
    assert kernels.calls == [name] * 3  # one for each layer of linear attention


@pytest.mark.parametrize(("name", "package", "inside"), PLACES + FOR_ONE_TOKEN)
def test_on_a_cpu_an_installed_kernel_is_not_called_and_on_cuda_it_is_again(
    name: str, package: str, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svr_lightning.training.kernels._PUT_ASIDE", {})
    model, plain = tiny_hybrid(), stock(name)
    kernels = Kernels(monkeypatch)
    kernels.install(package, inside, name, plain)
    for _ in range(2):
        use_kernels(model, None, "cpu")
    model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=3)
    assert kernels.calls == []
    choose_functions(model, "cuda")
    found = called(model, word_of(name))
    assert (found.__module__, found.__name__) == (inside, name)


def gpu(monkeypatch: pytest.MonkeyPatch, triton: str, capability: tuple[int, int]) -> None:
    module = ModuleType("triton")
    module.__version__ = triton  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


def test_the_log_names_the_functions_that_the_model_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = Kernels(monkeypatch)
    attention, convolution = PLACES
    kernels.install(*attention[1:], attention[0], stock(attention[0]))
    gpu(monkeypatch, "3.7.1", (9, 0))
    with caplog.at_level(logging.INFO):
        use_kernels(tiny_hybrid(), False, "cuda")
        kernels.install(*convolution[1:], convolution[0], stock(convolution[0]))
        use_kernels(tiny_hybrid(), False, "cuda")
        use_kernels(tiny_qwen3(), False, "cuda")
    chunk = "kernels on cuda: fla.ops.gated_delta_rule.chunk_gated_delta_rule, "
    why = "causal_conv1d cannot be imported (No module named 'causal_conv1d')"
    assert caplog.messages == [
        f"{chunk}torch's convolution, since {why}, torch",
        f"{chunk}causal_conv1d.causal_conv1d_fn, torch",
        "kernels on cuda: torch",
    ]


def test_the_loop_of_transformers_is_refused_on_cuda_whatever_keeps_the_kernel_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="No module named 'fla'") as error:
        use_kernels(tiny_hybrid(), False, "cuda")
    assert "pip install 'svr-lightning[kernels]'" in str(error.value)
    assert "\n" not in str(error.value)

    class WithoutEinops(MetaPathFinder):
        """The package is there, and one that it imports is not."""

        def find_spec(self, name: str, *_: Any) -> None:
            if name == "fla":
                raise ModuleNotFoundError("No module named 'einops'")

    monkeypatch.setattr(sys, "meta_path", [WithoutEinops(), *sys.meta_path])
    Kernels(monkeypatch).choose("fla", LINEAR_ATTENTION, stock(LINEAR_ATTENTION))
    with pytest.raises(ConfigError, match="No module named 'einops'"):
        use_kernels(tiny_hybrid(), False, "cuda")


def test_a_model_with_linear_attention_is_refused_on_hopper_with_such_a_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (name, package, inside), _ = PLACES
    Kernels(monkeypatch).install(package, inside, name, stock(name))
    gpu(monkeypatch, "3.6.0", (9, 0))
    with pytest.raises(ConfigError, match=r"Triton 3\.6\.0 computes wrong gradients"):
        use_kernels(tiny_hybrid(), False, "cuda")


def test_the_extra_kernels_has_what_transformers_imports_and_nothing_to_compile() -> None:
    project = tomllib.loads((forked.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        extra: {Requirement(line).name for line in project["optional-dependencies"][extra]}
        for extra in ("kernels", "conv1d")
    }
    # Without einops fla cannot be imported; its kernels are fla-core's.
    assert named["kernels"] == {"liger-kernel", "flash-linear-attention", "fla-core", "einops"}
    assert named["conv1d"] == {"causal-conv1d"}


def test_where_nothing_trains_the_loop_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"No module named 'fla'\); pip install"):
        use_kernels(tiny_hybrid(), False, "cuda", trains=False)


def test_a_test_loads_a_policy_that_does_not_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    monkeypatch.setattr(
        "svr_lightning.training.policy.use_kernels", lambda *_, trains: told.append(trains)
    )
    run = trainer(tmp_path, max_steps=1)
    run.fit(module(), data())
    run.test(module(), data(test=data().sources["val"]))
    assert told == [True, False]


@pytest.mark.parametrize(
    ("capability", "triton", "tilelang", "refused"),
    [
        ((9, 0), "3.6.0", False, True),
        ((9, 0), "3.7.0+git1", False, True),
        ((9, 0), "3.6.0", True, False),
        ((9, 0), "3.7.1", False, False),
        ((9, 0), "3.3.1", False, False),
        ((8, 0), "3.6.0", False, False),
        ((10, 0), "3.6.0", False, False),
    ],
)
def test_hopper_is_refused_with_a_triton_whose_gradients_are_wrong(
    capability: tuple[int, int], triton: str, tilelang: bool, refused: bool
) -> None:
    if refused:
        with pytest.raises(ConfigError, match=r"install torch 2\.13, which brings 3\.7\.1"):
            check_triton(capability, triton, tilelang=tilelang)
    else:
        check_triton(capability, triton, tilelang=tilelang)
