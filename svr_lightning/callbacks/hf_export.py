"""The trained policy as a folder that ``from_pretrained`` loads, with a model card."""

import inspect
import json
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from transformers import GenerationConfig

from svr_lightning import __version__
from svr_lightning.analysis.averages import text_of
from svr_lightning.analysis.operating_point import write_operating_point
from svr_lightning.core.metrics import DEFINITIONS
from svr_lightning.core.stopping import Confident, rule_as_config
from svr_lightning.engines import lora
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.config import EvaluationConfig, PolicyConfig

_SCORES = ("accuracy", "turns", "esr", "pse", "brier")


class HFExport(Callback):
    """Writes ``policy/`` at the end of ``fit``: weights, tokenizer, chat template, card.

    Args:
        dtype: of the exported weights. fp32 by default, since small learning rates change weights
            by less than bf16 can represent.
    """

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = dtype

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Export, on one rank; not the trial of a ``fast_dev_run``."""
        fast: Any = trainer.fast_dev_run  # type: ignore[attr-defined]
        if not trainer.interrupted and not fast:
            self.export(trainer, pl_module, Path(trainer.default_root_dir))

    def export(self, trainer: Trainer, pl_module: Any, root: Path) -> Path:
        """Write ``root/policy`` with the weights that the module has, on one rank."""
        if trainer.is_global_zero:
            export_policy(pl_module, root, exported_weights(pl_module.policy, self.dtype))
        return root / "policy"


def exported_weights(model: Any, dtype: str) -> dict[str, torch.Tensor]:
    """The weights as exported, adapters merged."""
    acting = {weight.name: weight.read for weight in lora.acting_weights(model)}
    found = {}
    for key, value in lora.base_of(model.state_dict()).items():
        name = key.replace(".base_layer.", ".")
        full = acting[name]() if name in acting else value  # a tied weight, or a buffer
        found[name] = full.to("cpu", getattr(torch, dtype))
    return found


def export_policy(pl_module: Any, root: Path, state: dict[str, torch.Tensor]) -> Path:
    """Save the policy under ``root/policy`` and return that folder."""
    folder = root / "policy"
    evaluation = pl_module.evaluation
    model = pl_module.policy
    # New: the checkpoint's own temperature and similar settings contradict greedy decoding.
    own = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
        do_sample=False,
        max_new_tokens=pl_module.sampling.max_completion_tokens,
    )
    model.save_pretrained(folder, state_dict=state)
    if lora.is_adapted(model):
        lora.save_adapter(model, root / "adapter")
    for written in (folder, root / "adapter"):
        for weights in written.glob("*.safetensors"):  # which safetensors lets only the owner read
            shutil.copymode(next(written.glob("*config.json")), weights)
    pl_module.renderer.tokenizer.save_pretrained(folder)
    _, rule = pl_module.stop_policy
    if isinstance(rule, Confident):
        # New even if the folder had one: its certificate was for other weights.
        usual = Confident(threshold=rule.threshold)
        own = {k: v for k, v in asdict(rule).items() if v != getattr(usual, k)}
        details = {"max_turns": evaluation.max_turns, **({"rule": own} if own else {})}
        write_operating_point(folder, rule.threshold, details)
    after = root / "eval" / "after" / "results.json"
    datasets = json.loads(after.read_text())["datasets"] if after.is_file() else {}
    (folder / "README.md").write_text(model_card(pl_module, datasets), encoding="utf-8")
    return folder


def model_card(pl_module: Any, datasets: dict[str, dict[str, Any]]) -> str:
    """The model card: how the policy was trained, a command that runs it, and its scores."""
    rows = [
        ["data set", "n", *(DEFINITIONS[metric].head for metric in _SCORES)],
        ["---"] * (len(_SCORES) + 2),
    ]
    for name, values in datasets.items():
        numbers = (text_of([datasets], [name], metric) for metric in _SCORES)
        rows.append([name.replace("|", "\\|"), str(values["n"]), *numbers])
    scores = ["", "On held-out problems:", "", *(f"| {' | '.join(row)} |" for row in rows)]
    recipe, (max_turns, rule) = pl_module.recipe, pl_module.stop_policy
    stop = f"at the first complete turn with {rule}, or" if rule is not None else "only"
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [self-verification, adaptive-computation, grpo]",
        "---",
        f"# {type(recipe).__name__} policy",
        "",
        f"Trained with svr_lightning {__version__} from `{pl_module.policy_config.path}`, seed "
        f"{pl_module.seed}. It stops {stop} after {max_turns} turns.",
        *["PRIVILEGED: its prompts show whether the previous answer was right."]
        * recipe.uses_labels,
        "",
        "```bash",
        *_command(pl_module),
        "```",
        *(scores if datasets else []),
        "",
    ]
    return "\n".join(lines)


def _command(pl_module: Any) -> list[str]:
    """A command that runs the policy with the settings of its training."""
    task = pl_module.run_config.get("data", {}).get("questions_task")
    stop = pl_module.evaluation.stop
    settings = {
        **({"data.questions_task": task} if task else {}),
        **_other_than_default(pl_module.policy_config, _RENDERING, "model.policy"),
        **_other_than_default(pl_module.evaluation, _LIMITS, "model.evaluation"),
        **({"model.evaluation.stop": rule_as_config(stop)} if stop else {}),
        **_recipe_settings(pl_module),
    }
    options = [
        f"  --{name} {shlex.quote(value if isinstance(value, str) else json.dumps(value))}"
        for name, value in settings.items()
    ]
    parts = ["svr predict --model.policy.path THIS_FOLDER", *options]
    return [*(f"{part} \\" for part in parts), "  --question '...'"]


_RENDERING = ("chat_template_kwargs", "max_prompt_tokens", "max_model_len")
_LIMITS = ("max_turns", "max_completion_tokens")


def _other_than_default(
    config: PolicyConfig | EvaluationConfig, names: tuple[str, ...], section: str
) -> dict[str, Any]:
    default = type(config)()
    return {
        f"{section}.{name}": getattr(config, name)
        for name in names
        if getattr(config, name) != getattr(default, name)
    }


def _recipe_settings(pl_module: Any) -> dict[str, Any]:
    """The recipe, and those of its options that may shape a prompt or what is read from a text."""
    recipe = type(pl_module.recipe)
    chosen = pl_module.run_config.get("model", {}).get("recipe", {}).get("init_args", {})
    options = {
        f"model.recipe.{name}": chosen[name]
        for name, parameter in inspect.signature(recipe).parameters.items()
        if name in chosen
        and chosen[name] != parameter.default
        and isinstance(chosen[name], bool | str)
        and name != "custom_reward"
    }
    named = {"model.recipe": f"{recipe.__module__}.{recipe.__qualname__}"}
    return {**(named if recipe is not SVR or options else {}), **options}
