"""The threshold that belongs to a policy: ``operating_point.json`` in the policy's folder.

An export writes where the policy stops; ``certify`` writes a whole certificate.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from svr_lightning.errors import ConfigError, require
from svr_lightning.files import write_json

OPERATING_POINT = "operating_point.json"
DECODING = ("temperature", "top_p", "top_k", "max_completion_tokens")
"""The settings of evaluation that a certificate holds for, beside rule and T_max."""


def read_operating_point(folder: str | os.PathLike[str]) -> float | None:
    """The threshold that a policy's folder asks for; None where it asks for none.

    Raises:
        ConfigError: if the file is there and holds no threshold in [0, 1].
    """
    path = Path(folder) / OPERATING_POINT
    content = _content(path)
    if content is None:
        return None
    threshold: Any = content.get("threshold")
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if number and 0 <= threshold <= 1:
        return float(threshold)
    raise ConfigError(
        f"{path}: 'threshold' must be a number in [0, 1]; certify again or remove the file"
    )


def uncertified_settings(
    folder: str | os.PathLike[str], evaluation: Mapping[str, Any]
) -> list[str]:
    """Where ``evaluation`` departs from what the threshold was certified for.

    Args:
        folder: of the policy.
        evaluation: the configured T_max, decoding and stopping rule, by their names.

    Returns:
        ``max_turns=3 instead of 10`` and so on; empty where nothing was certified.
    """
    content = _content(Path(folder) / OPERATING_POINT) or {}
    if not content.get("certified") or not isinstance(content.get("rule"), dict):
        return []
    decoding = content["decoding"] if isinstance(content.get("decoding"), dict) else {}
    tuned = {**content["rule"], **decoding, "max_turns": content.get("max_turns")}
    found = [
        f"{name}={evaluation[name]} instead of {value}"
        for name, value in tuned.items()
        if name in evaluation and evaluation[name] != value
    ]
    written_for = content.get("weights")
    if written_for is not None and written_for != weights_digest(folder):  # hashes whole files
        found.append("other weights than it was written for")
    return found


def promise_words(content: Mapping[str, Any]) -> tuple[str, ...]:
    """What a certificate promises, and how surely, in words.

    Raises:
        KeyError, TypeError or ValueError: if it is none.
    """
    promises = [f"{one['name']} at most {one['limit']:g}" for one in content["promises"]]
    return (*promises, f"confidence {content['confidence']:g}")


def promises_of(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """What a policy's folder promises, in words; empty where nothing was certified."""
    content = _content(Path(folder) / OPERATING_POINT) or {}
    try:
        return promise_words(content) if content.get("certified") else ()
    except (KeyError, TypeError, ValueError):
        return ()


def weights_digest(folder: str | os.PathLike[str]) -> str | None:
    """The SHA-256 of a policy's weights; None if the folder has none."""
    digest, files = hashlib.sha256(), sorted(Path(folder).glob("*.safetensors"))
    for path in files:
        with path.open("rb") as stream:
            digest.update(path.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest() if files else None


def read_certificate(path: Path) -> dict[str, Any]:
    """A certificate of ``certify`` that chose a threshold; raises ConfigError if it is none."""
    content = _content(path)
    require(content is not None, f"{path}: no such file; give the certificate.json of certify")
    assert content is not None
    kinds = {"promises": list, "certified": dict, "rule": dict, "max_turns": int}
    wrong = [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]
    require(not wrong, f"{path}: is no certificate of a threshold, for want of {', '.join(wrong)}")
    return content


def _content(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); certify again or remove it"
        ) from error
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
