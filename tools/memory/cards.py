"""What a training step leaves of a card, as text and as the tables of docs/scaling.md."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tools.bench.workloads import GIB
from tools.memory.plan import Plan, plan_of, resolve
from tools.memory.step import Usage, outline, usage

CARDS: Mapping[str, float] = {"24 GB": 23.6, "48 GB": 47.4, "80 GB": 79.2, "141 GB": 139.8}
"""GiB that torch reports as the total memory of an RTX 4090, an A6000, an A100 and an H200."""
SPARE = 3.0
"""GiB that have to be left for the CUDA context, workspaces, NCCL and fragmentation."""
CACHE = 1.0
"""GiB that the engine's weights have to leave of its share, for its activations and cache."""

ROOT = Path(__file__).resolve().parents[2]
RUNS = ("countdown", "gsm8k", "math")
HARDWARE = {
    "1gpu_24gb": "24 GB",
    "1gpu": "80 GB",
    "4gpu_zero2": "80 GB",
    "multi_node": "80 GB",
    "8gpu_fsdp2": "80 GB",
}
"""The layers for GPUs, each with the card that the runs are meant for."""
LARGE = (
    ("Qwen/Qwen3-14B", 8, "80 GB"),
    ("Qwen/Qwen3-32B", 16, "80 GB"),
    ("Qwen/Qwen3-32B", 8, "141 GB"),
)
"""Larger policies that `math` trains with sharded weights, each on so many cards."""
MODELS = ("Qwen/Qwen3.5-2B", *(f"Qwen/Qwen3-{size}" for size in ("4B", "8B", "14B", "32B")))
RANKS = (1, 4, 8, 16, 64)
SHARDED = ("Qwen/Qwen3.5-2B", "Qwen/Qwen3-14B", "Qwen/Qwen3-32B")
SHARDS = (8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A training step on one card, in GiB."""

    engine: float
    """The engine's share, its weights and cache."""
    cache: float
    """What its weights leave of this share; 0 without an engine on the card."""
    rollout: float
    """At the peak of a rollout."""
    update: float
    """At the peak of an update."""
    spare: float
    """What is left of the card at the higher of both."""

    @property
    def fits(self) -> bool:
        """Whether enough is left of the card, and of the engine's share."""
        return self.spare >= SPARE and (self.engine == 0 or self.cache >= CACHE)


def fit(plan: Plan, used: Usage, card: str) -> Fit:
    """A plan on a card of :data:`CARDS`."""
    engine = plan.engine_share * CARDS[card]
    rollout = used.resting / GIB + engine
    update = used.training / GIB + (0.0 if plan.sleeps else engine)
    spare = CARDS[card] - max(rollout, update)
    cache = engine - engine_weights(plan, used)
    return Fit(engine=engine, cache=cache, rollout=rollout, update=update, spare=spare)


def engine_weights(plan: Plan, used: Usage) -> float:
    """GiB of the engine's weights in bf16, within its share."""
    return 2 * used.parameters / plan.tensor_parallel / GIB if plan.engine_share else 0.0


def described(plan: Plan) -> str:
    """One line on what was computed."""
    zero = f"ZeRO-{plan.zero.stage}" if plan.zero else "no ZeRO"
    zero = "FSDP2" if plan.shards > 1 else zero
    return (
        f"{plan.policy}, {plan.ranks} x {plan.device}, {zero}, {plan.precision}; micro-batches of "
        f"{plan.sequences} sequences of {plan.prompt} + {plan.completion} tokens"
    )


def contents(plan: Plan, used: Usage) -> dict[str, float]:
    """GiB on each GPU by what they are."""
    parts = {
        "policy": used.weights,
        "reference": used.reference,
        "optimizer": used.optimizer,
        "gradients": used.gradients,
        "activations and temporaries of a micro-batch": used.micro_batch,
        "or temporaries of the optimizer's step": used.step,
    }
    found = {name: size / GIB for name, size in parts.items()}
    return found | {"engine's weights, within its share": engine_weights(plan, used)}


def report(plan: Plan) -> str:
    """The contents, and what is left of each card."""
    used = usage(plan)
    lines = [described(plan), "", f"{'GiB on each':<48}"]
    lines += [f"  {name:<46} {size:7.2f}" for name, size in contents(plan, used).items()]
    lines += [f"  {'peak of the update without the engine':<46} {used.training / GIB:7.2f}"]
    if plan.device == "cpu":
        return "\n".join(lines)
    lines += ["", f"{'card':<8}{'engine':>8}{'rollout':>9}{'update':>8}{'spare':>8}"]
    for card in CARDS:
        found = fit(plan, used, card)
        lacks = f"does not fit with {SPARE:g} GiB to spare"
        if found.spare >= SPARE:
            lacks = f"its share leaves the engine {found.cache:.1f} GiB for its cache"
        verdict = "fits" if found.fits else lacks
        values = f"{found.engine:8.1f}{found.rollout:9.1f}{found.update:8.1f}{found.spare:8.1f}"
        lines.append(f"{card:<8}{values}  {verdict}")
    return "\n".join(lines)


# --- what ships -----------------------------------------------------------------------------------


@cache
def layered_plan(run: str, layer: str) -> Plan:
    """The plan of a shipped run on a hardware layer."""
    paths = [ROOT / "configs" / name for name in (f"{run}.yaml", f"hardware/{layer}.yaml")]
    return plan_of(resolve([part for path in paths for part in ("--config", str(path))]))


def shipped() -> Iterator[tuple[str, str, Plan, str]]:
    """Each configuration for GPUs on each layer for them: names, plan, and the card it is for."""
    for run in RUNS:
        for layer, card in HARDWARE.items():
            yield run, layer, layered_plan(run, layer), card
    plan = layered_plan("math", "8gpu_fsdp2")
    for policy, cards, card in LARGE:
        name = f"math, {policy.partition('/')[2]}"
        large = replace(plan, policy=policy, ranks=cards, shards=cards)
        yield name, f"8gpu_fsdp2, {cards} x {card}", large, card


def table_of_runs() -> str:
    """Markdown: each shipped configuration on its card."""
    held = ("policy, reference", "optimizer", "gradients", "micro-batch")
    rows = _head("run", "layer", *held, "engine", "update", "rollout", "left")
    for run, layer, plan, card in shipped():
        used = usage(plan)
        on = fit(plan, used, card)
        parts = ((used.weights + used.reference), used.optimizer, used.gradients, used.micro_batch)
        values = [*(part / GIB for part in parts), on.engine, on.update, on.rollout, on.spare]
        cells = " | ".join(f"{value:.1f}" for value in values)
        rows.append(f"| `{run}` | `{layer}` | {cells} |")
    return "\n".join(rows)


def table_of_models() -> str:
    """Markdown: what a model takes at rest under ZeRO-2 in bf16, gradients included."""
    rows = _head("model", "parameters", *(f"N = {n}" for n in RANKS), "engine's weights")
    for model in MODELS:
        _, count = outline(model)
        sizes = [(4 + (12 + 4) / ranks) * count / GIB for ranks in RANKS]
        cells = " | ".join(f"{size:.0f}" for size in sizes)
        name = model.partition("/")[2]
        rows.append(f"| {name} | {count / 1e9:.2f} | {cells} | {2 * count / GIB:.1f} |")
    return "\n".join(rows)


def table_of_shards() -> str:
    """Markdown: what a model takes under FSDP2 in fp32, with micro-batches of one sequence."""
    rows = _head("model", *(f"N = {n}" for n in SHARDS), "micro-batch", "engine's weights")
    on_eight = layered_plan("gsm8k", "8gpu_fsdp2")
    for model in SHARDED:
        plan = replace(on_eight, policy=model, sequences=1)
        found = [usage(replace(plan, shards=shards)) for shards in SHARDS]
        sizes = [used.resting + used.gradients for used in found]
        sizes += [found[0].micro_batch, 2 * found[0].parameters]
        cells = " | ".join(f"{size / GIB:.1f}" for size in sizes)
        rows.append(f"| {model.partition('/')[2]} | {cells} |")
    return "\n".join(rows)


def _head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]


DOCS = ROOT / "docs" / "scaling.md"
TABLES = {"runs": table_of_runs, "models": table_of_models, "shards": table_of_shards}


def with_tables(text: str) -> str:
    """The page with its tables computed anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- memory: {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(begin)
        text = before + begin + table() + "\n" + end + rest.partition(end)[2]
    return text
