"""What the vLLM engine asks of vLLM, which need not be installed for it."""

from importlib.metadata import PackageNotFoundError

import pytest
from transformers import PretrainedConfig, Qwen3_5ForCausalLM

from svr_lightning.core.types import Decoding
from svr_lightning.engines.base import Request
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.engines.vllm import (
    MOST_SEQUENCES,
    VLLMEngine,
    config_folder,
    defaults,
    sampling_params,
    served_config,
)
from svr_lightning.engines.vllm_process import process_named
from svr_lightning.errors import ConfigError
from tests.models import tiny_hybrid, tiny_qwen3
from tests.small_fit import data, module, trainer


def test_a_request_has_its_sampling_and_what_alone_ends_it():
    request = Request(id=3, seed=2**63 - 1, sampling=Decoding(temperature=0.7, top_k=5))
    sent = sampling_params(request, (7, 9))
    assert (sent["seed"], sent["top_k"], sent["temperature"]) == (2**63 - 1, 5, 0.7)
    assert (sent["stop_token_ids"], sent["ignore_eos"], sent["logprobs"]) == ([7, 9], True, 0)


def test_a_model_has_one_folder_in_vllms_cache_wherever_it_was_read_from(tmp_path, monkeypatch):
    """So that compiled code, which is kept under its path, is found again."""
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny_hybrid().save_pretrained(tmp_path / "fit")
    folders = []
    for source, saved in (("fit", "run"), ("run", "again")):
        model = Qwen3_5ForCausalLM.from_pretrained(tmp_path / source)
        assert model.config.name_or_path == str(tmp_path / source)
        model.save_pretrained(tmp_path / saved)
        folders.append(config_folder(served_config(model, tied=True)))
    assert folders[0] == folders[1] != config_folder(tiny_qwen3().config)
    assert folders[0].is_relative_to(tmp_path / "cache" / "vllm")
    assert [path.name for path in folders[0].iterdir()] == ["config.json"]
    found = PretrainedConfig.from_pretrained(folders[0])
    assert found.hidden_size == tiny_hybrid().config.hidden_size


@pytest.mark.parametrize(("visible", "name"), [(None, "2"), ("4,5,7", "7")])
def test_a_single_process_on_another_gpu_than_vllms_is_refused_with_the_way_out(
    visible, name, monkeypatch
):
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


def test_linear_attention_has_a_prefill_without_compiler_fp32_states_and_no_prefix_cache():
    hybrid = {
        "additional_config": {"gdn_prefill_backend": "triton"},
        "mamba_ssm_cache_dtype": "float32",
        "enable_prefix_caching": False,
    }
    plain = defaults(tiny_qwen3().config, False, 512, None)
    assert defaults(tiny_hybrid().config, False, 512, None) == plain | hybrid
    assert not plain.keys() & hybrid.keys()


@pytest.mark.parametrize(
    ("trajectories", "sequences"), [(128, 128), (4096, MOST_SEQUENCES), (None, 256)]
)
def test_an_engine_has_room_for_the_trajectories_of_a_rollout(trajectories, sequences):
    found = defaults(tiny_qwen3().config, False, 512, trajectories)["max_num_seqs"]
    assert found == sequences


def test_a_training_tells_its_engine_how_many_trajectories_a_rollout_has(tmp_path):
    given = []

    class Recording(TransformersEngine):
        def start(self, *args):
            given.append(self.trajectories)
            super().start(*args)

    run = trainer(tmp_path, max_steps=1)
    run.fit(module(engine=Recording(), updates_per_rollout=2), data())
    assert given == [2 * 2 * 4]  # problems of a step, steps of a rollout, trajectories of a problem
    run.test(module(engine=Recording()), data(test=data().sources["val"]))
    assert given == [16, None]


@pytest.mark.parametrize("found", ["0.31.0", "0.33.0", "1.0"])
def test_another_release_is_used_with_a_warning_that_names_what_is_untested(found, monkeypatch):
    monkeypatch.setattr("svr_lightning.engines.vllm.version", lambda _: found)
    with pytest.warns(UserWarning, match=rf"vLLM {found} is installed, but only 0\.32 is tested"):
        VLLMEngine()


def test_no_release_is_refused_with_the_one_to_install(monkeypatch):
    def missing(_):
        raise PackageNotFoundError

    monkeypatch.setattr("svr_lightning.engines.vllm.version", missing)
    with pytest.raises(ConfigError, match=r"install vllm==0\.32\.\*, or leave the engine out"):
        VLLMEngine()
