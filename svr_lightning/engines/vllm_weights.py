"""Copies all weights of a policy to the vLLM model of the same process.

There is one way in, vLLM's layerwise reload: it accepts weights as a checkpoint names them, fuses
and packs them as at start-up, and copies the result into the tensors that kernels and graphs
already refer to. It has to be given its weights: without, it would read a checkpoint from disk.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from svr_lightning.engines.weight_names import routes
from svr_lightning.errors import ConfigError

Weights = Iterable[tuple[str, Tensor]]


def is_tied(policy: Any) -> bool:
    """Whether the output layer is the embedding, judged by the weights themselves."""
    return policy.get_output_embeddings().weight is policy.get_input_embeddings().weight


@torch.no_grad()
def load_weights(llm: Any, policy: Any, *, tied: bool) -> None:
    """Make ``llm`` serve exactly the weights of ``policy``.

    Args:
        llm: a ``vllm.LLM`` whose model lives in this process.
        policy: a transformers causal language model, whole on this process.
        tied: whether the engine was built for tied embeddings.

    Raises:
        ConfigError: if a weight finds no place in the engine, or the engine has a weight that
            gets none.
        RuntimeError: if vLLM's loader passes over a weight that it was given.
    """
    if is_tied(policy) != tied:
        # Both would end up in the one place that a tied engine has.
        raise ConfigError("engine: the policy's embeddings were tied or untied after it started")

    def intercept(model: Any) -> None:
        stock = model.load_weights

        def load(weights: Weights) -> set[str]:
            # Only now, within the reload, does the model list all of its weights by name: those
            # that a platform packs are gone from it at any other time.
            del model.load_weights
            return _load_all(model, stock, dict(weights), tied)

        model.load_weights = load

    llm.apply_model(intercept)
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": policy.named_parameters()})
    if tied:
        llm.apply_model(_refresh_tied_head)


def _load_all(model: Any, stock: Any, weights: dict[str, Tensor], tied: bool) -> set[str]:
    places = dict(model.named_parameters())
    fused = getattr(model, "packed_modules_mapping", None) or {}
    ways = routes(list(weights), places, fused, tied=tied)
    loaded = stock(
        (way.checkpoint, weights[way.policy].detach().to(places[way.engine].dtype)) for way in ways
    )
    passed_over = {way.engine for way in ways} - set(loaded or ())
    if loaded is not None and passed_over:
        raise RuntimeError(f"vLLM did not load {', '.join(sorted(passed_over))}")
    return set(loaded or ())


def _refresh_tied_head(model: Any) -> None:
    """On a CPU the output layer is a packed copy of the embedding: pack the new one."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
