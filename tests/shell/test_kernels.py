"""Which kernels a model gets, and what is said about it."""

import logging
import warnings
from typing import Any

import pytest

from svr_lightning.errors import ConfigError
from svr_lightning.training.policy import LIGER_MODELS, chooses_liger, use_kernels
from tests.models import tiny_hybrid, tiny_qwen3


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


def test_linear_attention_without_its_package_is_a_warning_that_names_it() -> None:
    with pytest.warns(UserWarning, match="pip install flash-linear-attention"):
        use_kernels(tiny_hybrid(), False, "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use_kernels(tiny_qwen3(), False, "cuda")
