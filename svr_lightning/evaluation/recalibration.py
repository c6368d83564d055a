"""Monotone maps from stated confidence to the chance of being right.

A map never changes which of two confidences is higher, so a threshold on the mapped scale is a
threshold on the stated one: :func:`raw_threshold` finds it, and inference needs no map.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from svr_lightning.evaluation.calibration import levels_of
from svr_lightning.evaluation.intervals import split_clusters
from svr_lightning.evaluation.table import TurnTable

_CLIP = 1e-3
"""How near to 0 and 1 a confidence counts for the logarithms of the beta map."""
_RIDGE = 1e-6
"""Penalty on the slopes, against data that a threshold separates."""
_NEWTON_STEPS = 100
_HALVINGS = 60

Floats = NDArray[np.float64]


class Map(Protocol):
    """A map of confidences of any shape that never falls."""

    def __call__(self, confidence: NDArray[Any]) -> Floats:
        """The chance of being right, in [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsotonicMap:
    """The fitted values at the confidences seen, with straight lines between them."""

    confidence: Floats
    """[U] ascending."""
    value: Floats
    """[U] never falling."""

    def __call__(self, confidence: NDArray[Any]) -> Floats:
        """Confidences beyond those seen take the value at the end."""
        return np.asarray(np.interp(confidence, self.confidence, self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class BetaMap:
    """logit of the value = a ln c - b ln(1 - c) + intercept, with a, b >= 0."""

    a: float
    b: float
    intercept: float

    def __call__(self, confidence: NDArray[Any]) -> Floats:
        """Within 0.001 of 0 and 1 it is flat."""
        logit = _logs(confidence) @ np.array([self.a, self.b]) + self.intercept
        return np.asarray(0.5 * (1 + np.tanh(logit / 2)))


def fit_isotonic(confidence: NDArray[Any], correct: NDArray[Any]) -> IsotonicMap:
    """Least squares among the maps that never fall, by pooling adjacent violators.

    Args:
        confidence: [M], at least one.
        correct: [M] labels.
    """
    levels = levels_of(confidence, correct)
    blocks: list[tuple[float, float, int]] = []  # right ones, turns, levels
    for right, total in zip(levels.right, levels.total, strict=True):
        block = (right, total, 1)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    values = [right / total for right, total, size in blocks for _ in range(size)]
    return IsotonicMap(confidence=levels.confidence, value=np.array(values))


def fit_beta(confidence: NDArray[Any], correct: NDArray[Any]) -> BetaMap:
    """Beta calibration (Kull, Silva Filho, Flach 2017): logistic regression on ln c, -ln(1 - c).

    A slope that would be negative is held at 0, so that the map never falls: of the four sets of
    slopes that may be free, the likeliest fit without a negative one is the constrained optimum.

    Args:
        confidence: [M].
        correct: [M] labels.

    Raises:
        ValueError: if all labels are equal.
    """
    levels = levels_of(confidence, correct)
    if not 0 < levels.right.sum() < levels.total.sum():
        raise ValueError("every turn is right, or every turn is wrong; nothing can be fitted")
    features = _logs(levels.confidence)
    fits = [
        _logistic(features, levels.right, levels.total, free)
        for free in ((True, True), (True, False), (False, True), (False, False))
    ]
    _, weights = min((fit for fit in fits if (fit[1][:2] >= 0).all()), key=lambda fit: fit[0])
    return BetaMap(a=float(weights[0]), b=float(weights[1]), intercept=float(weights[2]))


def recalibrated(table: TurnTable, mapping: Map) -> TurnTable:
    """The table with every confidence mapped."""
    return replace(table, confidence=mapping(table.confidence))


def raw_threshold(mapping: Map, threshold: float) -> float | None:
    """The smallest stated confidence that maps to ``threshold`` or more; None if 1 does not."""

    def reaches(confidence: float) -> bool:
        return bool(mapping(np.array([confidence]))[0] >= threshold)

    if not reaches(1.0):
        return None
    if reaches(0.0):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):  # down to neighbouring numbers
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalibration:
    """A map fitted on half of the problems, and the half that was held back."""

    fitted_on: int
    """Problems."""
    held: dict[str, TurnTable]
    """By data set, with stated confidences."""
    mapped: dict[str, TurnTable]
    """The same with mapped ones."""
    thresholds: dict[float, float]
    """Stated threshold by threshold on the mapped scale, of those that can be reached."""


FITS: dict[str, Callable[[NDArray[Any], NDArray[Any]], Map]] = {
    "isotonic": fit_isotonic,
    "beta": fit_beta,
}
"""By name."""


def recalibrate(
    tables: Mapping[str, TurnTable], method: str, thresholds: Sequence[float], seed: int
) -> Recalibration:
    """Fit one map on half of each data set's clusters, over all their recorded turns.

    Args:
        tables: by data set.
        method: one of ``FITS``.
        thresholds: on the mapped scale.
        seed: of the split.

    Raises:
        ValueError: if there is nothing to fit.
    """
    parts = {name: split_clusters(table.cluster, 0.5, seed) for name, table in tables.items()}
    fitted = [table.select(parts[name]) for name, table in tables.items()]
    held = {name: table.select(~parts[name]) for name, table in tables.items()}
    recorded = [~np.isnan(table.confidence) for table in fitted]
    confidence, correct = (
        np.concatenate([getattr(t, name)[mask] for t, mask in zip(fitted, recorded, strict=True)])
        for name in ("confidence", "correct")
    )
    if len(confidence) == 0:
        raise ValueError("there are no turns to fit a map on; give more problems")
    mapping = FITS[method](confidence, correct)
    found = {value: raw_threshold(mapping, value) for value in sorted(set(thresholds))}
    return Recalibration(
        fitted_on=sum(len(table.ids) for table in fitted),
        held=held,
        mapped={name: recalibrated(table, mapping) for name, table in held.items()},
        thresholds={value: raw for value, raw in found.items() if raw is not None},
    )


def _logs(confidence: NDArray[Any]) -> Floats:
    """[..., 2] ln c and -ln(1 - c)."""
    inside = np.clip(confidence, _CLIP, 1 - _CLIP)
    return np.stack([np.log(inside), -np.log1p(-inside)], axis=-1)


def _logistic(
    features: Floats, right: Floats, total: Floats, free: tuple[bool, bool]
) -> tuple[float, Floats]:
    """Newton's method with halved steps: the loss and [3] weights, those not free being 0."""
    columns = np.append(np.flatnonzero(free), 2)
    design = np.concatenate([features, np.ones((len(features), 1))], axis=1)[:, columns]
    ridge = np.where(columns < 2, _RIDGE, 0.0)

    def loss(weights: Floats) -> float:
        logit = design @ weights
        nats = total * np.logaddexp(0, logit) - right * logit
        return float(nats.sum() + 0.5 * (ridge * weights**2).sum())

    weights = np.zeros(len(columns))
    for _ in range(_NEWTON_STEPS):
        chance = 0.5 * (1 + np.tanh(design @ weights / 2))
        slope = design.T @ (total * chance - right) + ridge * weights
        curvature = design.T @ (design * (total * chance * (1 - chance))[:, None]) + np.diag(ridge)
        step = np.linalg.lstsq(curvature, slope, rcond=None)[0]
        size = 1.0
        while size > 1e-9 and loss(weights - size * step) > loss(weights):
            size /= 2
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-10:
            break
    whole = np.zeros(3)
    whole[columns] = weights
    return loss(weights), whole
