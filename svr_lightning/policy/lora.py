"""LoRA, by peft: low-rank adapters beside the frozen weights of a policy.

An adapted matrix W of the policy acts as ``W + (alpha / r) B A``, of which only A [r, in] and
B [out, r] train, and B starts at 0. Other files see a transformers model of the same class; those
that load, save or serve its weights call this one. peft is imported only for an adapter.
"""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from svr_lightning.engines.acting_weights import ADAPTER, adapted_layers
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.policy.config import LoRAConfig


def attach(model: Any, settings: LoRAConfig, *, seed: int, base: str) -> None:
    """Put a new adapter into ``model`` in place, and freeze all other weights.

    Linear layers that do not train, such as those of a vision tower, get none.

    Args:
        model: a transformers causal language model.
        settings: rank, scale, and which layers get one.
        seed: of the initial A.
        base: what an exported adapter names as its model.

    Raises:
        ConfigError: if nothing matches, or an adapter would have no effect.
    """
    from peft import LoraConfig, inject_adapter_in_model

    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        target_modules=settings.target_modules,
        exclude_modules=[n for n, m in linear.items() if not m.weight.requires_grad] or None,
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )
    # Lightning loads models under its device; the draw is the same on all.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model, ADAPTER)
        except (ValueError, re.error) as error:
            raise ConfigError(
                f"model.policy.lora.target_modules: peft refuses them ({one_line(error)})"
            ) from error
    # The loss applies the output layer itself, and kernels read convolutions themselves.
    head, layers = model.get_output_embeddings(), adapted_layers(model)
    odd = [name for name, layer in layers.items() if name not in linear or layer is head]
    require(
        not odd,
        f"model.policy.lora.target_modules: an adapter on {', '.join(odd[:3])} would have no "
        "effect; name linear layers other than the output layer, or leave it at all-linear",
    )


def save_adapter(model: Any, folder: Path) -> None:
    """Write the policy's adapter as peft and vLLM read it."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    state = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    tensors = {f"base_model.model.{k}": v.contiguous().cpu() for k, v in state.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    model.peft_config[ADAPTER].save_pretrained(folder)


# --- the reference ------------------------------------------------------------------------------


class AdapterReference:
    """The reference of an adapted policy: the base model, which is the policy without its adapter.

    Replaces a model in the loss.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def base_model(self, **inputs: Any) -> Any:
        """The hidden states of the reference."""
        layers = adapted_layers(self._policy).values()
        for layer in layers:
            layer.enable_adapters(False)
        try:
            return self._policy.base_model(**inputs)
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the policy's: its configuration, its output layer."""
        return getattr(self._policy, name)
