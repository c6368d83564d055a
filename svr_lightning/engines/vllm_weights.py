"""Copies all weights of a policy to the vLLM model of the same process.

There is one way in, vLLM's layerwise reload: it accepts weights as a checkpoint names them, fuses
and packs them as at start-up, and copies the result into the tensors that kernels and graphs
already refer to. It must be given the weights: otherwise it would read a checkpoint from disk.

:func:`routes` matches the weights of both by name. Engines fuse projections (query, key and value
become one matrix) and wrap the text decoder of a multimodal class. A weight without a counterpart
on the other side would give a model that runs but is wrong, so it is an error.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from svr_lightning.engines.lora import acting_weights
from svr_lightning.errors import ConfigError

Weights = Iterable[tuple[str, Callable[[], Tensor]]]
"""By name, and read one at a time: a merged weight is temporary."""


def is_tied(policy: Any) -> bool:
    """Whether the output layer is the embedding, determined from the weights."""
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
        RuntimeError: if vLLM's loader ignores a weight that it was given.
    """
    if is_tied(policy) != tied:
        # A tied engine has one weight for both.
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
    acting = {weight.name: weight.read for weight in acting_weights(policy)}
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": acting.items()})
    if tied:
        llm.apply_model(_refresh_tied_head)


def _load_all(
    model: Any, stock: Any, weights: dict[str, Callable[[], Tensor]], tied: bool
) -> set[str]:
    parameters = dict(model.named_parameters())
    fused = getattr(model, "packed_modules_mapping", None) or {}
    found = routes(list(weights), parameters, fused, tied=tied)
    loaded = stock(
        (route.checkpoint, weights[route.policy]().to(parameters[route.engine].dtype))
        for route in found
    )
    ignored = {route.engine for route in found} - set(loaded or ())
    if loaded is not None and ignored:
        raise RuntimeError(f"vLLM did not load {', '.join(sorted(ignored))}")
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


# --- names --------------------------------------------------------------------------------------

DECODER = "language_model"
"""Path component that wraps the text decoder in conditional-generation classes."""
VISION = ("visual", "vision_tower", "multi_modal_projector", "aligner")
"""Path components of modules that a text policy does not have."""
_SHOWN = 5


class Route(NamedTuple):
    """One weight's way into the engine: the names in the policy, for its loader, in the engine."""

    policy: str
    checkpoint: str
    engine: str


def routes(
    policy: Sequence[str],
    engine: Collection[str],
    fused: Mapping[str, Sequence[str]],
    *,
    tied: bool,
) -> list[Route]:
    """Match the weights of a policy with those of an engine.

    Args:
        policy: names of the policy's weights; those of a vision tower are left out.
        engine: names of the engine's weights.
        fused: modules that the engine makes of several, ``{"qkv_proj": ["q_proj", ...]}``.
        tied: the policy's output layer is its embedding, so the engine's needs no weight.

    Raises:
        ConfigError: naming the weights that find no place, or get none.

    Examples:
        >>> [(way.policy, way.engine)
        ...  for way in routes(["a.k", "a.v", "b"], ["a.kv", "b"], {"kv": ["k", "v"]}, tied=False)]
        [('a.k', 'a.kv'), ('a.v', 'a.kv'), ('b', 'b')]
    """
    wrapped = any(DECODER in name.split(".") for name in engine)
    targets = {_plain(name): name for name in engine}
    whole = {part: module for module, parts in fused.items() for part in parts}
    found: list[Route] = []
    unmatched: list[str] = []
    for name in policy:
        if is_vision(name):
            continue
        plain = _plain(name)
        merged = ".".join(whole.get(part, part) for part in plain.split("."))
        target = next((name for name in (plain, merged) if name in targets), None)
        if target is None:
            unmatched.append(name)
        else:
            found.append(Route(name, wrap(name) if wrapped else plain, targets[target]))
    if unmatched:
        raise ConfigError(f"engine: it has no place for the policy's {_listed(unmatched)}; {_HINT}")
    brought = {_plain(route.policy) for route in found}
    empty = [
        name
        for plain, name in targets.items()
        if not (tied and plain.endswith("lm_head.weight"))
        if not set(_parts(plain, fused)) <= brought and plain not in brought
    ]
    if empty:
        raise ConfigError(f"engine: the policy has no weights for its {_listed(empty)}; {_HINT}")
    return found


_HINT = "serve this model with the transformers engine"


def _plain(name: str) -> str:
    """The name in a text-only model."""
    return ".".join(part for part in name.split(".") if part != DECODER)


def is_vision(name: str) -> bool:
    """Whether a weight belongs to a vision tower."""
    return any(part in VISION for part in name.split("."))


def wrap(name: str) -> str:
    """A checkpoint's name of a decoder weight in a conditional-generation class."""
    prefix, plain = "model.", _plain(name)
    return f"{prefix}{DECODER}.{plain[len(prefix) :]}" if plain.startswith(prefix) else plain


def _parts(plain: str, fused: Mapping[str, Sequence[str]]) -> list[str]:
    """The policy weights of an engine weight: itself, or those that are fused in it."""
    components = plain.split(".")
    for index, component in enumerate(components):
        if component in fused:
            return [
                ".".join([*components[:index], part, *components[index + 1 :]])
                for part in fused[component]
            ]
    return [plain]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
