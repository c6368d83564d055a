"""What an evaluation in Lightning's loops needs: its rule, configuration, fingerprint, results."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from svr_lightning.analysis.metrics import named_metrics
from svr_lightning.analysis.operating_point import (
    OPERATING_POINT,
    Certificate,
    read_operating_point,
)
from svr_lightning.analysis.results import certified_settings, package_versions
from svr_lightning.core.stopping import rule_as_config
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.policy.policy import RemotePolicy
from svr_lightning.tasks import TASKS
from svr_lightning.training.data import Split
from svr_lightning.training.logs import CSVLog, gather_lists, shows_progress
from svr_lightning.training.sources import problems_digest

if TYPE_CHECKING:
    from svr_lightning.training.evaluating import PolicyModule


def part_of(module: "PolicyModule") -> Split:
    """The data that Lightning's current loop evaluates."""
    stage: Any = module.trainer.state.stage
    return stage.dataloader_prefix  # type: ignore[no-any-return]


def new_evaluator(
    module: "PolicyModule",
    name: str,
    part: Split,
    evaluation: EvaluationConfig,
    *,
    every_turn: bool = False,
) -> Evaluator:
    """An evaluation of the current weights, begun or continued, with files in ``eval/name``."""
    trial = module.trainer.sanity_checking
    return Evaluator(
        module.actor,
        evaluation,
        recipe=module.recipe,
        folder=Path(module.trainer.default_root_dir) / "eval" / name,
        seed=module.seed,
        step=module.global_step,
        fingerprint=None if trial else record_fingerprint(module, part, evaluation),
        every_turn=every_turn,
        gather=gather_lists,
        rank=module.trainer.global_rank,
        quiet=not shows_progress(module.trainer),
    )


def operating_point(module: "PolicyModule") -> Certificate | None:
    """The certificate in the policy's folder; None without one, and for a server."""
    if isinstance(module.actor, RemotePolicy):
        return None
    return read_operating_point(module.policy_config.path)


def report_operating_point(module: "PolicyModule", stage: str) -> None:
    """Log that the rule of the policy's certificate is used; warn of what voids its promises."""
    certificate = operating_point(module)
    folder = module.policy_config.path
    if module.evaluation.stop is not None or certificate is None:
        return
    file = Path(folder) / OPERATING_POINT
    rule = module.applied_evaluation.full_rule
    text = f"stops at {rule}, the operating point of {file}"
    if not module.evaluation.adaptive:
        text = f"records every turn; replays stop at {rule}, the operating point of {file}"
    rank_zero_info("; ".join([text, *certificate.promises]))
    protocol = module.applied_evaluation.resolve(module.recipe)
    settings = {
        "model": {"evaluation": asdict(module.evaluation), "policy": asdict(module.policy_config)},
        "data": {part: [*map(asdict, module.data.sources[part])] for part in ("val", "test")},
    }
    departures = certificate.departures(
        protocol.rule, protocol.max_turns, certified_settings(settings)
    )
    if not certificate.is_for(folder):  # hashes whole files
        departures.append("other weights than it was written for")
    departures += [f"any answer: {reason}" for reason in certificate.unrecorded]
    if departures:
        rank_zero_warn(f"{file} promises nothing for {', '.join(departures)}")
    parts: Mapping[str, Split] = {"validate": "val", "test": "test"}
    names = {}
    if part := parts.get(stage):
        problems = module.data.problems(part)
        for source, rows in zip(module.data.sources[part], problems, strict=True):
            for row in rows:
                name = f"{source.name}/{row.id}"
                names[name] = (name, row.question)
    if note := certificate.calibration_note(names):
        rank_zero_warn(f"{file}: {note}; its promises say nothing of these")


def quoted_config(
    module: "PolicyModule", evaluation: EvaluationConfig | None = None
) -> dict[str, Any]:
    """The configuration for results files, with the stopping rule that is used."""
    evaluation = evaluation or module.applied_evaluation
    model: dict[str, Any] = dict(module.run_config.get("model", {}))
    if isinstance(module.actor, RemotePolicy):  # only the requests are known here
        template = module.policy_config.chat_template_kwargs
        model = {key: model[key] for key in ("engine", "recipe", "evaluation") if key in model}
        model["policy"] = {"chat_template_kwargs": template}
    protocol = evaluation.resolve(module.recipe)
    stop = None if protocol.rule is None else rule_as_config(protocol.rule)
    model["evaluation"] = {**asdict(replace(evaluation, stop=None)), "stop": stop}
    return {
        **module.run_config,
        "model": model,
        "graders": dict.fromkeys(TASKS, evaluation.grader),
        "protocol": {
            "max_turns": protocol.max_turns,
            "adaptive": protocol.applied_rule is not None,
            "privileged": module.recipe.uses_labels,
        },
    }


def record_fingerprint(module: "PolicyModule", part: Split, evaluation: EvaluationConfig) -> str:
    """A digest of all that determines a record, as far as it is known of a server."""
    sources = zip(module.data.sources[part], module.data.problems(part), strict=True)
    facts = {
        **module.actor.identity(),
        "policy": asdict(module.policy_config),
        "data": [(s.name, s.max_completion_tokens, problems_digest(p)) for s, p in sources],
        "ranks": module.trainer.world_size,
        "evaluation": repr(evaluation),
        "draws": [module.seed, module.global_step],
        "recipe": repr(module.recipe),
        "engine": type(module.engine).__name__,
        "versions": package_versions(),
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def log_results(module: "PolicyModule", results: Mapping[str, Any]) -> None:
    """Log the results of Lightning's loop under ``val/`` or ``test/``."""
    now = module.global_step
    stage = part_of(module)
    if not results or stage == "predict":
        return
    for logger in module.trainer.loggers:
        if isinstance(logger, CSVLog):  # an earlier run of the command, or an interrupted one
            logger.keep(lambda step, key: step != now or not key.startswith(f"{stage}/"))
    values = named_metrics(stage, results)
    # Equal on all ranks already. Nothing is reduced: NCCL cannot reduce a CPU's tensors.
    # Lightning writes them to the loggers at "step" and returns them from validate() and
    # test(). In float64, as results.json.
    exact = {k: torch.tensor(v, dtype=torch.float64, device="cpu") for k, v in values.items()}
    exact["step"] = torch.tensor(float(now))
    module.log_dict(exact, logger=True)
    if stage == "val":
        for name, metric in (("val_acc", "accuracy"), ("turns", "turns")):
            module.log(name, results["macro"]["all"][metric], prog_bar=True, logger=False)
