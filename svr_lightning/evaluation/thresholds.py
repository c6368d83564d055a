"""Thresholds that keep promises about new problems, with a stated confidence.

Learn then test (Angelopoulos, Bates, Candes, Jordan, Lei 2021): every threshold of a grid that was
fixed before looking at the samples is a null hypothesis "it breaks a promise", with a p-value. A
procedure that controls the family-wise error at delta = 1 - confidence rejects some of them. With
probability at least 1 - delta every certified threshold keeps every promise; any may be chosen.

Only the promises hold for the whole family. The bounds of a :class:`Candidate` are pointwise: each
is valid for its own threshold at its own level, not for the one that was chosen because of it.

The unit is the cluster: the mean over variants of one problem. Assumed: clusters are independent
draws from one distribution; policy, decoding and T_max stay as they are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from svr_lightning.core.stopping import StopRule
from svr_lightning.evaluation.intervals import cluster_sums
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.table import TurnTable, problem_table

STARTS = 4
"""Thresholds, evenly spaced over the grid, among which delta is shared at first."""
_BETS = np.arange(1, 21) / 20
_HALVINGS = 50

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def binomial_tails(n: int, p: float) -> Floats:
    """[n + 1] P(Bin(n, p) <= k) for k = 0..n.

    Examples:
        >>> binomial_tails(2, 0.5).tolist()
        [0.25, 0.75, 1.0]
    """
    k = np.arange(n + 1)
    if p <= 0:
        return np.ones(n + 1)
    if p >= 1:
        return np.asarray(k == n, dtype=np.float64)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    chosen = factorials[n] - factorials - factorials[::-1]
    masses = np.exp(chosen + k * math.log(p) + (n - k) * math.log1p(-p))
    tails = np.minimum(np.cumsum(masses), 1.0)
    tails[-1] = 1.0
    return np.asarray(tails)


def share_p_value(failures: int, n: int, promise: float) -> float:
    """P-value of "the share of failures is above ``promise``", from ``failures`` of ``n``.

    The exact binomial tail; 1 if nothing was seen, 0 for a promise that cannot be broken.
    """
    if promise >= 1:
        return 0.0
    return 1.0 if n == 0 or promise <= 0 else float(binomial_tails(n, promise)[failures])


def bounded_p_value(values: Floats, promise: float) -> float:
    """P-value of "the mean is above ``promise``" for independent values in [0, 1].

    The smaller of Hoeffding's bound in its relative-entropy form and of Bentkus' inequality, e
    times a binomial tail (Bates, Angelopoulos, Lei, Malik, Jordan 2021).
    """
    n = len(values)
    if promise >= 1:
        return 0.0
    mean = float(values.mean()) if n else 1.0
    if promise <= 0 or mean >= promise:
        return 1.0
    entropy = (1 - mean) * math.log((1 - mean) / (1 - promise))
    entropy += mean * math.log(mean / promise) if mean else 0.0
    ceiling = math.ceil(round(n * mean, 9))
    return min(math.exp(-n * entropy), math.e * float(binomial_tails(n, promise)[ceiling]))


def bounded_upper_bound(values: Floats, delta: float) -> float:
    """The smallest promise that :func:`bounded_p_value` grants at level ``delta``."""
    return _smallest(lambda mean: bounded_p_value(values, mean) <= delta, 1.0)


def share_upper_bound(failures: int, n: int, delta: float) -> float:
    """The smallest promise that :func:`share_p_value` grants at level ``delta``.

    The one-sided Clopper-Pearson bound: P(share > bound) <= delta.
    """
    if failures >= n:
        return 1.0
    return _smallest(lambda share: share_p_value(failures, n, share) <= delta, 1.0)


def mean_p_value(values: Floats, promise: float, bound: float) -> float:
    """P-value of "the mean is above ``promise``" for values known beforehand to be in [0, bound].

    A betting test (Waudby-Smith and Ramdas 2024): with x = value / bound and m = promise / bound,
    the capital prod(1 + l (m - x)) of a bet 0 <= l <= 1 / (1 - m) has expectation at most 1 under
    the null, and so has its mean over a fixed grid of bets; 1 / capital is a p-value (Markov). It
    does not depend on the order of the values. Where the values are far below ``bound`` it is much
    stronger than Hoeffding's or Bentkus' inequality, and no test can do with less than about
    bound * log(1 / delta) / N between mean and promise.

    Raises:
        ValueError: if a value lies outside [0, bound].
    """
    if len(values) and (values.min() < 0 or values.max() > bound):
        raise ValueError(f"a value lies outside [0, {bound}]")
    share = promise / bound
    if len(values) == 0 or share <= 0:
        return 1.0
    if share >= 1:
        return 0.0  # the bound itself keeps this promise
    with np.errstate(divide="ignore"):  # a bet of everything may lose everything
        gains = np.log1p(_BETS[:, None] / (1 - share) * (share - values[None, :] / bound))
    capital = gains.sum(1)
    most = capital.max()
    if most == -math.inf:
        return 1.0
    return float(min(1.0, math.exp(-most) / np.exp(capital - most).mean()))


def mean_upper_bound(values: Floats, bound: float, delta: float) -> float:
    """The smallest promise that :func:`mean_p_value` grants at level ``delta``."""
    return _smallest(lambda mean: mean_p_value(values, mean, bound) <= delta, bound)


def start_levels(size: int, delta: float, starts: int = STARTS) -> Floats:
    """[size] how delta is shared: evenly among ``starts`` places, the first of them place 0."""
    levels = np.zeros(size)
    places = np.unique(np.arange(min(starts, size)) * size // max(min(starts, size), 1))
    levels[places] = delta / len(places) if len(places) else 0.0
    return levels


def certify(p_values: NDArray[np.float64], levels: Floats) -> tuple[Bools, NDArray[np.float64]]:
    """Fixed-sequence testing with several starts, each handing on what it has kept.

    The thresholds are tested from the strictest down. One is certified where its p-value is at
    most its own share of delta plus, if the one before was certified, the level that this one was
    tested at (the fallback procedure, Wiens 2003; with one start it is plain fixed-sequence
    testing).

    Why the family-wise error is at most delta = sum(levels): let i < j be nulls that are true,
    with none that is true between. If i is not rejected, j is tested at no more than the shares
    behind i up to j. So the chance that some true null is the first to be rejected is at most the
    sum of these disjoint shares. The order is fixed beforehand, and it does not enter that risks
    fall or rise along it: monotony only decides how far down one comes. PSE need not be monotone
    in the threshold, nor are tokens and PSE good at the same end, hence several starts. They cost
    little, since a start whose predecessors hold tests at their shares too.

    Args:
        p_values: [..., G] from the strictest threshold down.
        levels: [G] shares of delta.

    Returns:
        [..., G] which are certified, and the level at which each was tested.
    """
    certified = np.zeros(p_values.shape, dtype=np.bool_)
    tested = np.zeros(p_values.shape)
    carried = np.zeros(p_values.shape[:-1])
    for place in range(p_values.shape[-1]):
        tested[..., place] = levels[place] + carried
        level = tested[..., place]
        certified[..., place] = (level > 0) & (p_values[..., place] <= level)
        carried = np.where(certified[..., place], level, 0.0)
    return certified, tested


def cheapest(certified: Sequence[bool] | Bools, tokens: Floats, accuracy: Floats) -> int | None:
    """The certified place with the fewest tokens; ties: more accuracy, then the stricter one."""
    places = [place for place, holds in enumerate(certified) if holds]
    if not places:
        return None
    return min(places, key=lambda place: (tokens[place], -accuracy[place], place))


def _smallest(granted: Callable[[float], bool], high: float) -> float:
    """The smallest value in [0, high] from which on a monotone condition holds."""
    low = 0.0
    if granted(low):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if granted(middle) else (middle, high)
    return high


# --- thresholds on recorded problems ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskConstraints:
    """The promises about new problems, on average; None for no promise."""

    max_pse: float | None = None
    """Share of problems that stop before T_max with a wrong answer."""
    min_accuracy: float | None = None
    max_tokens: float | None = None
    """Mean prompt and completion tokens per problem, over all its turns."""
    token_bound: float | None = None
    """Tokens that no problem can exceed, known beforehand: T_max times the model's length. The
    promise on tokens needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One threshold. Bounds are one-sided, at the level of its test; None where not tested."""

    threshold: float
    esr: float
    """Share of early stops; 0 for a threshold that never stops."""
    pse: float
    accuracy: float
    tokens: float
    turns: float
    level: float
    """Share of delta it was tested at; 0 where no test was left for it."""
    p_value: float
    """The largest of the p-values of its promises."""
    pse_bound: float | None
    accuracy_bound: float | None
    tokens_bound: float | None
    broken: tuple[str, ...]
    """The promises that could not be certified at its level: max_pse, min_accuracy, max_tokens."""
    certified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Every threshold, and the choice."""

    n: int
    """Problems."""
    clusters: int
    """Independent observations among them."""
    candidates: tuple[Candidate, ...]
    """From the strictest threshold down."""
    choice: Candidate | None
    """The certified one with the fewest tokens."""
    smallest_pse: float | None
    """The least max_pse with which these samples would have certified a threshold, the other
    promises as they are; None where not even 1 would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Means over each cluster's problems, [C]."""

    early: Floats
    premature: Floats
    wrong: Floats
    tokens: Floats
    turns: Floats
    single: bool
    """Whether every cluster is one problem, so that risks are 0 or 1."""

    def p_value(self, risk: Floats, promise: float) -> float:
        """That the mean of ``risk`` is above ``promise``."""
        if self.single:
            return share_p_value(round(risk.sum()), len(risk), promise)
        return bounded_p_value(risk, promise)

    def upper_bound(self, risk: Floats, level: float) -> float:
        """The bound of the mean of ``risk``."""
        if self.single:
            return share_upper_bound(round(risk.sum()), len(risk), level)
        return bounded_upper_bound(risk, level)


def tune(
    tables: Sequence[TurnTable],
    rule: StopRule,
    thresholds: Sequence[float],
    promises: RiskConstraints,
    *,
    max_turns: int,
    delta: float,
) -> Tuning:
    """Test each threshold of ``rule`` and choose.

    PSE alone is kept most easily by the strictest thresholds, so that delta is shared among a few
    starts. Other promises may be kept in the middle of the grid alone: then every threshold is a
    start, which certifies all that Bonferroni's correction would, and more.

    Args:
        tables: the calibration problems, with every turn recorded; the clusters of all count as one
            sample, each once.
        rule: what else a stop needs; its own threshold is not used.
        thresholds: the grid, chosen without looking at ``tables``.
        promises: all of them have to hold; the p-value of a threshold is the largest of theirs.
        max_turns: T_max.
        delta: 1 - confidence.

    Raises:
        ValueError: if turns are missing for a threshold, or a problem exceeds the token bound.
    """
    grid = sorted(set(thresholds), reverse=True)
    columns = [_columns(tables, replace(rule, threshold=value), max_turns) for value in grid]
    pse_alone = promises.min_accuracy is None and promises.max_tokens is None
    levels = start_levels(len(grid), delta, STARTS if pse_alone else len(grid))
    p_values = [_p_values(column, promises) for column in columns]
    largest = np.array([max(values.values()) for values in p_values])
    certified, tested = certify(largest, levels)
    candidates = tuple(
        _candidate(value, column, values, promises, float(level))
        for value, column, values, level in zip(grid, columns, p_values, tested, strict=True)
    )
    best = cheapest(
        certified,
        np.array([row.tokens for row in candidates]),
        np.array([row.accuracy for row in candidates]),
    )
    return Tuning(
        n=sum(len(table.ids) for table in tables),
        clusters=len(columns[0].wrong),
        candidates=candidates,
        choice=None if best is None else candidates[best],
        smallest_pse=_smallest_pse(columns, promises, levels),
    )


def _columns(tables: Sequence[TurnTable], rule: StopRule, max_turns: int) -> _Columns:
    parts, single = [], True
    for table in tables:
        found = problem_table(table, replay(table, rule, max_turns))
        size = cluster_sums(np.ones(len(found.ids)), found.cluster)
        single = single and bool((size == 1).all())
        wrong = 1 - found.problems["final_correct"]
        early = found.problems["stopped_early"]
        spent, turns = found.problems["total_tokens"], found.problems["turns"]
        columns = (early, found.ratio("pse")[0], wrong, spent, turns)
        parts.append([cluster_sums(column, found.cluster) / size for column in columns])
    early, premature, wrong, tokens, turns = (np.concatenate(c) for c in zip(*parts, strict=True))
    return _Columns(
        early=early, premature=premature, wrong=wrong, tokens=tokens, turns=turns, single=single
    )


def _p_values(columns: _Columns, promises: RiskConstraints) -> dict[str, float]:
    values = {}
    if promises.max_pse is not None:
        values["max_pse"] = columns.p_value(columns.premature, promises.max_pse)
    if promises.min_accuracy is not None:
        values["min_accuracy"] = columns.p_value(columns.wrong, 1 - promises.min_accuracy)
    if promises.max_tokens is not None and promises.token_bound is not None:
        values["max_tokens"] = mean_p_value(
            columns.tokens, promises.max_tokens, promises.token_bound
        )
    return values


def _candidate(
    threshold: float,
    columns: _Columns,
    p_values: dict[str, float],
    promises: RiskConstraints,
    level: float,
) -> Candidate:
    bounds = {}
    if level > 0:
        bounds["pse"] = columns.upper_bound(columns.premature, level)
        bounds["accuracy"] = 1 - columns.upper_bound(columns.wrong, level)
        if promises.token_bound is not None:
            bounds["tokens"] = mean_upper_bound(columns.tokens, promises.token_bound, level)
    broken = tuple(name for name, value in p_values.items() if level == 0 or value > level)
    return Candidate(
        threshold=threshold,
        esr=float(columns.early.mean()),
        pse=float(columns.premature.mean()),
        accuracy=1 - float(columns.wrong.mean()),
        tokens=float(columns.tokens.mean()),
        turns=float(columns.turns.mean()),
        level=level,
        p_value=max(p_values.values()),
        pse_bound=bounds.get("pse"),
        accuracy_bound=bounds.get("accuracy"),
        tokens_bound=bounds.get("tokens"),
        broken=broken,
        certified=not broken,
    )


def _smallest_pse(
    columns: Sequence[_Columns], promises: RiskConstraints, levels: Floats
) -> float | None:
    """Bisection: a larger promise never certifies less."""
    others = replace(promises, max_pse=None)
    fixed = [max(_p_values(column, others).values(), default=0.0) for column in columns]

    def some(promise: float) -> bool:
        found = [column.p_value(column.premature, promise) for column in columns]
        return bool(certify(np.maximum(found, fixed), levels)[0].any())

    return _smallest(some, 1.0) if some(1.0) else None
