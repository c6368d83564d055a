"""LoRA, by peft: low-rank adapters beside the frozen weights of a policy.

An adapted matrix W of the policy acts as ``W + (alpha / r) B A``, of which only A [r, in] and
B [out, r] train, and B begins at 0. Other files see a transformers model of the same class; those
that load, save, serve or mix its weights call this one. peft is imported only for an adapter.
"""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from svr_lightning.errors import ConfigError, one_line, require

POLICY = "default"
"""Name of the adapter that trains; peft's own, so that an export is a usual one."""
REFERENCE = "reference"
"""Name of the adapter of a reference that follows."""
REFERENCE_RANKS = 2
"""Rank of the reference's adapter, in ranks of the policy's."""


def attach(
    model: Any, *, r: int, alpha: float, target_modules: str | Sequence[str], seed: int, base: str
) -> None:
    """Put a new adapter into ``model`` in place, and freeze all other weights.

    Linear layers that do not train, such as those of a vision tower, get none.

    Args:
        model: a transformers causal language model.
        r: rank.
        alpha: B A is scaled by ``alpha / r``.
        target_modules: ``all-linear``, a regular expression of whole names, or ends of names.
        seed: of the initial A.
        base: what an exported adapter names as its model.

    Raises:
        ConfigError: where peft is missing, nothing matches, or an adapter would have no effect.
    """
    require(
        find_spec("peft") is not None,
        "model.policy.lora: peft is not installed; pip install 'svr-lightning[lora]'",
    )
    from peft import LoraConfig

    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    full = max((min(layer.weight.shape) for layer in linear.values()), default=0)
    require(
        r <= full,
        f"model.policy.lora.r={r} is above {full}, the rank that a matrix of this model can have",
    )
    config = LoraConfig(
        r=r,
        lora_alpha=alpha,
        target_modules=target_modules if isinstance(target_modules, str) else [*target_modules],
        exclude_modules=[n for n, m in linear.items() if not m.weight.requires_grad] or None,
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )
    _inject(model, config, POLICY, seed)
    # The loss applies the output layer itself, and kernels read convolutions themselves.
    odd = [name for name in _layers(model) if name not in linear]
    head = model.get_output_embeddings()
    odd += [name for name, layer in _layers(model).items() if layer is head]
    require(
        not odd,
        f"model.policy.lora.target_modules: an adapter on {', '.join(odd[:3])} would not act; "
        "name linear layers other than the output layer, or leave it at all-linear",
    )


def is_adapted(model: Any) -> bool:
    """Whether ``model`` has an adapter."""
    return hasattr(model, "peft_config")


def _inject(model: Any, config: Any, name: str, seed: int) -> None:
    from peft import inject_adapter_in_model
    from peft.functional import set_adapter

    # Lightning loads models under its device; the draw is the same on all.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # two are meant
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model, name)
        except (ValueError, re.error) as error:
            raise ConfigError(
                f"model.policy.lora.target_modules: peft refuses them ({one_line(error)})"
            ) from error
    set_adapter(model, POLICY)


def _layers(model: Any) -> dict[str, Any]:
    """The adapted layers by name."""
    from peft.tuners.lora import LoraLayer

    return {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}


# --- what is served, saved and exported ---------------------------------------------------------


class Weight(NamedTuple):
    """One effective weight of the model, adapter included."""

    name: str
    """As in the model without an adapter."""
    read: Callable[[], Tensor]
    """Computes it, in fp32 and in new memory if it has an adapter."""
    trains: bool


def acting_weights(model: Any) -> Iterator[Weight]:
    """Every weight of ``model`` with its adapter merged, one at a time and only when it is read."""
    layers = _layers(model) if is_adapted(model) else {}
    for name, parameter in model.named_parameters():
        owner, _, kind = name.rpartition(".base_layer.")
        if owner in layers and kind == "weight":
            yield Weight(f"{owner}.{kind}", partial(_merged, layers[owner]), True)
        elif not _is_adapter(name):
            plain = name.replace(".base_layer.", ".")
            yield Weight(plain, parameter.detach, parameter.requires_grad)


@torch.no_grad()
def _merged(layer: Any) -> Tensor:
    merged: Tensor = layer.base_layer.weight + layer.get_delta_weight(POLICY)
    return merged


def _is_adapter(name: str) -> bool:
    return not {"lora_A", "lora_B"}.isdisjoint(name.split("."))


def adapters_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a state dict that belongs to adapters."""
    return {name: value for name, value in state.items() if _is_adapter(name)}


def base_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a state dict that belongs to the frozen model."""
    return {name: value for name, value in state.items() if not _is_adapter(name)}


def save_adapter(model: Any, folder: Path) -> None:
    """Write the policy's adapter as peft and vLLM read it."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    state = get_peft_model_state_dict(model, adapter_name=POLICY, save_embedding_layers=False)
    tensors = {f"base_model.model.{k}": v.contiguous().cpu() for k, v in state.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    model.peft_config[POLICY].save_pretrained(folder)


# --- the reference ------------------------------------------------------------------------------


class AdapterReference:
    """The reference of an adapted policy: the same weights without, or with another, adapter.

    Replaces a model in the loss. Without ``follows`` it stays the base model.

    Args:
        policy: an adapted model.
        follows: whether :meth:`follow` will be called.
        seed: of the initial first factor of an adapter.
    """

    def __init__(self, policy: Any, *, follows: bool, seed: int) -> None:
        self._policy = policy
        self._follows = follows
        if follows and REFERENCE not in policy.peft_config:
            of_policy = policy.peft_config[POLICY]
            rank = REFERENCE_RANKS * of_policy.r
            config = replace(of_policy, r=rank, lora_alpha=rank)
            _inject(policy, config, REFERENCE, seed)

    def base_model(self, **inputs: Any) -> Any:
        """The hidden states of the reference."""
        with self._acting():
            return self._policy.base_model(**inputs)

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the policy's: its configuration, its output layer."""
        return getattr(self._policy, name)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        layers = _layers(self._policy).values()
        for layer in layers:
            if self._follows:
                layer.set_adapter(REFERENCE, inference_mode=True)
            else:
                layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in layers:
                layer.set_adapter(POLICY)
                layer.enable_adapters(True)

    @torch.no_grad()
    def follow(self, mix: float) -> float:
        """Mix the policy's deltas into the reference's: D_ref = (1 - mix) D_ref + mix D_policy.

        The sum of two products of low rank is the product of their concatenated factors. It is
        exact while its rank fits into the reference's adapter, as for the first
        :data:`REFERENCE_RANKS` mixes; then it becomes the nearest matrix of that rank (SVD).

        Returns:
            The lost part, as a share of the exact mix: Frobenius norms over all layers.
        """
        lost = whole = 0.0
        for layer in _layers(self._policy).values():
            a, b = layer.lora_A[REFERENCE].weight, layer.lora_B[REFERENCE].weight
            share = mix * layer.scaling[POLICY]
            left = torch.cat([(1.0 - mix) * b, share * layer.lora_B[POLICY].weight], dim=1)
            u, s, v = _svd_of_product(left, torch.cat([a, layer.lora_A[POLICY].weight]))
            rank = min(len(a), len(s))
            a.zero_()[:rank] = v[:rank]
            b.zero_()[:, :rank] = u[:, :rank] * s[:rank]
            lost += float(s[rank:].square().sum())
            whole += float(s.square().sum())
        return math.sqrt(lost / whole) if whole else 0.0


def _svd_of_product(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values of ``left @ right``, a thin times a flat matrix, without the product."""
    thin, small_left = torch.linalg.qr(left)
    flat, small_right = torch.linalg.qr(right.T)
    u, s, v = torch.linalg.svd(small_left @ small_right.T)
    return thin @ u[:, : len(s)], s, v[: len(s)] @ flat.T
