"""Intervals over clusters, by hand and by simulation."""

import math

import numpy as np
import pytest

from svr_lightning.analysis.intervals import (
    effective_size,
    resample_counts,
    split_clusters,
    wilson_interval,
)


def test_a_cluster_is_drawn_and_split_whole():
    cluster = np.array([0, 1, 1, 2, 2, 2])
    counts = resample_counts(cluster, 50, seed=3)
    assert (counts[:, 1] == counts[:, 2]).all()
    assert (counts[:, 3:5] == counts[:, [5]]).all()
    assert (counts[:, [0, 1, 3]].sum(1) == 3).all()
    for seed in range(20):
        half = split_clusters(cluster, 0.5, seed)
        assert len(set(cluster[half])) == 1
        assert not set(cluster[half]) & set(cluster[~half])


def test_the_effective_size_is_that_of_independent_problems():
    values, alone = np.array([1.0, 0.0, 0.0, 1.0, 1.0]), np.arange(5)
    assert effective_size(values, alone) == 5
    # Two equal ones each: five problems' worth.
    twins, pairs = np.repeat(values, 2), np.repeat(alone, 2)
    assert effective_size(twins, pairs) == pytest.approx(5)
    assert effective_size(np.ones(10), pairs) == 5
    # One cluster tells nothing of others.
    assert effective_size(values, 0 * alone) == 1
    # Opposite ones in each cluster: no less than independent, and no more is claimed.
    assert effective_size(np.array([1, 0] * 5), pairs) == 10
    assert effective_size(np.array([]), np.array([], dtype=int)) == 0.0


def test_the_interval_of_a_proportion_is_wilsons():
    # 0 of 30 (AIME26): the upper bound is z^2 / (n + z^2) = 3.8415 / 33.8415
    assert wilson_interval(0.0, 30) == [0.0, pytest.approx(0.11351, abs=1e-5)]
    assert wilson_interval(1.0, 30) == [pytest.approx(0.88649, abs=1e-5), 1.0]
    assert wilson_interval(math.nan, 0) is None
