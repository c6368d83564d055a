"""One training step at its true shape, on tensors without data, its memory counted.

The package's own functions run: forward passes of reference and policy, blockwise
log-probabilities, backward pass, clipping, AdamW, the reference's mix. What exists at a time is
counted storage by storage. Not counted are temporaries inside one operation, the allocator's
fragmentation, the CUDA context and libraries' workspaces: leave 3 GiB for them.

Kernels that a CPU has not are replaced by functions that make the tensors which the kernels make.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3_5TextConfig, Qwen3Config
from transformers.models.qwen3_5 import modeling_qwen3_5

from svr_lightning.core import linear_logprobs
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.types import Sample
from svr_lightning.engines import lora
from svr_lightning.errors import ConfigError
from svr_lightning.training.config import OptimizerConfig, PolicyConfig
from svr_lightning.training.kernels import choose_functions
from svr_lightning.training.optimizer import make_optimizer
from svr_lightning.training.packing import prepare_packing
from svr_lightning.training.policy import BUILT_IN, RANDOM_HYBRID, load_policy
from svr_lightning.training.reference import mix_reference
from svr_lightning.training.update import (
    TrainBatch,
    batch_of,
    policy_update_loss,
    total_norm,
)
from tools.bench.update import LiveBytes
from tools.gpu_check.models import shapes
from tools.memory.plan import Plan, Zero

QWEN3 = {"vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128}
"""What Qwen3's dense models have in common, from their config.json on the hub."""
KNOWN: dict[str, Any] = {
    "Qwen/Qwen3.5-2B": lambda: Qwen3_5TextConfig(**shapes(False)["hybrid"].dims),
    "Qwen/Qwen3-4B": lambda: _qwen3(2560, 9728, 36, 32, tied=True),
    "Qwen/Qwen3-8B": lambda: _qwen3(4096, 12_288, 36, 32),
    "Qwen/Qwen3-14B": lambda: _qwen3(5120, 17_408, 40, 40),
    "Qwen/Qwen3-32B": lambda: _qwen3(5120, 25_600, 64, 64),
}
"""Models whose shape needs no download."""
GROUP = 4
"""Layers after which the known models repeat themselves."""


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


def _qwen3(hidden: int, inner: int, layers: int, heads: int, tied: bool = False) -> Any:
    return Qwen3Config(
        **QWEN3,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        tie_word_embeddings=tied,
    )


def architecture(policy: str) -> Any:
    """The configuration of a policy's model.

    Raises:
        ConfigError: if it is neither known, built in, a folder nor in the hub's cache.
    """
    if policy in KNOWN:
        return KNOWN[policy]()
    if policy == RANDOM_HYBRID or policy.startswith(BUILT_IN):
        return load_policy(PolicyConfig(path=policy), seed=0)[0].config
    try:
        return AutoConfig.from_pretrained(policy).get_text_config()
    except Exception as error:
        raise ConfigError(
            f"model.policy.path={policy!r}: its shape cannot be read; give a folder with its "
            f"config.json, or one of {', '.join(KNOWN)}"
        ) from error


def outline(policy: str) -> tuple[Any, int]:
    """A policy's model without its data, and how many parameters it has."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(architecture(policy))
    return model, sum(p.numel() for p in model.parameters())


def usage(plan: Plan) -> Usage:
    """The memory of one training step on one GPU: what was counted, and its shards."""
    alike: dict[str, Any] = {"ranks": 1, "engine_share": 0.0, "sleeps": False, "tensor_parallel": 1}
    alike |= {"shards": min(plan.shards, 2), "micro_batches": min(plan.micro_batches, 2)}
    found = at_full_depth(replace(plan, **alike))
    if plan.shards > 1:
        return _under_fsdp2(plan, found)
    return found if plan.zero is None else _under_zero(plan, plan.zero, found)


def at_full_depth(plan: Plan) -> Usage:
    """What is counted; of a known model at two depths, since each group of layers adds the same."""
    if plan.policy not in KNOWN:
        return counted(plan)
    one, two = (vars(counted(plan, groups * GROUP)) for groups in (1, 2))
    more = architecture(plan.policy).num_hidden_layers // GROUP - 2
    return Usage(**{name: size + more * (size - one[name]) for name, size in two.items()})


def _under_zero(plan: Plan, zero: Zero, found: Usage) -> Usage:
    shard = found.parameters / plan.ranks
    # bf16: the gradients added up, those of this micro-batch, and the buffers they are reduced in.
    own = shard if zero.stage == 2 else found.parameters
    buffers = 2 * zero.reduce_bucket_size * (2 if zero.overlap_comm else 1)
    return replace(
        found,
        # fp32 masters and two moments.
        optimizer=0 if zero.offload_optimizer else round(12 * shard),
        gradients=round(2 * 2 * own) + buffers,
        # The shard's gradient as one tensor, and in fp32.
        step=max(found.step, round((2 + 4) * shard)),
    )


def _under_fsdp2(plan: Plan, found: Usage) -> Usage:
    config = architecture(plan.policy)
    outer = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    layer = (found.parameters - outer) / config.num_hidden_layers
    # Whole for a time: embedding and output layer, this layer and the next one, this layer's
    # gradient and what it is sent from.
    whole = (outer + 4 * layer) * found.weights / found.parameters
    return replace(
        found,
        weights=found.weights // plan.shards,
        reference=found.reference // plan.shards,
        optimizer=2 * found.weights // plan.shards,
        gradients=found.weights // plan.shards,
        micro_batch=found.micro_batch + round(whole),
        step=found.step // plan.shards,
    )


@cache
def counted(plan: Plan, layers: int | None = None) -> Usage:
    """The step of a model with all or so many layers, on tensors without data.

    Where it is sharded, optimizer and gradients are left out.
    """
    sharded = plan.zero is not None or plan.shards > 1
    config, batch = architecture(plan.policy), full_batch(plan)
    if layers is not None:
        config.num_hidden_layers, config.layer_types = layers, config.layer_types[:layers]
    with ExitStack() as scope:
        if plan.device == "cuda":
            scope.enter_context(kernels())
        scope.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        model = build(config, plan.precision == "bf16-true")
        reference: Any = None
        if plan.lora is not None:
            rank, names = plan.lora
            # peft moves adapters to where they are, which tensors without data do not allow.
            stay = patch.object(torch.nn.Module, "to", lambda module, *_, **__: module)
            scope.enter_context(stay)
            lora.attach(model, r=rank, alpha=1.0, target_modules=names, seed=0, base=plan.policy)
        if plan.reference and plan.lora is not None:
            reference = lora.AdapterReference(model, follows=plan.reference_follows, seed=0)
        elif plan.reference:
            in_bf16 = plan.precision == "bf16-true" or plan.reference_dtype is not None
            reference = build(config, in_bf16).requires_grad_(False)
        if plan.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        optimizer = None if sharded else ready_optimizer(model)
        micro_batch = backward_pass(plan, model, reference, batch, sharded)
        copied = reference if plan.lora is None else None
        step = optimizer_step(model, copied, optimizer)
        states = [s for one in optimizer.state.values() for s in one.values()] if optimizer else []
        return Usage(
            parameters=sum(p.numel() for p in model.parameters()),
            weights=_bytes(model.parameters()),
            reference=_bytes(copied.parameters()) if copied is not None else 0,
            optimizer=_bytes(states),
            gradients=0 if sharded else _bytes(p for p in model.parameters() if p.requires_grad),
            micro_batch=micro_batch,
            step=step,
        )


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def build(config: Any, in_bf16: bool) -> Any:
    """A model with random weights, in eval mode."""
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    choose_functions(model, "cpu")
    prepare_packing(model)
    return model


def full_batch(plan: Plan) -> TrainBatch:
    """A micro-batch of sequences that are as long as they may be."""
    one = Sample(
        prompt_ids=(1,) * plan.prompt,
        completion_ids=(1,) * plan.completion,
        logprobs=(0.0,) * plan.completion,
        advantage=1.0,
        group_id="",
        policy_version=0,
    )
    return batch_of([one] * plan.sequences, 1.0)


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


def backward_pass(plan: Plan, model: Any, reference: Any, batch: TrainBatch, sharded: bool) -> int:
    """Peak bytes of a micro-batch beyond weights, optimizer and gradients."""
    model.zero_grad()
    if not sharded and plan.micro_batches > 1:
        hold_gradients(model)
    for parameter in model.parameters():  # else each gradient is taken away when it is there
        if sharded and parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_take_gradient)
    with LiveBytes() as live:
        mixed = plan.precision == "bf16-mixed"
        # As Lightning does, which keeps no copies of weights until the forward pass ends.
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed, cache_enabled=False):
            spec = LossSpec(beta=0.08 if plan.reference else 0.0)
            update = policy_update_loss(model, reference, batch, spec)
        update.loss.backward()  # type: ignore[no-untyped-call]
    return int(live.peak)


def _take_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def optimizer_step(model: Any, reference: Any, optimizer: Any) -> int:
    """Peak bytes of clipping, stepping and mixing beyond what is there before."""
    with LiveBytes() as live:
        if optimizer is not None:
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, total_norm(model))
            optimizer.step()
        if reference is not None:
            mix_reference(reference, model, 0.6)
    return int(live.peak)


# --- what CUDA has --------------------------------------------------------------------------------


@contextmanager
def kernels() -> Iterator[None]:
    """A GPU's block size, and flash-linear-attention's kernel, as far as memory is concerned."""
    blocks = {"cpu": linear_logprobs.BLOCK_ELEMENTS["default"]}
    with (
        patch.dict(linear_logprobs.BLOCK_ELEMENTS, blocks),
        patch.object(modeling_qwen3_5, "torch_chunk_gated_delta_rule", gated_delta_rule),
    ):
        yield


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_: Any
) -> tuple[Tensor, None]:
    """The tensors that ``fla.ops.gated_delta_rule.chunk_gated_delta_rule`` makes."""
    return _GatedDeltaRule.apply(query, key, value, g, beta), None  # type: ignore


CHUNK = 64
"""Tokens that flash-linear-attention works on at a time."""


def _between(key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """WY representation, states at the chunks' ends, corrected values."""
    batch, length, heads, width = key.shape
    states = key.new_empty(batch, -(-length // CHUNK), heads, width, value.shape[-1])
    return torch.empty_like(key), torch.empty_like(value), states, torch.empty_like(value)


class _GatedDeltaRule(torch.autograd.Function):
    """fla/ops/gated_delta_rule/chunk.py: what is kept, and what is computed again."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor
    ) -> Tensor:
        normed = torch.empty_like(query), torch.empty_like(key)
        inside = key.new_empty(*key.shape[:3], CHUNK)
        ctx.save_for_backward(*normed, value, torch.empty_like(g), beta, inside)
        between = _between(key, value)
        result = torch.empty_like(value)
        del between
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        query, key, value, g, beta, _ = ctx.saved_tensors
        between = _between(key, value)
        of_states = torch.empty_like(between[2])
        of_values = torch.empty_like(value), torch.empty_like(value)
        of_keys = torch.empty_like(key), torch.empty_like(key)
        found = (torch.empty_like(query), of_keys[0], of_values[0])
        del between, of_states
        return *found, torch.empty_like(g), torch.empty_like(beta)
