"""A certificate of ``certify`` as inference applies it: its rule, and what it is no promise for."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from svr_lightning.core.stopping import StopRule, rule_from_config
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.operating_point import promise_words, read_certificate, weights_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What was promised, and for which settings."""

    id: str
    """The beginning of the SHA-256 of its file."""
    rule: StopRule
    max_turns: int
    decoding: Mapping[str, Any]
    """``temperature``, ``top_p``, ``top_k`` and ``max_completion_tokens``, where they are known."""
    promises: tuple[str, ...]
    """In words."""
    weights: str | None = field(repr=False)
    """SHA-256 of the policy's weights, if it is known."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Certificate":
        """Read what ``certify`` wrote.

        Raises:
            ConfigError: if it is no certificate of a threshold.
        """
        path = Path(path)
        content = read_certificate(path)
        try:
            options = {**content["rule"], "threshold": content["certified"]["threshold"]}
            rule = rule_from_config({"stop": {"class_path": "Confident", "init_args": options}})
            promises = promise_words(content)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: is no certificate of a rule ({error})") from error
        decoding, weights = content.get("decoding"), content.get("weights")
        return cls(
            id=hashlib.sha256(path.read_bytes()).hexdigest()[:16],
            rule=rule,
            max_turns=content["max_turns"],
            decoding=decoding if isinstance(decoding, dict) else {},
            promises=promises,
            weights=weights if isinstance(weights, str) else None,
        )

    def departures(
        self, rule: StopRule, max_turns: int, decoding: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Where settings differ from the certified ones: ``max_turns=3 instead of 10``.

        ``decoding`` may hold some of the settings; those that it leaves out are not compared.
        """
        found = [] if rule == self.rule else [f"the rule {rule} instead of {self.rule}"]
        if max_turns != self.max_turns:
            found.append(f"max_turns={max_turns} instead of {self.max_turns}")
        told = decoding or {}
        pairs = [(name, told[name], own) for name, own in self.decoding.items() if name in told]
        return found + [f"{name}={now} instead of {own}" for name, now, own in pairs if now != own]

    def require_policy(self, folder: str | os.PathLike[str]) -> None:
        """Refuse a policy's folder with other weights.

        Raises:
            ConfigError: if the certificate names weights and the folder holds others.
        """
        if self.weights is not None and self.weights != weights_digest(folder):
            raise ConfigError(f"{folder}: the certificate {self.id} is for other weights")
