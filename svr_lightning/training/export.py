"""The policy as a folder that ``from_pretrained`` loads, with a model card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from svr_lightning import __version__
from svr_lightning.core.metrics import DEFINITIONS
from svr_lightning.core.types import Problem
from svr_lightning.display import interval
from svr_lightning.files import write_json

SETTINGS = "svr.json"
"""The file in a policy's folder with a configuration that prompts it as in training."""
_RENDERING = ("chat_template_kwargs", "max_prompt_tokens", "max_model_len")


def export_policy(pl_module: Any, root: Path) -> Path:
    """Save the module's policy under ``root/policy`` and return that folder."""
    folder = root / "policy"
    pl_module.actor.export(folder, pl_module.sampling.max_completion_tokens)
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

Trained with svr_lightning {version} from `{path}`{data}, seed {seed}.
It stops {stop} after {turns} turns.
{privileged}
## Use

```bash
svr predict {settings}--model.policy.path THIS_FOLDER --question '...'
```

It was trained on the prompts that this command writes. Other programs load it with
`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`, and write its prompts
with the tokenizer's chat template.
{prompt}
## Results

{results}

## Limits

Nothing beyond these results was measured: neither other problems, languages and prompts, nor
safety. A confidence is what the policy says of itself, and may be wrong elsewhere: before you rely
on it, measure it on problems like yours (`svr test --record`, then `svr certify`).
"""
_PROMPT = """
The prompt of its task, {task}:

```text
{text}
```
"""
_SHOWN = ("accuracy", "turns", "avg_total_tokens", "pse", "auroc", "brier")


def model_card(pl_module: Any) -> str:
    """The model card: how the policy was trained, how to run it, and what was measured of it."""
    recipe = pl_module.recipe
    protocol = pl_module.applied_evaluation.resolve(recipe)
    stop = "only"
    if protocol.rule is not None:
        stop = f"at the first complete turn with {protocol.rule}, or"
    labels = "PRIVILEGED: its prompts show whether the previous answer was right.\n"
    data = prompt = ""
    data_module = getattr(pl_module._trainer, "datamodule", None)
    for source in data_module.sources["train"] if data_module else []:
        data = f" on the data set `{source.name}` (`{source.path}`)"
        question = Problem(id="", task=source.task, question="THE QUESTION", reference=None)
        messages = recipe.dialogue.first(question)
        text = "\n\n".join(f"{one['role']}: {one['content']}" for one in messages)
        prompt = _PROMPT.format(task=source.task, text=text)
    return _CARD.format(
        recipe=type(recipe).__name__,
        version=__version__,
        path=pl_module.policy_config.path,
        data=data,
        seed=pl_module.seed,
        stop=stop,
        turns=protocol.max_turns,
        privileged=labels if recipe.uses_labels else "",
        settings=f"--config THIS_FOLDER/{SETTINGS} " if pl_module.run_config else "",
        prompt=prompt,
        results=_results(pl_module.measured),
    )


def _results(measured: Mapping[str, Any]) -> str:
    """A table of the evaluation of these weights, if there was one."""
    if not measured:
        return "It was not evaluated on a test set when it was written."
    names = [DEFINITIONS[name].words for name in _SHOWN]
    rows = [["data set", "problems", "95 % of accuracy", *names]]
    rows.append(["---"] * len(rows[0]))
    for dataset, values in measured["datasets"].items():
        cells = [DEFINITIONS[name].text(values.get(name)) for name in _SHOWN]
        rows.append([dataset, str(values["n"]), interval(values["accuracy_ci95"]), *cells])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"On held-out problems, by the stopping rule above:\n\n{table}"


def _settings(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's configuration that decides prompts and how answers are read."""
    model, task = run_config["model"], run_config.get("data", {}).get("questions_task")
    policy = {name: model["policy"][name] for name in _RENDERING}
    settings = {"policy": policy, "recipe": model["recipe"], "evaluation": model["evaluation"]}
    return {"model": settings, **({"data": {"questions_task": task}} if task else {})}
