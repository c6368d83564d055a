"""Thresholds that keep promises about new problems, with a stated confidence.

Learn then test (Angelopoulos, Bates, Candes, Jordan, Lei 2021): every threshold of a grid that was
fixed before looking at the samples is a null hypothesis "it breaks a promise". Each has a valid
p-value, and a procedure that controls the family-wise error at delta = 1 - confidence says which
nulls are rejected. With probability at least 1 - delta over the draw of the samples, every
threshold so certified keeps every promise, so that any of them may be chosen afterwards.

What is assumed: the N calibration problems and the ones to come are independent draws from one
distribution, and the policy, the decoding and T_max stay as they are. Nothing is assumed of the
policy, of its confidences, or of how a risk depends on the threshold.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

STARTS = 4
"""Thresholds, evenly spaced over the grid, among which delta is shared at first."""
_BETS = np.arange(1, 21) / 20
_HALVINGS = 50

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def binomial_tails(n: int, p: float) -> Floats:
    """[n + 1] P(Bin(n, p) <= k) for k = 0..n.

    Example:
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

    The exact binomial tail; 1 where nothing was seen, 0 for a promise that cannot be broken.
    """
    if promise >= 1:
        return 0.0
    return 1.0 if n == 0 or promise <= 0 else float(binomial_tails(n, promise)[failures])


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
