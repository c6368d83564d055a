"""The threshold that belongs to a policy: ``operating_point.json`` in the policy's folder."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from svr_lightning.errors import ConfigError
from svr_lightning.files import write_json

OPERATING_POINT = "operating_point.json"


def read_operating_point(folder: str | os.PathLike[str]) -> float | None:
    """The threshold that a policy's folder asks for; None where it asks for none.

    Raises:
        ConfigError: if the file is there and holds no threshold in [0, 1].
    """
    content = _content(folder)
    if content is None:
        return None
    path = Path(folder) / OPERATING_POINT
    threshold: Any = content.get("threshold")
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if number and 0 <= threshold <= 1:
        return float(threshold)
    raise ConfigError(
        f"{path}: 'threshold' must be a number in [0, 1]; tune again or remove the file"
    )


def uncertified_settings(
    folder: str | os.PathLike[str], evaluation: Mapping[str, Any]
) -> list[str]:
    """Where ``evaluation`` departs from what the threshold was certified for.

    Args:
        folder: of the policy.
        evaluation: the configured T_max and stopping rule, by the names of a configuration.

    Returns:
        ``gate=joint instead of verdict`` and so on; empty where nothing was certified.
    """
    content = _content(folder) or {}
    if "certified" not in content or not isinstance(content.get("rule"), dict):
        return []
    tuned = {**content["rule"], "max_turns": content.get("max_turns")}
    return [
        f"{name}={evaluation[name]} instead of {value}"
        for name, value in tuned.items()
        if name in evaluation and evaluation[name] != value
    ]


def _content(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    path = Path(folder) / OPERATING_POINT
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); tune again or remove it") from error
    return content if isinstance(content, dict) else {}


def write_operating_point(
    folder: str | os.PathLike[str], threshold: float, details: Mapping[str, Any]
) -> Path:
    """Write the threshold into a policy's folder, whole or not at all.

    Args:
        folder: of the policy; it has to be there.
        threshold: gamma in [0, 1].
        details: how it was chosen; only for readers of the file.

    Returns:
        The file.

    Raises:
        ConfigError: if the folder is not there or the threshold is none.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; an operating point belongs to a policy's")
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold={threshold} must lie in [0, 1]")
    path = folder / OPERATING_POINT
    write_json(path, {"threshold": threshold, **details})
    return path
