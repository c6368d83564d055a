"""Self-Verifying Refinement: policies that judge their own answers.

::

    Problem --prompts--> Prompt --engine--> Completion --parsing--> Turn(answer, SelfCheck)
       |                    ^                                          |
       |                    '---- PolicyState(draft, v, c, q) <--------'   (no label enters here)
       '--graders--> y_t --rewards--> R --credit--> Sample(advantage) --losses--> loss --> logs

Layers, which import only from those to their right (CONTRIBUTING.md has all): ``cli`` -
``training`` - ``policy``, ``evaluation`` - ``rollout`` - ``engines``, ``tasks``, ``recipes`` -
``core``.
The names below are the stable public surface; importing them needs no torch, GPU or network.
``__init__.pyi`` says the same to type checkers and editors.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "analysis.operating_point": "Certificate",
    "control.controller": "Controller Result",
    "core.credit": "turn_advantages",
    "core.parsing": "parse_self_check self_check_format_score",
    "core.prompts": "first_turn_messages refinement_messages",
    "core.rewards": (
        "Reward RewardWeights TurnReward calibration_rewards trajectory_return turn_rewards "
        "verification_rewards"
    ),
    "core.stopping": "should_stop",
    "core.types": "Decoding Problem ScoredTurn SelfCheck Verdict",
    "tasks": "Task get_task",
    "tasks.grading": "get_grader",
    # These import torch, transformers and Lightning when they are first used.
    "core.losses": "LossSpec",
    "engines.transformers": "TransformersEngine",
    "policy.config": "PolicyConfig",
    "policy.policy": "Policy",
    "recipes.svr": "SVR",
    "rollout.collect": "collect_rollout",
    "rollout.rendering": "Renderer",
    "training.config": "OptimizerConfig",
    "training.data": "SVRDataModule",
    "training.module": "SVRModule",
    "training.sources": "DataSource",
    "training.trainer": "SVRTrainer",
    "training.update": "micro_batches policy_update_loss",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
