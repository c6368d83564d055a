"""Self-Verifying Refinement: policies that judge their own answers.

::

    Problem --prompts--> Prompt --engine--> Completion --parsing--> Turn(answer, SelfCheck)
       |                    ^                                          |
       |                    '---- PolicyState(draft, v, c, q) <--------'   (no label enters here)
       '--graders--> y_t --rewards--> R --credit--> Sample(advantage) --losses--> loss --> logs

Layers, which import only from those to their right (CONTRIBUTING.md has all): ``cli`` -
``training`` - ``rollout``, ``evaluation`` - ``engines``, ``tasks``, ``recipes`` - ``core``.
The names below are the stable public surface; importing them needs no torch, GPU or network.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Certificate": "analysis.operating_point",
    "Controller": "control.controller",
    "Problem": "core.types",
    "ScoredTurn": "core.types",
    "SelfCheck": "core.types",
    "Verdict": "core.types",
    "Reward": "core.rewards",
    "RewardWeights": "core.rewards",
    "TurnReward": "core.rewards",
    "trajectory_return": "core.rewards",
    "turn_rewards": "core.rewards",
    "parse_self_check": "core.parsing",
    "self_check_format_score": "core.parsing",
    "should_stop": "core.stopping",
    "get_task": "tasks",
    "Task": "tasks",
    "get_grader": "tasks.grading",
    "first_turn_messages": "core.prompts",
    "refinement_messages": "core.prompts",
    # These import torch, transformers and Lightning when they are first used.
    "Decoding": "core.types",
    "Renderer": "rollout.rendering",
    "collect_rollout": "rollout.collect",
    "micro_batches": "training.update",
    "policy_update_loss": "training.update",
    "SVRDataModule": "training.data",
    "SVRModule": "training.module",
    "SVRTrainer": "training.trainer",
}

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
