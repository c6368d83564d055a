"""The memory of one training step of each shipped run on each GPU, by what it holds.

    python -m tools.memory                           # writes the table of docs/scaling.md

Runs the package's own training step at its true shape on tensors without data, and counts what
exists at a time storage by storage. It needs neither a GPU nor the checkpoint. Every sequence is as
long as the configuration allows: an upper bound. Not counted are temporaries inside one operation,
fragmentation, the CUDA context and libraries' workspaces: leave 3 GiB for them. Kernels that a CPU
lacks are replaced by functions that make the same tensors; where flash-linear-attention is
installed, transformers would call it: run this in an environment without.
"""

import inspect
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import yaml
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, masking_utils
from transformers.models.qwen3_5 import modeling_qwen3_5

from svr_lightning.cli.main import main as command_line
from svr_lightning.core import linear_logprobs
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.types import Sample
from svr_lightning.engines.vllm import VLLMEngine
from svr_lightning.policy import lora
from svr_lightning.policy.config import LoRAConfig, PolicyConfig
from svr_lightning.policy.policy import Policy
from svr_lightning.training.config import OptimizerConfig
from svr_lightning.training.optimizer import make_optimizer, mix_reference
from svr_lightning.training.update import batch_of, policy_update_loss
from tools.bench.workloads import GIB, LiveBytes
from tools.shapes import qwen3_5

LARGE = "Qwen/Qwen3.5-2B"
"""The policy of the shipped runs."""
BUCKET = 200_000_000
"""Elements that ZeRO reduces at a time: ``reduce_bucket_size`` as Lightning sets it."""
SPARE = 3.0
"""GiB that have to be left for what is not counted."""
CACHE = 1.0
"""GiB that the engine's weights have to leave of its share, for its activations and cache."""
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "scaling.md"
RUNS = ("countdown", "gsm8k", "math")
CARDS = {"1gpu_24gb": 23.6, "1gpu": 79.2, "4gpu_zero2": 79.2, "multi_node": 79.2}
"""The layers for GPUs with the GiB of their cards, as torch reports those of an RTX 4090 (24 GB)
and of an A100 (80 GB)."""


# --- what is computed ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training step: which model, at which shape, in which types, on how many GPUs."""

    policy: str
    device: str
    """``cuda`` or ``cpu``."""
    precision: str
    ranks: int
    zero: bool
    """DeepSpeed's ZeRO stage 2."""
    lora: LoRAConfig | None = field(hash=False)  # it may hold a list
    """The adapters that train."""
    checkpointing: bool
    sequences: int
    """In one micro-batch, all as long as they may be."""
    prompt: int
    completion: int
    micro_batches: int
    reference: bool
    engine_share: float
    """Of a card's memory; 0 where the engine takes none in advance."""
    sleeps: bool


def resolve(arguments: Sequence[str]) -> dict[str, Any]:
    """What ``svr fit ARGUMENTS`` would run with."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):  # a fault is on standard error
        command_line(["fit", *arguments, "--print_config"])
    return dict(yaml.safe_load(printed.getvalue()))


def plan_of(resolved: Mapping[str, Any]) -> Plan:
    """The plan of a resolved configuration, which states its number of devices."""
    trainer, model, data = (resolved[name] for name in ("trainer", "model", "data"))
    policy, recipe, devices = model["policy"], model["recipe"]["init_args"], trainer["devices"]
    ranks = devices * trainer["num_nodes"]
    sequences = data["problems_per_step"] // ranks * recipe["group_size"]
    micro_batches = ceil(sequences / model["micro_batch_size"])
    prompt, longest = policy["max_prompt_tokens"], policy["max_model_len"]
    device = "cpu" if trainer["accelerator"] == "cpu" else "cuda"
    engine = model.get("engine") or {"class_path": "VLLMEngine"}
    defaults = {p.name: p.default for p in inspect.signature(VLLMEngine).parameters.values()}
    settings = defaults | engine.get("init_args", {})
    shares = device == "cuda" and engine["class_path"].endswith("VLLMEngine")
    return Plan(
        policy=policy["path"],
        device=device,
        precision=str(trainer["precision"]),
        ranks=ranks,
        zero="deepspeed" in str(trainer["strategy"]).lower(),
        lora=policy["lora"] and LoRAConfig(**policy["lora"]),
        checkpointing=policy["gradient_checkpointing"],
        sequences=ceil(sequences / micro_batches),
        prompt=prompt,
        completion=min(model["sampling"]["max_completion_tokens"], longest - prompt),
        micro_batches=micro_batches,
        reference=bool(recipe["loss"]["beta"]),
        engine_share=float(settings["gpu_memory_utilization"]) if shares else 0.0,
        sleeps=shares and settings["sleep_level"] > 0,
    )


def architecture(policy: str) -> Any:
    """The configuration of a policy's model: :data:`LARGE`, or one that is built in."""
    if policy == LARGE:
        return qwen3_5()
    return Policy.load(PolicyConfig(path=policy)).model.config


# --- the step -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Bytes on one GPU, the engine's apart."""

    parameters: int
    """Number of them, not bytes."""
    weights: int
    reference: int
    optimizer: int
    """Moments, and under ZeRO fp32 masters: this rank's shard."""
    gradients: int
    micro_batch: int
    """Activations and temporaries at the peak of a forward and backward pass."""
    step: int
    """Temporaries of clipping, the optimizer's step and the reference's mix."""

    @property
    def resting(self) -> int:
        """While the engine samples."""
        return self.weights + self.reference + self.optimizer

    @property
    def training(self) -> int:
        """At the peak of the update."""
        return self.resting + self.gradients + max(self.micro_batch, self.step)


def usage(plan: Plan) -> Usage:
    """The memory of one training step on one GPU."""
    # What the card and the other ranks hold changes nothing of what is counted.
    several = min(plan.micro_batches, 2)
    alone = replace(plan, ranks=1, engine_share=0.0, sleeps=False, micro_batches=several)
    found = counted(alone)
    if not plan.zero:
        return found
    shard = found.parameters / plan.ranks
    return replace(
        found,
        # fp32 masters and two moments.
        optimizer=round(12 * shard),
        # bf16: the gradients added up, those of this micro-batch, and the buffer of reductions.
        gradients=round(2 * 2 * shard) + 2 * BUCKET,
        # The shard's gradient as one tensor, and in fp32.
        step=max(found.step, round((2 + 4) * shard)),
    )


@cache
def counted(plan: Plan, with_data: bool = False) -> Usage:
    """The step; under ZeRO without optimizer and gradients."""
    config, batch = architecture(plan.policy), full_batch(plan)
    in_bf16 = plan.precision == "bf16-true"
    with ExitStack() as scope:
        if plan.device == "cuda":
            scope.enter_context(kernels())
        # A row is one sequence. With data transformers sees that, and makes no mask.
        no_mask = patch.object(masking_utils, "find_packed_sequence_indices", lambda _: None)
        scope.enter_context(no_mask)
        if not with_data:
            scope.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        model = build(config, in_bf16)
        reference: Any = None
        if plan.lora is not None:
            # peft moves adapters to where they are, which tensors without data do not allow.
            stay = patch.object(torch.nn.Module, "to", lambda module, *_, **__: module)
            scope.enter_context(stay)
            lora.attach(model, plan.lora, seed=0, base=plan.policy)
            reference = lora.AdapterReference(model) if plan.reference else None
        elif plan.reference:
            reference = build(config, in_bf16).requires_grad_(False)
        if plan.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        optimizer = None if plan.zero else ready_optimizer(model)
        micro_batch = _backward_pass(plan, model, reference, batch)
        copied = reference if plan.lora is None else None
        with LiveBytes() as live:
            if optimizer is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if copied is not None:
                mix_reference(copied, model, 0.6)
        states = [s for one in optimizer.state.values() for s in one.values()] if optimizer else []
        trained = [p for p in model.parameters() if p.requires_grad]
        return Usage(
            parameters=sum(p.numel() for p in model.parameters()),
            weights=_bytes(model.parameters()),
            reference=_bytes(copied.parameters()) if copied is not None else 0,
            optimizer=_bytes(states),
            gradients=0 if plan.zero else _bytes(trained),
            micro_batch=micro_batch,
            step=int(live.peak),
        )


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def build(config: Any, in_bf16: bool) -> Any:
    """A model with random weights, in eval mode."""
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def full_batch(plan: Plan) -> Any:
    """A micro-batch of different sequences that are as long as they may be."""
    samples = [
        Sample(
            prompt_ids=(row,) * plan.prompt,
            completion_ids=(1,) * plan.completion,
            logprobs=(0.0,) * plan.completion,
            advantage=1.0,
            group_id="",
            policy_version=0,
        )
        for row in range(plan.sequences)
    ]
    return batch_of(samples)


def ready_optimizer(model: Any) -> Any:
    """AdamW after a step: it has its moments."""
    optimizer = make_optimizer(model, OptimizerConfig(), total_steps=1)["optimizer"]
    hold_gradients(model)
    optimizer.step()
    return optimizer


def hold_gradients(model: Any) -> None:
    """Give each trained parameter the gradient of an earlier micro-batch."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)


def _backward_pass(plan: Plan, model: Any, reference: Any, batch: Any) -> int:
    """Peak bytes of a micro-batch beyond weights, optimizer and gradients."""
    model.zero_grad()
    if not plan.zero and plan.micro_batches > 1:
        hold_gradients(model)
    for parameter in model.parameters():  # else each gradient is taken away when it is there
        if plan.zero and parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
    with LiveBytes() as live:
        mixed = plan.precision == "bf16-mixed"
        # As Lightning does, which keeps no copies of weights until the forward pass ends.
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed, cache_enabled=False):
            spec = LossSpec(beta=0.08 if plan.reference else 0.0)
            update = policy_update_loss(model, reference, batch, spec)
        update.loss.backward()  # type: ignore[no-untyped-call]
    return int(live.peak)


@contextmanager
def kernels() -> Iterator[None]:
    """A GPU's block size, and flash-linear-attention's kernel, as far as memory is concerned."""
    blocks = {"cpu": linear_logprobs.BLOCK_ELEMENTS["default"]}

    def delta_rule(*tensors: Tensor, g: Tensor, beta: Tensor, **_: Any) -> tuple[Any, None]:
        return _GatedDeltaRule.apply(*tensors, g, beta), None  # type: ignore[no-untyped-call]

    with (
        patch.dict(linear_logprobs.BLOCK_ELEMENTS, blocks),
        patch.object(modeling_qwen3_5, "torch_chunk_gated_delta_rule", delta_rule),
    ):
        yield


class _GatedDeltaRule(torch.autograd.Function):
    """fla/ops/gated_delta_rule/chunk.py: what is kept, and what is computed again."""

    CHUNK = 64
    """Tokens that the kernel works on at a time."""

    @staticmethod
    def _between(key: Tensor, value: Tensor) -> list[Tensor]:
        """States at the chunks' ends, WY representation, corrected values."""
        batch, length, heads, width = key.shape
        chunks = -(-length // _GatedDeltaRule.CHUNK)
        states = key.new_empty(batch, chunks, heads, width, value.shape[-1])
        return [states, *map(torch.empty_like, (key, value, value))]

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor
    ) -> Tensor:
        normed = torch.empty_like(query), torch.empty_like(key)
        inside = key.new_empty(*key.shape[:3], _GatedDeltaRule.CHUNK)
        ctx.save_for_backward(*normed, value, torch.empty_like(g), beta, inside)
        between = _GatedDeltaRule._between(key, value)
        result = torch.empty_like(value)
        del between
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        query, key, value, g, beta, _ = ctx.saved_tensors
        between = _GatedDeltaRule._between(key, value)
        between += map(torch.empty_like, (between[0], value, key))
        found = tuple(map(torch.empty_like, (query, key, value)))
        del between
        return *found, torch.empty_like(g), torch.empty_like(beta)


# --- cards --------------------------------------------------------------------------------------


class Fit(NamedTuple):
    """A training step on one card, in GiB."""

    engine: float
    """The engine's share, its weights and cache."""
    update: float
    rollout: float
    left: float
    """Of the card at the higher peak of both."""
    fits: bool
    """Whether enough is left of the card, and of the engine's share beyond its weights."""


def fit(plan: Plan, used: Usage, card: float) -> Fit:
    """A plan on a card with so many GiB."""
    engine = plan.engine_share * card
    rollout = used.resting / GIB + engine
    update = used.training / GIB + (0.0 if plan.sleeps else engine)
    left = card - max(rollout, update)
    served = not engine or engine - 2 * used.parameters / GIB >= CACHE
    return Fit(engine, update, rollout, left, left >= SPARE and served)


@cache
def shipped() -> list[tuple[str, str, Usage, Fit]]:
    """Each run on each layer for GPUs: names, what it takes, and how it fits its card."""
    found = []
    for run in RUNS:
        for layer, card in CARDS.items():
            files = [str(ROOT / "configs" / f"{name}.yaml") for name in (run, f"hardware/{layer}")]
            plan = plan_of(resolve([part for file in files for part in ("--config", file)]))
            used = usage(plan)
            found.append((run, layer, used, fit(plan, used, card)))
    return found


def table_of_runs() -> str:
    """Markdown: each shipped configuration on its card."""
    held = ("policy, reference", "optimizer", "gradients", "micro-batch")
    names = ("run", "layer", *held, "engine", "update", "rollout", "left")
    rows = f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n"
    for run, layer, used, on in shipped():
        parts = (used.weights + used.reference, used.optimizer, used.gradients, used.micro_batch)
        values = [*(part / GIB for part in parts), *on[:-1]]
        rows += f"| `{run}` | `{layer}` | {' | '.join(f'{value:.1f}' for value in values)} |\n"
    return rows


def with_table(text: str) -> str:
    """The page with its table computed anew."""
    begin, end = "<!-- memory: runs -->\n", "<!-- end -->"
    before, _, rest = text.partition(begin)
    return before + begin + table_of_runs() + end + rest.partition(end)[2]


if __name__ == "__main__":
    DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
