"""The certificate of a stopping rule: a file that ``certify`` writes.

In a policy's folder it is ``operating_point.json``, and the policy then stops by its rule.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct, convert, field

from svr_lightning.core.ranges import Count
from svr_lightning.core.stopping import StopRule, rule_from_config
from svr_lightning.errors import ConfigError, field_error, require
from svr_lightning.files import to_json

OPERATING_POINT = "operating_point.json"
SCHEMA_VERSION: Literal[3] = 3
"""Version of a certificate's file; another one is refused."""
_SEAL = "sha256"
"""The field of a certificate's file with the digest of all others."""

K = TypeVar("K")
Name = Literal["pse", "wrong_accepted", "wrong", "tokens"]
_WORST = {"pse": "early", "wrong_accepted": "accepted"}
"""The rate of answers that count against a promise if all are wrong; for other promises, all do."""


class Promise(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mean loss of new problems is at most ``limit``."""

    name: Name
    """A rate of :class:`~svr_lightning.analysis.certificates.Replayed`."""
    limit: float
    bound: float = 1.0
    """Upper bound of a problem's loss, known in advance: for tokens, T_max x model length."""

    def __post_init__(self) -> None:
        if self.name == "tokens":
            possible = 0 < self.limit < math.inf and 0 < self.bound < math.inf
        else:
            possible = 0 < self.limit < 1 == self.bound
        require(possible, f"{self}: there is no such promise")

    def __str__(self) -> str:
        return f"{self.name} at most {self.limit:g}"

    def can_be_broken(self, rates: Mapping[str, float]) -> bool:
        """Whether a rule with these rates would violate it if every answer were wrong.

        Otherwise it promises nothing: with T_max = 1, for example, nothing stops early.
        """
        if self.name == "tokens":
            return self.limit < self.bound
        least = self.limit if self.name == "pse" else 0.0
        return self.name not in _WORST or rates[_WORST[self.name]] > least


class _Chosen(Struct, frozen=True):
    threshold: float


class _Data(Struct, frozen=True):
    problems: str = ""
    """:func:`problem_digests` of the calibration problems."""


def sealed(**fields: Any) -> dict[str, Any]:
    """A certificate of these fields as plain JSON, with its digest: a later edit is noticed."""
    content = json.loads(to_json(fields))
    return {**content, _SEAL: _content_digest(content)}


def _content_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def problem_digests(names: Iterable[str]) -> str:
    """The beginnings of SHA-256 of names of problems, with spaces between."""
    return " ".join(sorted({_digest(name) for name in names}))


def _digest(name: str) -> str:
    plain = " ".join(name.split())  # a csv and JSON may differ in line breaks
    return hashlib.sha256(plain.encode("utf-8", "backslashreplace")).hexdigest()[:12]


class Certificate(Struct, frozen=True, kw_only=True):
    """What was promised, and for which settings: the fields of a certificate's file that count."""

    schema_version: Literal[3]
    certified: _Chosen
    recorded: dict[str, Any] = field(name="rule")
    """The rule as a configuration holds it, with the threshold that it was recorded with."""
    promised: Annotated[tuple[Promise, ...], Meta(min_length=1)] = field(name="promises")
    max_turns: Count
    confidence: Annotated[float, Meta(gt=0, lt=1)]
    decoding: dict[str, Any] = {}
    """See :func:`~svr_lightning.analysis.results.certified_settings`."""
    policy: str | None = None
    """The policy's path in the recording; None for a server's."""
    weights: str | None = None
    """SHA-256 of the policy's weights, if it is known."""
    data: _Data = _Data()
    """What it was calibrated on."""
    id: str = ""
    """The beginning of a SHA-256 of its content."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Certificate":
        """Read what ``certify`` wrote.

        Raises:
            ConfigError: if it is not a certificate of a threshold.
        """
        path = Path(path)
        require(path.is_file(), f"{path}: no such file; give the certificate.json of certify")
        try:
            content = convert(json.loads(path.read_bytes()), dict[str, Any])
            seal = content.pop(_SEAL, None)
            digest = _content_digest(content)
            require(content.get("certified", 0) is not None, "nothing is certified there")
            certificate = convert({**content, "id": digest[:16]}, cls)
            require(seal == digest, f"not as certify wrote it, whose digest is {seal}")
        except (OSError, ValueError, RecursionError) as error:
            reason = f"is not a certificate of a threshold ({field_error(error, 'the file')})"
            raise ConfigError(f"{path}: {reason}; certify again or remove it") from error
        return certificate

    def __post_init__(self) -> None:
        _ = self.rule  # ValueError where it is none

    @property
    def rule(self) -> StopRule:
        """The rule with the certified threshold."""
        return rule_from_config({"stop": self.recorded}).with_threshold(self.certified.threshold)

    @property
    def promises(self) -> tuple[str, ...]:
        """What it promises, and how surely, in words."""
        return (*map(str, self.promised), f"confidence {self.confidence:g}")

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """Why it cannot be known to cover any answer: nothing says how the samples were drawn."""
        if "temperature" in self.decoding:
            return ()
        return ("made from a log: prompts, policy and decoding are unknown",)

    @property
    def of_all(self) -> bool:
        """Whether it promises something of all answers, not of accepted ones alone."""
        return any(one.name == "wrong" for one in self.promised)

    def calibrated_on(self, names: Mapping[K, Iterable[str]]) -> set[K]:
        """Which problems, by any of their names, it was calibrated on.

        None of them for certificates of earlier versions, which did not record it.
        """
        digests = frozenset(self.data.problems.split())
        return {key for key, own in names.items() if any(_digest(name) in digests for name in own)}

    def calibration_note(self, names: Mapping[K, Iterable[str]]) -> str | None:
        """Says how many of the problems it was calibrated on; None if it is none of them."""
        count = len(self.calibrated_on(names))
        if count == 0:
            return None
        return f"the certificate was calibrated on {count} of {len(names)} problems"

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
        now = {"rule": rule, **(decoding or {}), "max_turns": max_turns}
        certified = {"rule": self.rule, **self.decoding, "max_turns": self.max_turns}
        if self.of_all:
            now["otherwise"], certified["otherwise"] = otherwise, "answer"
        return [
            f"{name}={now[name]} instead of {value}"
            for name, value in certified.items()
            if name in now and now[name] != value
        ]

    def is_for(self, folder: str | os.PathLike[str]) -> bool:
        """Whether a policy's folder holds the certified weights, as far as they are known."""
        return self.weights is None or self.weights == weights_digest(folder)


def unsent(fields: Mapping[str, Any]) -> list[str]:
    """The settings of decoding that requests leave out, so that their server decides them.

    Args:
        fields: what the server calls the fields of a request; None leaves one out.
    """
    return sorted(name for name in fields.keys() - {"seed", "logprobs"} if fields[name] is None)


def read_operating_point(folder: str | os.PathLike[str]) -> Certificate | None:
    """The certificate in a policy's folder; None if it has none.

    Raises:
        ConfigError: if the file is there and cannot be used.
    """
    path = Path(folder) / OPERATING_POINT
    return Certificate.read(path) if path.exists() else None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def weights_digest(folder: str | os.PathLike[str]) -> str | None:
    """The SHA-256 of a policy's weights; None if the folder has none."""
    digest, files = hashlib.sha256(), sorted(Path(folder).glob("*.safetensors"))
    for path in files:
        digest.update(path.name.encode() + bytes.fromhex(sha256_of(path)))
    return digest.hexdigest() if files else None
