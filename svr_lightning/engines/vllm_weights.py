"""Copies all weights of a policy to the vLLM model of the same process.

There is one way in, vLLM's layerwise reload: it accepts weights as a checkpoint names them, fuses
and packs them as at start-up, and copies the result into the tensors that kernels and graphs
already refer to. It must be given the weights: otherwise it would read a checkpoint from disk.

Engines fuse projections (query, key and value become one matrix) and wrap the text decoder of a
multimodal class. A weight without a counterpart on the other side would give a model that runs but
is wrong, so :func:`check_names` refuses it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from svr_lightning.display import join_first
from svr_lightning.engines.acting_weights import acting_weights
from svr_lightning.errors import ConfigError, require

DECODER = "language_model"
"""Path component that wraps the text decoder in conditional-generation classes."""
VISION = ("visual", "vision_tower", "multi_modal_projector", "aligner")
"""Path components of modules that a text policy does not have."""


def is_tied(policy: Any) -> bool:
    """Whether the output layer is the embedding, determined from the weights."""
    return policy.get_output_embeddings().weight is policy.get_input_embeddings().weight


def is_vision(name: str) -> bool:
    """Whether a weight belongs to a vision tower."""
    return any(part in VISION for part in name.split("."))


@torch.no_grad()
def load_weights(llm: Any, policy: Any, *, tied: bool) -> None:
    """Make ``llm`` serve exactly the weights of ``policy``.

    Args:
        llm: a ``vllm.LLM`` whose model lives in this process.
        policy: a transformers causal language model, whole on this process.
        tied: whether the engine was built for tied embeddings.

    Raises:
        ConfigError: if a weight has no counterpart in the engine, or the reverse.
        RuntimeError: if vLLM's loader ignores a weight that it was given.
    """
    # A tied engine has one weight for both.
    require(
        is_tied(policy) == tied,
        "engine: the policy's embeddings were tied or untied after its start",
    )

    def intercept(model: Any) -> None:
        stock = model.load_weights

        def load(weights: Iterable[tuple[str, Callable[[], Tensor]]]) -> set[str]:
            # Only now, within the reload, does the model list all of its weights by name: those
            # that a platform packs are gone from it at any other time.
            del model.load_weights
            return _load_all(model, stock, dict(weights), tied)

        model.load_weights = load

    llm.apply_model(intercept)
    # Each is read when its turn comes: a merged weight is temporary.
    acting = {weight.name: weight.read for weight in acting_weights(policy)}
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": acting.items()})
    if tied:
        llm.apply_model(_refresh_tied_head)


def _load_all(
    model: Any, stock: Any, weights: dict[str, Callable[[], Tensor]], tied: bool
) -> set[str]:
    engine = [name for name, _ in model.named_parameters()]
    fused = getattr(model, "packed_modules_mapping", None) or {}
    text = {name: read for name, read in weights.items() if not is_vision(name)}
    expected = check_names(text, engine, fused, tied=tied)
    name_of = wrap if any(DECODER in name.split(".") for name in engine) else _plain
    loaded: set[str] | None = stock((name_of(name), read()) for name, read in text.items())
    if loaded is not None and not expected <= loaded:
        raise RuntimeError(f"vLLM did not load {', '.join(sorted(expected - loaded))}")
    return loaded or set()


def _refresh_tied_head(model: Any) -> None:
    """On a CPU the output layer is a packed copy of the embedding: pack the new one."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


# --- names --------------------------------------------------------------------------------------


def check_names(
    policy: Collection[str],
    engine: Iterable[str],
    fused: Mapping[str, Sequence[str]],
    *,
    tied: bool,
) -> set[str]:
    """Names of the engine's weights that the policy's make up.

    Args:
        policy: names of the policy's weights, without those of a vision tower.
        engine: names of the engine's weights.
        fused: modules that the engine makes of several, ``{"qkv_proj": ["q_proj", ...]}``.
        tied: the policy's output layer is its embedding, so the engine's needs no weight.

    Raises:
        ConfigError: naming weights without a counterpart on the other side.

    Examples:
        >>> sorted(check_names(["a.k", "a.v", "b"], ["a.kv", "b"], {"kv": ["k", "v"]}, tied=False))
        ['a.kv', 'b']
    """
    plain = {_plain(name): name for name in policy}
    used: set[str] = set()
    filled: set[str] = set()
    empty = []
    for name in engine:
        short = _plain(name)
        parts = {short} if short in plain else _parts(short, fused)
        used |= parts & plain.keys()
        if parts <= plain.keys():
            filled.add(name)
        elif not (tied and short.endswith("lm_head.weight")):
            empty.append(name)
    unmatched = [name for short, name in plain.items() if short not in used]
    for fault, names in (("no place for the policy's", unmatched), ("no weights for its", empty)):
        if names:
            raise ConfigError(
                f"engine: {fault} {join_first(names, 5)}; serve this model with the transformers "
                "engine"
            )
    return filled


def _parts(plain: str, fused: Mapping[str, Sequence[str]]) -> set[str]:
    """The policy weights of an engine weight: itself, or those that are fused in it."""
    path = plain.split(".")
    for index, component in enumerate(path):
        if component in fused:
            return {
                ".".join([*path[:index], part, *path[index + 1 :]]) for part in fused[component]
            }
    return {plain}


def _plain(name: str) -> str:
    """The name in a text-only model."""
    return ".".join(part for part in name.split(".") if part != DECODER)


def wrap(name: str) -> str:
    """A checkpoint's name of a decoder weight in a conditional-generation class."""
    prefix, plain = "model.", _plain(name)
    return f"{prefix}{DECODER}.{plain[len(prefix) :]}" if plain.startswith(prefix) else plain
