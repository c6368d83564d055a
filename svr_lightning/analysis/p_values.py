"""P-values of "the mean loss is above a limit", valid for any sample size and distribution."""

import math

import numpy as np
from numpy.typing import NDArray

from svr_lightning.errors import ConfigError

Floats = NDArray[np.float64]
_BETS = np.arange(1, 21) / 20


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= k).

    Examples:
        >>> round(binomial_cdf(1, 2, 0.5), 12)
        0.75
    """
    if k >= n or p <= 0:
        return 1.0
    if k < 0 or p >= 1:
        return 0.0
    j = np.arange(1, k + 1)
    chosen = np.concatenate([[0.0], np.cumsum(np.log((n - j + 1) / j))])
    places = np.arange(k + 1)
    masses = np.exp(chosen + places * math.log(p) + (n - places) * math.log1p(-p))
    return min(math.fsum(masses.tolist()), 1.0)


def share_p_value(failures: int, n: int, limit: float) -> float:
    """P-value of "the share of failures is above ``limit``", from ``failures`` of ``n``.

    The exact binomial tail; 1 if nothing was seen, 0 for a limit that cannot be exceeded.
    """
    if limit >= 1:
        return 0.0
    return 1.0 if n == 0 or limit <= 0 else binomial_cdf(failures, n, limit)


def mean_p_value(values: Floats, limit: float, bound: float = 1.0) -> float:
    """P-value of "the mean is above ``limit``" for values known to be in [0, bound].

    A betting test (Waudby-Smith and Ramdas 2024): with x = value / bound and m = limit / bound,
    the capital prod(1 + l (m - x)) of a bet 0 <= l <= 1 / (1 - m) has expectation at most 1 under
    the null, and so has its mean over a fixed grid of bets; 1 / capital is a p-value (Markov). It
    does not depend on the order of the values.

    Raises:
        ConfigError: if a value lies outside [0, bound].
    """
    if len(values) and (values.min() < 0 or values.max() > bound):
        raise ConfigError(
            f"a problem's loss lies outside [0, {bound:g}]; give a larger token bound"
        )
    share = limit / bound
    if share >= 1:
        return 0.0  # the bound itself keeps this promise
    if len(values) == 0 or share <= 0:
        return 1.0
    distinct, counts = np.unique(values, return_counts=True)
    with np.errstate(divide="ignore"):  # a bet of everything may lose everything
        gains = np.log1p(_BETS[:, None] / (1 - share) * (share - distinct / bound))
    capital = (gains * counts).sum(1)
    most = capital.max()
    if most <= 0:  # no bet has won, so that their mean is at most 1
        return 1.0
    return float(min(1.0, math.exp(-most) / np.exp(capital - most).mean()))
