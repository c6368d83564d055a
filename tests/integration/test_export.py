"""The exported policy's folder and the threshold that is used with it."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from svr_lightning.core.stopping import RepeatedAnswer
from svr_lightning.policy.policy import Policy
from svr_lightning.training.config import EvaluationConfig
from svr_lightning.training.export import export_policy
from tests.commands import read_json
from tests.models import tiny_qwen3
from tests.scripted import RENDERER
from tests.small_fit import module


def exported(root: Path, *, run_config: dict[str, Any] | None = None, **settings: Any) -> str:
    """The model card of an exported policy."""
    trained = module(**settings)
    trained.run_config = run_config or {}
    trained.actor = Policy(tiny_qwen3(), RENDERER)
    # As checkpoints ship it: contradicts itself where nothing is sampled.
    trained.actor.model.generation_config = GenerationConfig(
        do_sample=False, temperature=0.6, top_k=20, top_p=0.95, eos_token_id=[3, 7]
    )
    folder = export_policy(trained, root)
    return (folder / "README.md").read_text()


def test_an_exported_policy_loads_and_decodes_greedily(tmp_path):
    exported(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    for name, weight in tiny_qwen3().state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name])
    generation = GenerationConfig.from_pretrained(tmp_path / "policy")
    # As in training, where the template's end of a turn ends it too.
    assert (generation.eos_token_id, generation.do_sample) == ([1, 3, 7], False)
    assert generation.max_new_tokens == 32
    modes = {oct(file.stat().st_mode) for file in (tmp_path / "policy").iterdir()}
    assert len(modes) == 1  # whoever can read the configuration can read the weights


def test_the_card_asks_the_policy_as_it_was_trained_to_be_asked(tmp_path):
    policy = {"path": "start", "max_prompt_tokens": 512, "max_model_len": 1024}
    trained = {
        "recipe": {"class_path": "mine.Recipe", "init_args": {"interface": "verdict"}},
        "policy": {**policy, "chat_template_kwargs": {}},
        "evaluation": {"max_completion_tokens": 96},
    }
    configured = {"model": {**trained, "optimizer": {}}, "data": {"questions_task": "gsm8k"}}
    stop = EvaluationConfig(stop=RepeatedAnswer())
    card = exported(tmp_path, run_config=configured, evaluation=stop)
    assert "It was not evaluated on a test set when it was written." in card
    command = card.split("```bash\n")[1].split("```")[0].replace("\\\n", "")
    folder = "--config THIS_FOLDER/svr.json --model.policy.path THIS_FOLDER"
    assert " ".join(command.split()) == f"svr predict {folder} --question '...'"
    trained["policy"].pop("path")
    settings = read_json(tmp_path / "policy" / "svr.json")
    assert settings == {"model": trained, "data": {"questions_task": "gsm8k"}}
