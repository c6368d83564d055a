"""What engine steps, updates and syncs take: from what a card can do, or from measured points."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from svr_lightning.training.flops import PEAKS, forward_flops, update_flops
from tools.bench.workloads import GIB
from tools.gpu_check.flops import BANDWIDTHS, decode_bytes
from tools.memory.cards import CARDS
from tools.memory.plan import Plan
from tools.memory.step import outline
from tools.scale.schedule import Span, Turn
from tools.scale.workload import Lengths

DEVICES = {
    "24 GB": ("NVIDIA GeForce RTX 4090", 32e9),
    "48 GB": ("NVIDIA RTX A6000", 32e9),
    "80 GB": ("NVIDIA A100-SXM4-80GB", 300e9),
    "141 GB": ("NVIDIA H200", 450e9),
}
"""The cards of ``tools.memory``, and bytes/s in one direction between cards of a machine, as NVIDIA
states them: PCIe 4.0 x16 of the first two, NVLink's 600 and 900 GB/s of both directions of the
others."""


@dataclass(frozen=True, kw_only=True)
class Assumptions(Lengths):
    """What is neither stated by NVIDIA nor computed; ``--run`` measures, ``--assume`` sets."""

    overhead: float = 1e-3
    """Seconds of an engine step beside its arithmetic and its traffic."""
    bandwidth_share: float = 0.8
    """Of the stated memory bandwidth, while the engine decodes."""
    engine_mfu: float = 0.5
    """Of the stated peak, while the engine reads prompts."""
    mfu: float = 0.3
    """Of the update, as ``speed/mfu`` counts it."""
    sync: float = 0.2
    """Seconds beside copying the weights."""
    link_share: float = 0.7
    """Of the stated bandwidth between cards."""
    network: float = 25e9
    """Bytes/s per card between machines: 200 Gb/s."""
    per_machine: int = 8
    """Cards of a machine."""
    latency: float = 2e-5
    """Seconds of a reduction among the cards of one engine; there are two per layer."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Seconds of an engine step."""

    weights: float = 0.0
    """Reading them, while the tokens below are computed."""
    token: float
    """Computing one, of a prompt or of a completion."""
    row: float
    """Each completion beyond its token: its recurrent states, its draw."""
    context: float
    """Reading keys and values of one token."""
    overhead: float

    def seconds(self, spans: Iterable[Span]) -> float:
        """Of all their steps."""
        total = 0.0
        for span in spans:
            own = self.overhead + self.row * span.rows + self.context * span.context
            computed = max(self.weights, self.token * span.rows)
            first = max(self.weights, self.token * (span.rows + span.read)) - computed
            total += span.steps * (own + computed) + first
        return total


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of everything in an optimizer step, on one rank or one engine."""

    engine: StepCost
    update: Callable[[Sequence[Turn]], float]
    """Of the sequences that one rank trains on."""
    exchange: float
    """Of gradients and weights between ranks."""
    sync: float
    room: float
    """Tokens that the engine's cache holds."""


def costs_on(plan: Plan, card: str, assumed: Assumptions) -> Costs:
    """The costs of a plan for GPUs on one of :data:`DEVICES`."""
    model, count = outline(plan.policy)
    config = model.config
    device, link = DEVICES[card]
    bandwidth = assumed.bandwidth_share * BANDWIDTHS[device]
    share = 1 / plan.tensor_parallel
    table = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    state = decode_bytes(model, [0], 2)
    reductions = 2 * config.num_hidden_layers * assumed.latency if share < 1 else 0.0
    engine = StepCost(
        weights=2 * (count - table) * share / bandwidth,
        token=forward_flops(model, [1], [1]) * share / (assumed.engine_mfu * PEAKS[device]),
        row=state * share / bandwidth,
        context=(decode_bytes(model, [1], 2) - state) * share / bandwidth,
        overhead=assumed.overhead + reductions,
    )

    def update(sequences: Sequence[Turn]) -> float:
        lengths, drawn = [sum(turn) for turn in sequences], [turn.drawn for turn in sequences]
        flops = update_flops(model, lengths, drawn, reference=plan.reference)
        return flops / (assumed.mfu * PEAKS[device])

    exchange, gathered = _traffic(plan, count, link * assumed.link_share, assumed)
    sync = assumed.sync + 2 * 2 * count * share / bandwidth + gathered
    slots = plan.sequences * plan.micro_batches * plan.tensor_parallel
    free = plan.engine_share * CARDS[card] * GIB - 2 * count * share - slots * state / 2 * share
    room = free / (engine.context * bandwidth)
    return Costs(engine=engine, update=update, exchange=exchange, sync=sync, room=room)


def _traffic(plan: Plan, count: int, link: float, assumed: Assumptions) -> tuple[float, float]:
    """Seconds per optimizer step, and per sync, between ranks; none of it hidden."""
    if plan.ranks > assumed.per_machine:
        link = min(link, assumed.network)
    once = (plan.ranks - 1) / plan.ranks * count / link  # one byte of each weight, in a ring
    if plan.shards > 1:
        # In fp32, for each micro-batch: policy forward and backward, gradients, reference.
        return (3 + plan.reference) * 4 * once * plan.micro_batches, 4 * once
    width = 2 if plan.precision == "bf16-true" else 4
    # Gradients reduced and scattered, then they or, under ZeRO, the new weights gathered.
    return (0.0 if plan.lora else 2 * width * once), 0.0


def on_ranks(plan: Plan, ranks: int) -> Plan:
    """The plan with another number of GPUs, its micro-batches as large as before."""
    sequences = plan.sequences * plan.micro_batches * plan.ranks // ranks
    return replace(
        plan,
        ranks=ranks,
        shards=ranks if plan.shards > 1 else 1,
        micro_batches=-(-sequences // plan.sequences),
    )
