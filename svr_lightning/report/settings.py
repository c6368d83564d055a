"""What the policies were trained with, as the paper's tables of settings have it."""

from collections.abc import Mapping, Sequence
from typing import Any

from svr_lightning.report.runs import Method, setting
from svr_lightning.report.table import NONE, Table, cells

_COEFFICIENTS = (
    ("abs", "\u03bb abs", "Absolute correctness reward"),
    ("delta", "\u03bb \u0394", "Turn-to-turn improvement weight"),
    ("alpha", "\u03b1", "Completion-length shaping strength"),
    ("keep", "\u03bb keep", "Correct-answer preservation bonus"),
    ("reg", "\u03bb reg", "Correct-to-incorrect regression penalty"),
    ("fail", "\u03bb fail", "Repeated-failure penalty"),
    ("trunc", "\u03bb trunc", "Generation-truncation penalty"),
    ("cal", "\u03bb cal", "Brier-style calibration reward"),
    ("over", "\u03bb over", "Asymmetric overconfidence penalty"),
    ("detect", "\u03bb detect", "Explicit error-detection reward"),
    ("ready", "\u03bb ready", "Stop-readiness reward"),
    ("fmt", "\u03bb fmt", "Task-answer and self-check format weight"),
)
_GENERATION = (
    ("Maximum completion tokens", ("model", "sampling", "max_completion_tokens")),
    ("Length-normalization scale", ("model", "recipe", "init_args", "length_scale")),
    ("Sampling temperature", ("model", "sampling", "temperature")),
    ("Trajectories per problem", ("model", "recipe", "init_args", "group_size")),
    ("Training horizon", ("model", "recipe", "init_args", "horizon")),
)


def settings_tables(methods: Sequence[Method]) -> list[Table]:
    """Tables 5 and 6, of the configurations that results files quote; none without any."""
    configs = [(m.name, s.config) for m in methods for s in m.runs[0].sources if s.config]
    if not any(setting(config, "model", "recipe") for _, config in configs):
        return []
    names = tuple(name for name, _ in configs)
    weights = ("model", "recipe", "init_args", "weights")
    return [
        Table(
            name="generation_settings",
            caption="Generation and length-control settings used during training.",
            head=("Hyperparameter", *names),
            rows=tuple(cells([name, *_values(configs, keys)]) for name, keys in _GENERATION),
        ),
        Table(
            name="reward_coefficients",
            caption="Reward coefficients used for training.",
            head=("Symbol", "Role", *names),
            rows=tuple(
                cells([symbol, role, *_values(configs, (*weights, key))])
                for key, symbol, role in _COEFFICIENTS
            ),
        ),
    ]


def _values(configs: Sequence[tuple[str, Mapping[str, Any]]], keys: Sequence[str]) -> list[str]:
    found = (setting(config, *keys) for _, config in configs)
    return [NONE if value is None else str(value)[:20] for value in found]
