"""The update: samples to padded micro-batches, and their loss.

The mean over micro-batches of the losses is the plain mean over sequences.

Shapes: B sequences, P of them different, L positions of the longest, T completion positions, N
tokens in the loss, C choices with an exact expectation, of at most A alternatives.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from svr_lightning.core.losses import LossSpec, policy_loss
from svr_lightning.core.types import Sample
from svr_lightning.policy.logprobs import (
    Choices,
    choice_scores,
    columns,
    completion_logprobs,
    hidden_states,
    logprobs_of,
    padded,
)
from svr_lightning.rollout.rendering import Renderer


class Weights(NamedTuple):
    """Factors of a micro-batch's sums over its sequences.

    With them the mean over the micro-batches of an optimizer step is a plain mean over the step's
    sequences, however they are split.
    """

    loss: float = 1.0
    """Of the policy loss: over the sequences without choices, the missing ones included."""
    logged: float = 1.0
    """Of logged values: over the sequences with a policy loss."""
    choices: float = 0.0
    """Over the sequences with choices, of the sum over each one's; 0 if there are none."""


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """One micro-batch."""

    input_ids: Tensor
    """[P, L] prompts, each followed by its completion, padded on the right. Sequences with the same
    tokens, such as the two parts of one turn, share a row."""
    lengths: tuple[int, ...]
    """[P] tokens of each prompt and completion."""
    rows: Tensor
    """[N] row in ``input_ids`` of each token in the loss, in the order in which ``mask`` lists
    them."""
    logit_positions: Tensor
    """[N] position in L whose hidden state predicts it: the one before its own."""
    mask: Tensor
    """[B, T] 1 on the completion tokens that are in the loss, usually all."""
    engine_logprobs: Tensor
    """[B, T] nats, under the policy that sampled, as the engine computed them."""
    advantages: Tensor
    """[B]."""
    choices: Choices
    """Those of all sequences; without a policy loss there."""
    weights: Weights
    group_ids: tuple[str, ...]
    """[B] problem of each sequence, for messages."""
    trainer_logprobs: Tensor | None = None
    """[B, T] nats, under the policy that sampled, by the trainer; None with one update per
    rollout, where this policy is the current one."""

    def to(self, *args: Any, **kwargs: Any) -> "TrainBatch":
        """Move every tensor, as Lightning does with a batch."""
        moved: dict[str, Any] = {
            name: value.to(*args, **kwargs)
            for name, value in vars(self).items()
            if isinstance(value, Tensor | Choices)
        }
        return replace(self, **moved)


def micro_batches(
    samples: Sequence[Sample | None],
    *,
    accumulate: int,
    updates: int,
    version: int,
    renderer: Renderer | None = None,
    dummy_sample: Sample | None = None,
) -> list[TrainBatch]:
    """Split one rollout's samples into the micro-batches of its optimizer steps.

    Groups are assigned to the ``updates`` optimizer steps in order, as whole groups if the problems
    divide into as many parts; else a group may be split between two. Within one step sequences
    are sorted by length and split so that the largest micro-batch, with padding, is as small as
    possible. Each sequence has the same weight, so this does not change the gradient. Sequences
    with the same tokens stay together, since one forward pass serves them all. Those with choices
    have a mean of their own, beside that of the others.

    Args:
        samples: one rank's share of the rollout. None stands for a missing sequence, which counts
            with a loss of 0 in the mean over an optimizer step.
        accumulate: micro-batches per optimizer step.
        updates: optimizer steps per rollout.
        version: optimizer steps of the current weights.
        renderer: of the policy; needed for samples that train on a part of their text or choose.
        dummy_sample: content of micro-batches with weight 0, if there are too few sequences.

    Raises:
        RuntimeError: if other weights sampled a completion.
        ValueError: if the samples do not divide into equal optimizer steps of at least one
            sequence per micro-batch, or if one needs a renderer.
    """
    if other := {s.policy_version for s in samples if s is not None} - {version}:
        raise RuntimeError(
            f"the engine sampled with weights of step {min(other)} at step {version}; it was not "
            "synced after the last update"
        )
    per_step, rest = divmod(len(samples), updates)
    if rest or per_step < accumulate:
        raise ValueError(
            f"{len(samples)} samples do not make {updates} equal optimizer steps of at least "
            f"{accumulate} sequences"
        )
    return [
        batch
        for start in range(0, len(samples), per_step)
        for batch in _step_batches(
            samples[start : start + per_step], accumulate, renderer, dummy_sample
        )
    ]


def _step_batches(
    share: Sequence[Sample | None],
    accumulate: int,
    renderer: Renderer | None,
    dummy_sample: Sample | None,
) -> list[TrainBatch]:
    """The ``accumulate`` micro-batches of one optimizer step, see :func:`micro_batches`."""
    present = [sample for sample in share if sample is not None]
    optimised = [sample for sample in present if sample.choices is None]
    with_choices = [sample for sample in present if sample.choices is not None]
    weights = Weights(
        loss=accumulate / max(len(share) - len(with_choices), 1),
        logged=accumulate / max(len(optimised), 1),
        choices=accumulate / len(with_choices) if with_choices else 0.0,
    )
    equal: dict[tuple[int, ...], list[Sample]] = {}
    for sample in [*optimised, *(sample for sample in with_choices if sample.choices)]:
        equal.setdefault(_sequence(sample), []).append(sample)
    ascending = sorted(equal, key=len)
    count = min(accumulate, len(ascending))
    lengths = [len(ids) for ids in ascending]
    batches = []
    for run in balanced_split(lengths, count) if count else []:
        members = [sample for ids in ascending[run] for sample in equal[ids]]
        batches.append(batch_of(members, weights, renderer))
    if count < accumulate:
        if dummy_sample is None:
            raise ValueError(
                f"{count} sequences for {accumulate} micro-batches; give a dummy_sample"
            )
        filler = batch_of([dummy_sample], weights._replace(loss=0.0, logged=0.0))
        batches += [filler] * (accumulate - count)
    return batches


def balanced_split(lengths: Sequence[int], count: int) -> list[slice]:
    """Cut ascending ``lengths`` into ``count`` runs so that the largest run is smallest.

    The size of a run is its number of sequences times its last length. A bound is feasible if runs
    filled up to it in order hold all sequences; the smallest feasible bound is found by bisection.

    Args:
        lengths: ascending, at least ``count`` of them.
        count: runs, none of them empty.

    Examples:
        >>> balanced_split([1, 1, 1, 5], 2)
        [slice(0, 3, None), slice(3, 4, None)]
    """
    bounds = range(lengths[-1], len(lengths) * lengths[-1] + 1)
    least = bisect_left(
        bounds, len(lengths), key=lambda bound: _runs(lengths, count, bound)[-1].stop
    )
    return _runs(lengths, count, bounds[least])


def _runs(lengths: Sequence[int], count: int, bound: int) -> list[slice]:
    """``count`` runs of at most ``bound``, the first ones as long as they may be."""
    runs = []
    start = 0
    for later in reversed(range(count)):
        stop = start + 1
        while stop < len(lengths) - later and (stop + 1 - start) * lengths[stop] <= bound:
            stop += 1
        runs.append(slice(start, stop))
        start = stop
    return runs


def batch_of(
    samples: Sequence[Sample],
    weights: Weights = Weights(),  # noqa: B008 - it is immutable
    renderer: Renderer | None = None,
) -> TrainBatch:
    """One micro-batch of all ``samples``."""
    sequences = list(map(_sequence, samples))
    row_of = {ids: row for row, ids in enumerate(dict.fromkeys(sequences))}
    spans = [_loss_tokens(sample, renderer) for sample in samples]
    tokens = [
        (row_of[ids], len(s.prompt_ids) - 1 + t)
        for s, ids, span in zip(samples, sequences, spans, strict=True)
        for t in range(*span)
    ]
    rows, logit_positions = columns(tokens)
    in_loss = [
        [0] * first + [1] * (stop - first) + [0] * (len(s.completion_ids) - stop)
        for s, (first, stop) in zip(samples, spans, strict=True)
    ]
    return TrainBatch(
        input_ids=padded(row_of),
        lengths=tuple(map(len, row_of)),
        rows=rows,
        logit_positions=logit_positions,
        mask=padded(in_loss),
        engine_logprobs=padded(s.logprobs for s in samples),
        advantages=torch.tensor([s.advantage for s in samples]),
        choices=_choices(samples, row_of, renderer),
        weights=weights,
        group_ids=tuple(s.group_id for s in samples),
    )


def _needed(renderer: Renderer | None) -> Renderer:
    if renderer is None:
        raise ValueError(
            "samples that learn from a part of their text, or from choices, need renderer="
        )
    return renderer


def _loss_tokens(sample: Sample, renderer: Renderer | None) -> tuple[int, int]:
    """The first of its completion tokens in the policy loss, and the one past the last."""
    if sample.choices is not None:
        return 0, 0
    if sample.text_span is None:
        return 0, len(sample.completion_ids)
    return _needed(renderer).tokens_of(sample.text_span, sample.completion_ids)


def _choices(
    samples: Sequence[Sample], row_of: dict[tuple[int, ...], int], renderer: Renderer | None
) -> Choices:
    choices = []
    for sample in samples:
        if sample.choices:
            row = row_of[_sequence(sample)]
            before = len(sample.prompt_ids) - 1
            tokens = _needed(renderer).token_choices(sample.completion_ids, sample.choices)
            choices += [(row, before + choice.position, choice) for choice in tokens]
    return Choices.placed(choices)


def _sequence(sample: Sample) -> tuple[int, ...]:
    """What a forward pass reads."""
    return (*sample.prompt_ids, *sample.completion_ids)


@dataclass(frozen=True, kw_only=True)
class PolicyUpdate:
    """The loss of one micro-batch, and what is logged of it."""

    loss: Tensor
    """A scalar with gradient. The loss of an optimizer step is the mean over its micro-batches."""
    logged: dict[str, Tensor]
    """Scalars by the key of docs/metrics.md. A step's value is the mean over its micro-batches; of
    ``train/ratio_max`` the largest."""


def policy_update_loss(
    policy: Any, reference: Any, batch: TrainBatch, spec: LossSpec, *, temperature: float = 0.9
) -> PolicyUpdate:
    """The policy loss of one micro-batch: clipped surrogate plus ``beta * k3``.

    A batch with choices adds minus their expected score, the mean over sequences with choices of::

        sum_choices sum_a p_a s_a,    p = softmax over the choice's alternatives

    Args:
        policy: a transformers causal language model; the loss carries its gradient.
        reference: the same architecture; None where ``spec.beta`` is 0.
        batch: one of :func:`micro_batches`.
        spec: ratio level, clip range, beta, correction.
        temperature: of the rollout; the default is that of ``model.sampling``.

    Examples:
        >>> for batch in batches:                                            # doctest: +SKIP
        ...     (policy_update_loss(policy, reference, batch, spec).loss / len(batches)).backward()
    """
    ref_logp = None
    if reference is not None:  # before the policy's activations take their memory
        with torch.no_grad():
            ref_logp = completion_logprobs(reference, batch, temperature)
    hidden = hidden_states(policy, batch)
    logp = logprobs_of(policy, hidden, batch, temperature)
    # With one update per rollout the policy that sampled is the current one.
    trainer_logprobs = logp.detach() if batch.trainer_logprobs is None else batch.trainer_logprobs
    terms = policy_loss(
        logp, trainer_logprobs, ref_logp, batch.advantages, batch.mask, spec, batch.engine_logprobs
    )
    weights = batch.weights
    loss = terms.loss.sum() * weights.loss
    exact: dict[str, Tensor] = {}
    if weights.choices:
        scores = choice_scores(policy, hidden, batch.choices, temperature)
        loss = loss - scores.sum() * weights.choices
        exact = {
            "train/exact/score": scores.detach().sum() * weights.choices,
            "train/exact/choices": torch.full_like(loss, len(scores) * weights.choices),
        }
    # While both have the same weights, trainer and engine differ by rounding alone.
    gap = ((logp.detach() - batch.engine_logprobs).abs() * batch.mask).sum(1)
    logged = {
        "train/loss": loss.detach(),
        "train/kl": terms.kl.sum() * weights.logged,
        "train/clip_frac": terms.clipped.sum() * weights.logged,
        "engine/logprob_diff": (gap / batch.mask.sum(1).clamp(min=1)).sum() * weights.logged,
        "train/ratio_max": terms.ratio_max.max(),
        **exact,
    }
    if terms.behaviour is not None:
        logged["train/behaviour/mean"] = terms.behaviour.mean.detach().sum() * weights.logged
        logged["train/behaviour/clipped"] = terms.behaviour.clipped.sum() * weights.logged
    return PolicyUpdate(loss=loss, logged=logged)
