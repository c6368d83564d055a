"""The policy as a folder that ``from_pretrained`` loads, with a model card."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from svr_lightning import __version__
from svr_lightning.analysis.operating_point import write_operating_point
from svr_lightning.core.stopping import Confident
from svr_lightning.files import write_json

SETTINGS = "svr.json"
"""The file in a policy's folder with a configuration that prompts it as in training."""
_RENDERING = ("chat_template_kwargs", "max_prompt_tokens", "max_model_len")


def export_policy(pl_module: Any, root: Path) -> Path:
    """Save the module's policy under ``root/policy`` and return that folder."""
    folder = root / "policy"
    pl_module.actor.export(folder, pl_module.sampling.max_completion_tokens)
    rule = pl_module.applied_evaluation.resolve(pl_module.recipe).rule
    if isinstance(rule, Confident):
        # Without the certificate that the folder may have had: it was for other weights.
        usual = Confident(threshold=rule.threshold)
        own = {k: v for k, v in asdict(rule).items() if v != getattr(usual, k)}
        details = {"max_turns": pl_module.evaluation.max_turns, **({"rule": own} if own else {})}
        write_operating_point(folder, rule.threshold, details)
    if pl_module.run_config:
        write_json(folder / SETTINGS, _settings(pl_module.run_config))
    (folder / "README.md").write_text(model_card(pl_module), encoding="utf-8")
    return folder


_CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags: [self-verification, adaptive-computation, grpo]
---
# {recipe} policy

Trained with svr_lightning {version} from `{path}`, seed {seed}.
It stops {stop} after {turns} turns.
{privileged}
```bash
svr predict {settings}--model.policy.path THIS_FOLDER --question '...'
```
"""


def model_card(pl_module: Any) -> str:
    """The model card: how the policy was trained, and a command that runs it."""
    recipe = pl_module.recipe
    protocol = pl_module.applied_evaluation.resolve(pl_module.recipe)
    stop = "only"
    if protocol.rule is not None:
        stop = f"at the first complete turn with {protocol.rule}, or"
    labels = "PRIVILEGED: its prompts show whether the previous answer was right.\n"
    return _CARD.format(
        recipe=type(recipe).__name__,
        version=__version__,
        path=pl_module.policy_config.path,
        seed=pl_module.seed,
        stop=stop,
        turns=protocol.max_turns,
        privileged=labels if recipe.uses_labels else "",
        settings=f"--config THIS_FOLDER/{SETTINGS} " if pl_module.run_config else "",
    )


def _settings(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's configuration that decides prompts and how answers are read."""
    model, task = run_config["model"], run_config.get("data", {}).get("questions_task")
    policy = {name: model["policy"][name] for name in _RENDERING}
    settings = {"policy": policy, "recipe": model["recipe"], "evaluation": model["evaluation"]}
    return {"model": settings, **({"data": {"questions_task": task}} if task else {})}
