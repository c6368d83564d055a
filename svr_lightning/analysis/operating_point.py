"""A policy's stopping rule and its certificate: files that ``certify`` and exports write.

``operating_point.json`` in a policy's folder holds its threshold, and all of a certificate if there
is one.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from svr_lightning.core.stopping import Confident, StopRule, rule_from_config
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.files import write_json

OPERATING_POINT = "operating_point.json"
SCHEMA_VERSION = 2
"""Of a certificate. One of another version is refused."""
_PROMISE = {"name", "limit", "bound"}
_OWN = "threshold"
"""The field that an operating point has beside those of its certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What was promised, and for which settings."""

    id: str
    """The beginning of a SHA-256 of its content: the same of a file and of an operating point."""
    rule: Confident
    max_turns: int
    decoding: Mapping[str, Any]
    """See :func:`~svr_lightning.analysis.results.certified_settings`."""
    promised: tuple[Mapping[str, Any], ...]
    """``name``, ``limit`` and ``bound`` of each promise."""
    confidence: float
    weights: str | None = field(repr=False)
    """SHA-256 of the policy's weights, if it is known."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Certificate":
        """Read what ``certify`` wrote.

        Raises:
            ConfigError: if it is no certificate of a threshold.
        """
        path = Path(path)
        require(path.is_file(), f"{path}: no such file; give the certificate.json of certify")
        content = _content(path) or {}
        try:
            if content["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema_version is not {SCHEMA_VERSION}")
            chosen = content["certified"]
            options = {**content["rule"], "threshold": chosen["threshold"]}
            rule = rule_from_config({"stop": {"class_path": "Confident", "init_args": options}})
            assert isinstance(rule, Confident)
            found = cls(
                id=_id(content),
                rule=rule,
                max_turns=int(content["max_turns"]),
                decoding=dict(content.get("decoding") or {}),
                promised=tuple(content["promises"]),
                confidence=float(content["confidence"]),
                weights=content.get("weights"),
            )
            if not found.promised or any(one.keys() - _PROMISE for one in found.promised):
                raise ValueError("its promises cannot be read")
            assert found.promises  # that there is a name and a number in each
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"is no certificate of a threshold ({error!r})"
            raise ConfigError(f"{path}: {why}; certify again or remove it") from error
        return found

    @property
    def promises(self) -> tuple[str, ...]:
        """What it promises, and how surely, in words."""
        told = [f"{one['name']} at most {one['limit']:g}" for one in self.promised]
        return (*told, f"confidence {self.confidence:g}")

    def departures(
        self,
        rule: StopRule | None,
        max_turns: int,
        decoding: Mapping[str, Any] | None = None,
        otherwise: str = "answer",
    ) -> list[str]:
        """Where settings differ from the certified ones: ``max_turns=3 instead of 10``.

        ``decoding`` may hold some of the settings; those that it leaves out are not compared.
        ``otherwise`` is what becomes of a problem without an accepted answer. Promises on accuracy
        hold for the policy's last answer.
        """
        found = [] if rule == self.rule else [f"the rule {rule} instead of {self.rule}"]
        told = {**(decoding or {}), "max_turns": max_turns}
        own = {**self.decoding, "max_turns": self.max_turns}
        if "wrong" in {one["name"] for one in self.promised}:
            told, own = told | {"otherwise": otherwise}, own | {"otherwise": "answer"}
        pairs = [(name, told[name], value) for name, value in own.items() if name in told]
        return found + [
            f"{name}={now} instead of {value}" for name, now, value in pairs if now != value
        ]

    def is_for(self, folder: str | os.PathLike[str]) -> bool:
        """Whether a policy's folder holds the certified weights, as far as they are known."""
        return self.weights is None or self.weights == weights_digest(folder)


def read_operating_point(folder: str | os.PathLike[str]) -> Confident | Certificate | None:
    """Where a policy's folder asks to stop, with a certificate if it has one; None if it does not.

    Raises:
        ConfigError: if the file is there and holds neither a certificate nor a rule.
    """
    path = Path(folder) / OPERATING_POINT
    content = _content(path)
    if content is None:
        return None
    if content.get("certified"):
        return Certificate.read(path)
    try:
        options = {**content.get("rule", {}), "threshold": content[_OWN]}
        rule = rule_from_config({"stop": {"class_path": "Confident", "init_args": options}})
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: 'threshold' and 'rule' are not those of a stopping rule "
            f"({one_line(error.__cause__ or repr(error))}); certify again or remove the file"
        ) from error
    assert isinstance(rule, Confident)
    return rule


def weights_digest(folder: str | os.PathLike[str]) -> str | None:
    """The SHA-256 of a policy's weights; None if the folder has none."""
    digest, files = hashlib.sha256(), sorted(Path(folder).glob("*.safetensors"))
    for path in files:
        with path.open("rb") as stream:
            digest.update(path.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest() if files else None


def _id(content: Mapping[str, Any]) -> str:
    own = {name: value for name, value in content.items() if name != _OWN}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]


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
        threshold: gamma, in [0, 1] but for a rule on log-probabilities.
        details: how it was chosen: a certificate, or only for readers of the file; ``rule`` has
            the rule's options beside the threshold.

    Returns:
        The file.

    Raises:
        ConfigError: if the folder is not there or the threshold is none.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; an operating point belongs to a policy's")
    try:
        Confident(**{**details.get("rule", {}), "threshold": threshold}).check()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    path = folder / OPERATING_POINT
    write_json(path, {_OWN: threshold, **details})
    return path
