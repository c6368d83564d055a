"""Majority voting over pools of independent samples.

Maj@k returns the most frequent answer of k samples. Ties go to the answer that was sampled first;
samples whose answer cannot be read do not vote, and where none can be read the result is wrong.
From a pool of n samples per problem, Maj@k for every k up to n follows by drawing k of the n.

Shapes: N problems of one data set, S the largest pool, R draws.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from svr_lightning.analysis.intervals import cluster_sums, percentile_interval
from svr_lightning.analysis.metrics import macro_averages
from svr_lightning.analysis.records import PoolRecord, by_dataset
from svr_lightning.analysis.table import Bools, Floats, Ints, clusters_of
from svr_lightning.tasks import Task, get_task
from svr_lightning.tasks.base import AnswerNumbers

_CHUNK = 1_000_000
"""Samples drawn at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """The samples of one data set as columns."""

    dataset: str
    ids: tuple[str, ...]
    """[N]"""
    cluster: Ints
    """[N] equal numbers for problems that count as one in intervals."""
    size: Ints
    """[N] samples of each problem; 0 for a problem that could not be run, which is always wrong."""
    answer: Ints
    """[N, S] equal numbers for equal answers of a problem; -1 where a sample does not vote."""
    correct: Bools
    """[N, S] labels."""
    prompt_tokens: Floats
    """[N] mean over a problem's samples."""
    completion_tokens: Floats
    """[N] likewise."""


def metric_names(ks: Sequence[int]) -> tuple[str, ...]:
    """``mean@1``, then for each k ``maj@k``, ``pass@k`` and ``tokens@k``.

    ``mean@1`` is the accuracy of one sample, ``pass@k`` how often one of k is correct, ``tokens@k``
    the tokens of the prompts and completions of k samples of a problem.
    """
    return ("mean@1", *(f"{kind}@{k}" for k in ks for kind in ("maj", "pass", "tokens")))


def vote(
    records: Sequence[PoolRecord], ks: Sequence[int], resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Maj@k and what it is compared with, per data set and macro-averaged.

    Args:
        records: one per problem, with its ``samples``.
        ks: numbers of votes.
        resamples: draws of k samples per problem, and of the problems for the intervals.
        seed: of all draws; a data set's do not depend on which others are there.

    Returns:
        ``{"datasets": {name: values}, "macro": {"all": average, "math": average}}`` with each of
        :func:`metric_names`, ``n`` problems, ``samples`` in the smallest pool that has any, and
        ``ci95``: {metric: [low, high]} of the accuracies, over a data set's problems; of an
        average, over the problems of each of its data sets, which are drawn independently. An
        average says like :func:`macro_average` what it is over.

    Raises:
        ValueError: naming a problem with fewer samples than votes, or a sample without a label.
    """
    datasets, draws = {}, {}
    for pools in pools_of(records):
        values, draws[pools.dataset] = measure_votes(pools, ks, resamples, seed)
        sizes = {"n": len(pools.ids), "samples": min(filter(None, pools.size.tolist()), default=0)}
        limits = {name: percentile_interval(found) for name, found in draws[pools.dataset].items()}
        datasets[pools.dataset] = {**values, **sizes, "ci95": limits}
    macro = macro_averages(datasets, metric_names(ks))
    for average in macro.values():
        parts = [draws[name] for name in average["datasets"]]
        average["ci95"] = {
            name: percentile_interval(np.mean([part[name] for part in parts], axis=0))
            for name in (parts[0] if parts else ())
        }
    return {"datasets": datasets, "macro": macro}


def measure_votes(
    pools: Pools, ks: Sequence[int], resamples: int, seed: int
) -> tuple[dict[str, float], dict[str, Floats]]:
    """Voting on one data set: each of :func:`metric_names`, and [R] draws of the accuracies.

    ``maj@k`` is the mean over ``resamples`` draws of k samples from each problem's pool, without
    replacement and in the order of the pool; for k = n it is exact. Each draw of the interval takes
    as many clusters as there are, with replacement, and for each one draw of its samples: where
    another run with k samples per problem would fall. ``mean@1`` and ``pass@k`` take the whole
    pools of the problems drawn.

    Raises:
        ValueError: naming a problem with fewer samples than votes.
    """
    _check_sizes(pools, ks)
    n = len(pools.ids)
    rng = np.random.default_rng([seed, zlib.crc32(pools.dataset.encode())])
    sizes = cluster_sums(np.ones(n), pools.cluster)
    clusters = rng.integers(len(sizes), size=(resamples, len(sizes)))
    columns = rng.integers(resamples, size=(resamples, len(sizes)))
    drawn = sizes[clusters].sum(1)  # problems in each resample

    def resampled(values: Floats) -> Floats:
        return np.asarray(cluster_sums(values, pools.cluster)[clusters].sum(1) / drawn)

    hits = pools.correct.sum(1)
    one = hits / np.maximum(pools.size, 1)
    values, draws = {"mean@1": one.mean()}, {"mean@1": resampled(one)}
    for k, outcomes in zip(ks, majority_outcomes(pools, ks, resamples, rng), strict=True):
        passes = pass_at_k(pools.size, hits, k)
        values[f"maj@{k}"], values[f"pass@{k}"] = outcomes.mean(), passes.mean()
        values[f"tokens@{k}"] = k * (pools.prompt_tokens + pools.completion_tokens).mean()
        sums = np.zeros((len(sizes), resamples))
        np.add.at(sums, pools.cluster, outcomes)
        draws[f"maj@{k}"] = sums[clusters, columns].sum(1) / drawn
        draws[f"pass@{k}"] = resampled(passes)
    return {name: float(value) for name, value in values.items()}, draws


def majority_outcomes(
    pools: Pools, ks: Sequence[int], resamples: int, rng: np.random.Generator
) -> list[Bools]:
    """[N, R] for each k, whether the majority of k samples drawn without replacement is right.

    Draws for a smaller k are part of those for a larger one, so differences between them have
    less noise.
    """
    n, size = pools.answer.shape
    outcomes = [np.zeros((n, resamples), dtype=np.bool_) for _ in ks]
    step = max(1, _CHUNK // max(1, resamples * size))
    for start in range(0, n, step):
        rows = slice(start, start + step)
        absent = np.arange(size) >= pools.size[rows, None]
        keys = rng.random((len(absent), resamples, size)) + absent[:, None]  # absent ones come last
        rank = keys.argsort(-1).argsort(-1)
        for k, outcome in zip(ks, outcomes, strict=True):
            outcome[rows] = majority_is_right(pools.answer[rows], pools.correct[rows], rank < k)
    return outcomes


def majority_is_right(answer: Ints, correct: Bools, chosen: Bools) -> Bools:
    """[P, R] whether the majority among the chosen samples is right.

    Args:
        answer: [P, S] see :class:`Pools`.
        correct: [P, S] labels; a majority has that of its first chosen sample.
        chosen: [P, R, S] which samples vote in each draw.
    """
    votes = answer >= 0
    same = (answer[:, :, None] == answer[:, None, :]) & votes[:, :, None]
    counts = np.matmul(chosen.astype(np.float32), same.astype(np.float32))
    counts *= chosen
    first = counts.argmax(axis=-1)
    most = np.take_along_axis(counts, first[..., None], axis=-1)[..., 0]
    return np.asarray(np.take_along_axis(correct, first, axis=1) & (most > 0))


def pass_at_k(size: Ints, hits: Ints, k: int) -> Floats:
    """[N] unbiased probability that one of k samples is right: 1 - C(n - c, k) / C(n, k).

    Args:
        size: [N] n samples; a problem without any has probability 0.
        hits: [N] c of them that are right.
        k: at most n.

    Examples:
        >>> pass_at_k(np.array([4]), np.array([1]), 2).tolist()
        [0.5]
    """
    missed = np.ones(len(size))
    for drawn in range(k):
        missed *= np.maximum(size - hits - drawn, 0) / np.maximum(size - drawn, 1)
    return np.where(size > 0, 1 - missed, 0.0)


def pools_of(records: Sequence[PoolRecord]) -> Iterator[Pools]:
    """The pools of each data set, in the order in which the data sets first occur.

    Raises:
        ValueError: naming a problem whose task is not known, or a sample without a label.
    """
    for name, rows in by_dataset(records).items():
        yield _pools(name, rows)


def answer_classes(task: Task, answers: Sequence[str | None]) -> list[int]:
    """Equal numbers for answers that the task considers equal; -1 for unreadable ones."""
    numbers = AnswerNumbers(task.answer_form)
    return [numbers.number(answer) - 1 for answer in answers]


def _pools(dataset: str, records: Sequence[PoolRecord]) -> Pools:
    size = max(1, *(len(record.samples) for record in records))
    answer = np.full((len(records), size), -1, dtype=np.int64)
    correct = np.zeros((len(records), size), dtype=np.bool_)
    tokens = np.zeros((2, len(records)))
    for row, record in enumerate(records):
        samples = record.samples
        labels = [sample.correct for sample in samples]
        if None in labels:
            raise ValueError(
                f"problem {record.id!r} of {dataset!r} has no label at sample "
                f"{labels.index(None) + 1}; voting is measured on problems with a reference"
            )
        answers = [sample.answer for sample in samples]
        answer[row, : len(samples)] = answer_classes(get_task(record.task), answers)
        correct[row, : len(samples)] = labels
        for column, name in enumerate(("prompt_tokens", "completion_tokens")):
            tokens[column, row] = sum(getattr(s, name) for s in samples) / max(1, len(samples))
    return Pools(
        dataset=dataset,
        ids=tuple(record.id for record in records),
        cluster=clusters_of(records),
        size=np.array([len(record.samples) for record in records], dtype=np.int64),
        answer=answer,
        correct=correct,
        prompt_tokens=tokens[0],
        completion_tokens=tokens[1],
    )


def _check_sizes(pools: Pools, ks: Sequence[int]) -> None:
    for name, size in zip(pools.ids, pools.size.tolist(), strict=True):
        if 0 < size < max(ks, default=0):
            raise ValueError(
                f"problem {name!r} of {pools.dataset!r} has {size} samples and k={max(ks)}; "
                f"ask for at most k={size}, or draw larger pools"
            )
