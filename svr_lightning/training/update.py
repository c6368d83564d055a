"""The update: samples to micro-batches, their loss, the optimizer.

The sequences of a micro-batch are packed into one row if the model can separate them, else padded
on the right. The mean over micro-batches of the losses is the plain mean over sequences.

Shapes: B sequences in R rows (1 if packed, else B), L positions of a row, T completion positions, N
tokens in the loss.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from svr_lightning.core.linear_logprobs import linear_logprobs
from svr_lightning.core.losses import BehaviourWeights, LossSpec, policy_loss
from svr_lightning.core.sharded import whole
from svr_lightning.core.types import Sample
from svr_lightning.recipes.base import Group, sample_of
from svr_lightning.training.packing import boundaries, no_mask


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """One micro-batch."""

    input_ids: Tensor
    """[R, L] prompts, each followed by its completion; with padding on the right if not packed."""
    lengths: tuple[int, ...]
    """[B] tokens of each prompt and completion."""
    rows: Tensor
    """[N] row of each token in the loss, in the order in which ``mask`` lists them."""
    logit_positions: Tensor
    """[N] position in L whose hidden state predicts it: the one before its own."""
    mask: Tensor
    """[B, T] 1 on the completion tokens that are in the loss, usually all."""
    logprobs: Tensor
    """[B, T] nats, under the policy that sampled, as the engine computed them."""
    advantages: Tensor
    """[B]."""
    weight: float
    """Factor of the sum of the sequences' losses, so that the mean over the micro-batches of an
    optimizer step is the plain mean over its sequences, however they are split."""
    mean_weight: float
    """The same factor for logs, whose means are over the sequences with a loss."""
    group_ids: tuple[str, ...]
    """[B] problem of each sequence, for messages."""
    old_logprobs: Tensor | None = None
    """[B, T] nats, under the policy that sampled, by the trainer; None with one update per
    rollout, where this policy is the current one."""

    def to(self, *args: Any, **kwargs: Any) -> "TrainBatch":
        """Move every tensor, as Lightning does with a batch."""
        moved: dict[str, Any] = {
            f.name: value.to(*args, **kwargs)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def packed(self) -> bool:
        """Whether one row holds several sequences."""
        return len(self.input_ids) < len(self.lengths)


def samples_of(groups: Sequence[Group], per_problem: int) -> list[Sample | None]:
    """The samples of all groups, ``per_problem`` for each; None for a missing one."""
    samples: list[Sample | None] = []
    for group in groups:
        samples += [*group.samples, *[None] * (per_problem - len(group.samples))]
    return samples


def dummy_sample(groups: Sequence[Group]) -> Sample:
    """Some completion of a rollout, for micro-batches with weight 0."""
    turns = [turn for group in groups for t in group.trajectories for turn in t.turns]
    shortest = min(turns, key=lambda turn: turn.completion.completion_tokens)
    return sample_of(shortest, groups[0].problem, 0.0)


LossTokens = Callable[[Sample], tuple[int, int]]
"""From a sample to the first of its completion tokens that the loss covers, and the one past the
last."""


def whole_completion(sample: Sample) -> tuple[int, int]:
    """All completion tokens."""
    return 0, len(sample.completion_ids)


def micro_batches(
    samples: Sequence[Sample | None],
    *,
    accumulate: int,
    updates: int,
    version: int,
    loss_tokens: LossTokens = whole_completion,
    dummy_sample: Sample | None = None,
    packed: bool = False,
) -> list[TrainBatch]:
    """Split one rollout's samples into the micro-batches of its optimizer steps.

    Groups are assigned to the ``updates`` optimizer steps in order, as whole groups if the problems
    divide into as many parts; else a group may be split between two. Within one step sequences
    are sorted by length and split so that the largest micro-batch, with padding, is as small as
    possible. Each sequence has the same weight, so this does not change the gradient.

    Args:
        samples: one rank's share of the rollout. None stands for a missing sequence, which counts
            with a loss of 0 in the mean over an optimizer step.
        accumulate: micro-batches per optimizer step.
        updates: optimizer steps per rollout.
        version: optimizer steps of the current weights.
        loss_tokens: which tokens of a sample the loss covers.
        dummy_sample: content of micro-batches with weight 0, if there are fewer sequences than
            micro-batches.
        packed: one row per micro-batch, for a model of which
            :func:`~svr_lightning.training.packing.can_pack` is true.

    Raises:
        RuntimeError: if other weights sampled a completion.
        ValueError: if the samples do not divide into equal optimizer steps of at least one
            sequence per micro-batch.
    """
    learning = [sample for sample in samples if sample is not None]
    if other := {sample.policy_version for sample in learning} - {version}:
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
    batches = []
    for start in range(0, len(samples), per_step):
        places = samples[start : start + per_step]
        step = sorted((sample for sample in places if sample is not None), key=_length)
        count = min(accumulate, len(step))
        weight, mean = accumulate / per_step, accumulate / max(len(step), 1)
        runs = balanced_split([_length(s) for s in step], count, packed) if count else []
        batches += [batch_of(step[run], weight, loss_tokens, mean, packed=packed) for run in runs]
        if count < accumulate:
            if dummy_sample is None:
                raise ValueError(f"{count} sequences for {accumulate} micro-batches, and no filler")
            batches += [batch_of([dummy_sample], 0.0)] * (accumulate - count)
    return batches


def balanced_split(lengths: Sequence[int], count: int, packed: bool = False) -> list[slice]:
    """Cut ascending ``lengths`` into ``count`` runs so that the largest run is smallest.

    The size of a run is its number of tokens in the model: its number of sequences times its last
    length if padded, the sum of the lengths if packed. A bound is feasible if runs filled up to
    it in order hold all sequences; the smallest feasible bound is found by bisection.

    Args:
        lengths: ascending, at least ``count`` of them.
        count: runs, none of them empty.
        packed: whether a run becomes one row without padding.

    Examples:
        >>> balanced_split([1, 1, 1, 5], 2)
        [slice(0, 3, None), slice(3, 4, None)]
        >>> balanced_split([1, 2, 3, 4], 2), balanced_split([1, 2, 3, 4], 2, packed=True)
        ([slice(0, 2, None), slice(2, 4, None)], [slice(0, 3, None), slice(3, 4, None)])
    """
    size = sum if packed else _padded_size
    enough = size(lengths)
    low = lengths[-1]
    while low < enough:
        middle = (low + enough) // 2
        if _runs(lengths, count, middle, size)[-1].stop == len(lengths):
            enough = middle
        else:
            low = middle + 1
    return _runs(lengths, count, enough, size)


def _padded_size(lengths: Sequence[int]) -> int:
    return len(lengths) * lengths[-1]


def _runs(
    lengths: Sequence[int], count: int, bound: int, size: Callable[[Sequence[int]], int]
) -> list[slice]:
    """``count`` runs of at most ``bound``, the first ones as long as they may be."""
    runs = []
    start = 0
    for later in reversed(range(count)):
        stop = start + 1
        while stop < len(lengths) - later and size(lengths[start : stop + 1]) <= bound:
            stop += 1
        runs.append(slice(start, stop))
        start = stop
    return runs


def batch_of(
    samples: Sequence[Sample],
    weight: float,
    loss_tokens: LossTokens = whole_completion,
    mean_weight: float | None = None,
    *,
    packed: bool = False,
) -> TrainBatch:
    """One micro-batch of all ``samples``.

    ``mean_weight`` defaults to ``weight``.

    Example:
        Sequences of 5 and 4 tokens make rows of 5 and 5, padded, or one row of 9, packed.
    """
    spans = [loss_tokens(sample) for sample in samples]
    sequences = [[*s.prompt_ids, *s.completion_ids] for s in samples]
    lengths = [len(sequence) for sequence in sequences]
    begins = [0, *itertools.accumulate(lengths)] if packed else [0] * len(samples)
    tokens = [
        (0 if packed else row, begins[row] + len(s.prompt_ids) - 1 + t)
        for row, (s, span) in enumerate(zip(samples, spans, strict=True))
        for t in range(*span)
    ]
    rows, logit_positions = torch.tensor(tokens).unbind(dim=1)
    completion = max(len(s.completion_ids) for s in samples)
    in_loss = [[0] * first + [1] * (stop - first) for first, stop in spans]
    mean_weight = weight if mean_weight is None else mean_weight
    return TrainBatch(
        input_ids=_padded([list(itertools.chain(*sequences))] if packed else sequences, 0),
        lengths=tuple(lengths),
        rows=rows,
        logit_positions=logit_positions,
        mask=_padded(in_loss, 0, completion),
        logprobs=_padded([s.logprobs for s in samples], 0.0),
        advantages=torch.tensor([s.advantage for s in samples]),
        weight=weight,
        mean_weight=mean_weight,
        group_ids=tuple(s.group_id for s in samples),
    )


def _length(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.completion_ids)


def _padded(rows: Sequence[Sequence[float]], fill: float, length: int = 0) -> Tensor:
    """[B, longest row], or [B, ``length``] if that is more."""
    length = max(length, *map(len, rows))
    return torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUpdate:
    """The loss of one micro-batch, and what is logged of it; every field is a scalar."""

    loss: Tensor
    """With gradient. The loss of an optimizer step is the mean over its micro-batches."""
    kl: Tensor
    clip_frac: Tensor
    """Share of tokens whose ratio was clipped."""
    logprob_diff: Tensor
    """Mean absolute difference, in nats, between the trainer's and the engine's
    log-probabilities: rounding alone, while both have the same weights."""
    ratio_max: Tensor
    behaviour: BehaviourWeights | None = None
    """None without correction."""


def policy_update_loss(
    policy: Any,
    reference: Any,
    batch: TrainBatch,
    spec: LossSpec,
    *,
    temperature: float = 0.9,
) -> PolicyUpdate:
    """The policy loss of one micro-batch: clipped surrogate plus ``beta * k3``.

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
        with torch.no_grad(), record_function("reference"):
            ref_logp = completion_logprobs(reference, batch, temperature)
    logp = completion_logprobs(policy, batch, temperature)
    # With one update per rollout the policy that sampled is the current one.
    old_logp = logp.detach() if batch.old_logprobs is None else batch.old_logprobs
    terms = policy_loss(
        logp, old_logp, ref_logp, batch.advantages, batch.mask, spec, batch.logprobs
    )
    gap = ((logp.detach() - batch.logprobs).abs() * batch.mask).sum(1)
    behaviour = terms.behaviour
    if behaviour is not None:
        mean, most, clipped = (values.detach() for values in behaviour)
        behaviour = BehaviourWeights(
            mean=mean.sum() * batch.mean_weight,
            max=most.max(),
            clipped=clipped.sum() * batch.mean_weight,
        )
    return PolicyUpdate(
        loss=terms.loss.sum() * batch.weight,
        kl=terms.kl.sum() * batch.mean_weight,
        clip_frac=terms.clipped.sum() * batch.mean_weight,
        logprob_diff=(gap / batch.mask.sum(1).clamp(min=1)).sum() * batch.mean_weight,
        ratio_max=terms.ratio_max.max(),
        behaviour=behaviour,
    )


def completion_logprobs(model: Any, batch: TrainBatch, temperature: float) -> Tensor:
    """[B, T] nats of the completion tokens under a transformers model, 0 outside of the mask.

    The output layer is applied only to positions that predict them: no prompt, no padding.
    """
    ids, rows, positions = batch.input_ids, batch.rows, batch.logit_positions
    rest = boundaries(model, batch.lengths, ids.device) if batch.packed else no_mask(model)
    hidden = model.base_model(input_ids=ids, use_cache=False, **rest).last_hidden_state
    head = model.get_output_embeddings()
    weight, bias = whole(head.weight), getattr(head, "bias", None)
    token_ids = ids[rows, positions + 1]
    logp = linear_logprobs(hidden[rows, positions], weight, bias, token_ids, temperature)
    return logp.new_zeros(batch.mask.shape).masked_scatter(batch.mask.bool(), logp)


def total_norm(model: nn.Module) -> Tensor:
    """The 2-norm of all gradients together."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return whole(torch.nn.utils.get_total_norm(gradients))
