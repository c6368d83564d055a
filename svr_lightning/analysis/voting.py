"""Majority voting over fresh turns, which are independent samples of one problem.

Maj@k is the accuracy of the answer that most of k samples give. Ties go to the answer that was
sampled first; samples whose answer cannot be read do not vote, and where none can be read the
result is wrong. From S samples per problem, Maj@k for every k up to S follows by drawing k of them.

Shapes: N problems of one data set, S samples at most, R draws.
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from svr_lightning.analysis.intervals import cluster_sums, share_interval
from svr_lightning.analysis.table import Bools, Floats, Ints, TurnTable
from svr_lightning.errors import ConfigError
from svr_lightning.files import finite

VOTES = (3, 5, 10)
"""The paper's numbers of votes."""
_CHUNK = 1_000_000
"""Samples drawn at once."""


def vote(table: TurnTable, ks: Sequence[int], resamples: int = 1000) -> dict[str, Any]:
    """Maj@k of a data set whose recorded turns are independent samples.

    Args:
        table: the recording.
        ks: numbers of votes.
        resamples: draws of k samples per problem, and of the problems for the intervals. Those of
            another data set differ.

    Returns:
        ``mean@1``, the accuracy of one sample. For each k ``maj@k``, the mean over ``resamples``
        draws of k samples of each problem, without replacement and in the order of the turns
        (exact for k = S), and ``tokens@k``, the prompt and completion tokens of k samples, None if
        they are not known. ``n`` problems, and ``samples`` of the problem with the fewest that has
        any. ``ci95``: {metric: [low, high]} of the accuracies: each resample draws as many clusters
        as there are, with replacement, and for each one draw of its samples.

    Raises:
        ConfigError: naming a problem with fewer samples than votes.
    """
    for problem, size in zip(table.ids, table.length.tolist(), strict=True):
        if 0 < size < max(ks, default=0):
            raise ConfigError(
                f"problem {problem!r} of {table.dataset!r} has {size} samples and k={max(ks)}; "
                f"ask for at most k={size}, or record more fresh turns"
            )
    rng = np.random.default_rng([0, zlib.crc32(table.dataset.encode())])
    sizes = cluster_sums(np.ones_like(table.length), table.cluster)
    single = table.correct.sum(1) / np.maximum(table.length, 1)
    tokens = sample_tokens(table).mean()
    values = {"mean@1": single.mean()}
    sums = {"mean@1": cluster_sums(single, table.cluster)[:, None]}
    for k, outcomes in zip(ks, majority_outcomes(table, ks, resamples, rng), strict=True):
        values |= {f"maj@{k}": outcomes.mean(), f"tokens@{k}": k * tokens}
        right = np.zeros((len(sizes), resamples), np.min_scalar_type(int(sizes.max(initial=0))))
        np.add.at(right, table.cluster, outcomes)
        sums[f"maj@{k}"] = right
    resampled = [_resample([*sums.values()], sizes, rng) for _ in range(resamples)]
    return {
        **{name: finite(float(value)) for name, value in values.items()},
        "n": len(table.ids),
        "samples": min(filter(None, table.length.tolist()), default=0),
        "ci95": {
            metric: share_interval(float(values[metric]), draws, len(sizes))
            for metric, draws in zip(sums, np.transpose(resampled), strict=True)
        },
    }


def _resample(sums: Sequence[Floats], sizes: Floats, rng: np.random.Generator) -> list[float]:
    """The mean of each of [C, D] sums over C clusters drawn anew, each with one of D draws."""
    clusters = rng.integers(len(sizes), size=len(sizes))
    drawn = sizes[clusters].sum()
    return [
        each[clusters, rng.integers(each.shape[1], size=len(sizes))].sum() / drawn for each in sums
    ]


def sample_tokens(table: TurnTable) -> Floats:
    """[N] mean tokens of a problem's samples, prompts and completions; nan where not known."""
    every = replace(table, observed=table.length)
    return np.asarray(every.total_tokens / np.maximum(table.length, 1))


def majority_outcomes(
    table: TurnTable, ks: Sequence[int], resamples: int, rng: np.random.Generator
) -> list[Bools]:
    """[N, R] for each k, whether the majority of k samples drawn without replacement is right.

    Draws for a smaller k are part of those for a larger one, so differences between them have
    less noise.
    """
    n, size = table.correct.shape
    answer = table.answer - 1
    outcomes = [np.zeros((n, resamples), dtype=np.bool_) for _ in ks]
    step = max(1, _CHUNK // max(1, resamples * size))
    for start in range(0, n if size else 0, step):
        rows = slice(start, start + step)
        absent = np.arange(size) >= table.length[rows, None]
        keys = rng.random((len(absent), resamples, size)) + absent[:, None]  # absent ones come last
        rank = keys.argsort(-1).argsort(-1)
        for k, outcome in zip(ks, outcomes, strict=True):
            outcome[rows] = majority_is_right(answer[rows], table.correct[rows], rank < k)
    return outcomes


def majority_is_right(answer: Ints, correct: Bools, chosen: Bools) -> Bools:
    """[P, R] whether the majority among the chosen samples of P problems is right.

    Args:
        answer: [P, S] equal numbers for equal answers of a problem; -1 where a sample has no vote.
        correct: [P, S] labels; a majority has that of its first chosen sample.
        chosen: [P, R, S] which samples vote in each draw.
    """
    same = (answer[:, :, None] == answer[:, None, :]) & (answer >= 0)[:, :, None]
    counts = np.matmul(chosen.astype(np.float32), same.astype(np.float32))
    counts *= chosen
    first = counts.argmax(axis=-1)
    most = np.take_along_axis(counts, first[..., None], axis=-1)[..., 0]
    return np.asarray(np.take_along_axis(correct, first, axis=1) & (most > 0))
