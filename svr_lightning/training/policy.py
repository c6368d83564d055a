"""The policy: loading it, its kernels, and its fingerprint.

A policy is a folder, a hub id, the embedded checkpoint, or a tiny model with random weights.
"""

import functools
import hashlib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from packaging.version import Version
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.integrations import hub_kernels
from transformers.integrations.liger import apply_liger_kernel

from svr_lightning.core.prompts import first_turn_messages, refinement_messages
from svr_lightning.core.types import Message, Problem, Verdict
from svr_lightning.display import name_some
from svr_lightning.engines import lora
from svr_lightning.engines.vllm_weights import VISION
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.files import LFS_POINTER, is_lfs_pointer
from svr_lightning.rollout.rendering import Renderer, end_of_turn
from svr_lightning.tasks import get_task
from svr_lightning.training.config import LoRAConfig, PolicyConfig
from svr_lightning.training.sources import COUNTDOWN_TINY, EMBEDDED

RANDOM_HYBRID = "random:qwen3_5"

_SCORE_SHAPING = (
    "final_logit_softcapping",
    "lm_head_multiplier",
    "logit_scale",
    "logits_scaling",
    "output_multiplier",
)
"""Changes of the output layer's scores, as configurations of some architectures name them."""

LIGER_MODELS = ("qwen3", "qwen3_5_text")
"""Architectures whose RMSNorm and SwiGLU (and, for Qwen3, rotary embedding) liger-kernel replaces
by the same functions, as its source says."""
SMALL = 10_000_000
"""Parameters of a model that computes faster on one thread of a CPU than on several."""
SAFE_TRITON = Version("3.7.1")
"""First release since 3.4 whose gradients of gated linear attention are right on Hopper."""


def load_policy(
    config: PolicyConfig, seed: int, device: str = "cpu", *, trains: bool = True
) -> tuple[Any, Renderer]:
    """What :func:`read_policy` and :func:`prepare_policy` do: a model and its renderer."""
    model, renderer = read_policy(config, seed)
    prepare_policy(model, config, seed, device, trains=trains)
    return model, renderer


def read_policy(config: PolicyConfig, seed: int) -> tuple[Any, Renderer]:
    """A model with fp32 weights on the CPU, and what renders its prompts, with its tokenizer.

    Raises:
        ConfigError: if the checkpoint cannot be found or read, lacks a weight or a chat template,
            its context is too short, or the loss does not support its architecture.
    """
    source = _source(config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=config.revision, trust_remote_code=False
        )
    except Exception as error:
        raise ConfigError(_unreadable("tokenizer", source, error)) from error
    if config.path == RANDOM_HYBRID:
        model = _random_hybrid(len(tokenizer), tokenizer.eos_token_id, seed, config.max_model_len)
    else:
        model = _read_model(source, config)
    _check(model, config)
    require(
        len(tokenizer) > len(tokenizer.all_special_tokens),
        f"model.policy.path={config.path!r}: its tokenizer has no tokens for text; put the model's "
        "own tokenizer into the folder",
    )
    renderer = Renderer(
        tokenizer,
        max_prompt_tokens=config.max_prompt_tokens,
        max_model_len=config.max_model_len,
        chat_template_kwargs=config.chat_template_kwargs,
        vocabulary=model.get_input_embeddings().weight.shape[0],
    )
    for messages in _example_prompts():
        renderer.encode(messages)  # refuses tokens that the model lacks
    return model, renderer


def prepare_policy(
    model: Any, config: PolicyConfig, seed: int, device: str, *, trains: bool
) -> None:
    """Select kernels for a ``device`` of this type, and what trains."""
    freeze_vision(model)
    use_kernels(model, device, trains=trains)
    if config.lora is not None:
        lora.attach(model, **asdict(config.lora), seed=seed, base=config.path)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()  # Layers recompute in training mode only; Lightning keeps the mode.


def stop_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a turn: what model and tokenizer declare, and the template's own."""
    declared = getattr(model, "generation_config", None)
    eos = getattr(declared, "eos_token_id", None)
    ids = {*(eos if isinstance(eos, list | tuple) else [eos])}
    ids |= {tokenizer.eos_token_id, *end_of_turn(tokenizer).values()}
    return tuple(sorted(i for i in ids if i is not None))


def freeze_vision(model: Any) -> None:
    """Exclude a multimodal checkpoint's vision tower and aligner from training."""
    for name, parameter in model.named_parameters():
        if any(part in VISION for part in name.split(".")):
            parameter.requires_grad_(False)


def _source(config: PolicyConfig) -> str:
    """The folder or the name on the hub that transformers loads from."""
    source = COUNTDOWN_TINY if config.path == RANDOM_HYBRID else config.path
    if source.startswith("embedded:"):
        known = ", ".join([*EMBEDDED, RANDOM_HYBRID])
        require(source in EMBEDDED, f"model.policy.path={source!r} is not built in; known: {known}")
        return str(files("svr_lightning.tiny") / f"{EMBEDDED[source]}_policy")
    require(
        Path(source).is_dir() or not (source.startswith((".", "/", "~")) or source.count("/") > 1),
        f"model.policy.path={source!r} is not a folder; give a checkpoint folder or a hub id",
    )
    require(
        not (Path(source) / "adapter_config.json").is_file(),
        f"model.policy.path={source!r} is an adapter without its base model; give the merged "
        "policy/ beside it",
    )
    return source


def _read_model(source: str, config: PolicyConfig) -> Any:
    try:
        # Lightning calls this with its device as the default one, for which transformers would
        # need a further package.
        with torch.device("cpu"):
            model, found = AutoModelForCausalLM.from_pretrained(
                source,
                revision=config.revision,
                dtype=torch.float32,
                attn_implementation=config.attn_implementation,
                output_loading_info=True,
                trust_remote_code=False,
            )
    except Exception as error:
        raise ConfigError(_unreadable("model", source, error)) from error
    # transformers would draw weights that are missing at random.
    absent, other = sorted(found["missing_keys"]), sorted(found["unexpected_keys"])
    instead = f"; it has others, such as {one_line(other[0])}" if other else ""
    require(
        not absent,
        f"model.policy.path={source!r}: the checkpoint lacks {len(absent)} of the model's weights "
        f"({name_some(absent, 3)}){instead}. Save it again with all weights under "
        "the names that transformers gives them",
    )
    require_finite(model.state_dict(), f"model.policy.path={source!r}")
    return model


def require_finite(weights: Mapping[str, Tensor], place: str) -> None:
    """Refuse weights of ``place`` that are NaN or infinite: whatever they compute is nothing."""
    for name, weight in weights.items():
        if weight.is_floating_point() and weight.numel():
            low, high = torch.aminmax(weight)  # a NaN is both
            require(
                math.isfinite(low) and math.isfinite(high),
                f"{place}: the weight {one_line(name)} holds NaN or infinite values; the training "
                "that saved it went wrong, or a conversion did: take another checkpoint",
            )


def _unreadable(what: str, source: str, error: Exception) -> str:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    if pointers := [path for path in Path(source).glob("*") if is_lfs_pointer(path)]:
        return f"model.policy.path={source!r}: {LFS_POINTER.format(file=pointers[0].name)}"
    if "trust_remote_code" in str(error):
        return (
            f"model.policy.path={source!r}: the {what} needs Python code in its own folder "
            "(auto_map), which is never run; use an architecture of transformers"
        )
    cure = "download it again" if Path(source).exists() else "check the spelling and the network"
    return f"model.policy.path={source!r}: the {what} cannot be read ({reason[0]}); {cure}"


def _check(model: Any, config: PolicyConfig) -> None:
    """Refuse a model whose scores the loss, or this run, would not compute correctly."""
    text_config = model.config.get_text_config()
    context = getattr(text_config, "max_position_embeddings", None)
    require(
        context is None or context >= config.max_model_len,
        f"model.policy.max_model_len={config.max_model_len} exceeds the {context} positions of "
        f"{config.path!r}; lower it to at most {context}",
    )
    # The loss applies the output layer itself, to the positions that it needs, and no more.
    for name in _SCORE_SHAPING:
        value = getattr(text_config, name, None)
        require(
            value in (None, 1),
            f"model.policy.path={config.path!r}: its scores are changed after the output layer "
            f"({name}={value}), which the loss does not do; use another architecture",
        )
    # Training mode would enable dropout: another policy than the one that sampled.
    for name, value in text_config.to_dict().items() if config.gradient_checkpointing else ():
        require(
            not (value and ("dropout" in name or name.endswith("pdrop"))),
            f"model.policy.gradient_checkpointing: {config.path!r} has {name}={value}, and the "
            "loss needs the policy without dropout; set it to 0 in the model's config.json",
        )


def _example_prompts() -> list[list[Message]]:
    """A first and a second prompt of SVR."""
    task = get_task("math")
    problem = Problem(id="", task="math", question="What is 1+1?", reference="2")
    second = refinement_messages(
        task,
        problem,
        previous=_COMPLETION,
        verdict=Verdict.CORRECT,
        confidence=0.5,
        truncated=False,
        turn=2,
    )
    return [first_turn_messages(task, problem), second]


_COMPLETION = "<think>1+1=2</think> <answer>2</answer> <self_check>VERDICT: CORRECT</self_check>"


def _random_hybrid(vocab: int, eos: int, seed: int, context: int) -> Any:
    """A Qwen3.5 text model of the smallest useful size, to test a configuration on a CPU."""
    config = Qwen3_5TextConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        eos_token_id=eos,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3_5ForCausalLM(config)


def use_kernels(model: Any, device: str, *, trains: bool = True) -> None:
    """On CUDA, patch the model in place with the kernels that are installed for it.

    For this process it also chooses what attention computes with, and a small model's one thread.
    Elsewhere it computes in torch, whatever kernels are installed.

    Args:
        model: a transformers causal language model.
        device: the type that will run it.
        trains: whether slow kernels are refused; else they are warned of, since with vLLM the
            model computes nothing.

    Raises:
        ConfigError: if a training would be slow or wrong.
    """
    if device != "cuda":
        _compute_in_torch(model)
        if "OMP_NUM_THREADS" not in os.environ and model.num_parameters() < SMALL:
            torch.set_num_threads(1)  # more of them wait for each other longer than they compute
        return
    # cuDNN builds a plan for each new shape, and every micro-batch has another one.
    torch.backends.cuda.enable_cudnn_sdp(False)
    config = model.config.get_text_config()
    installed = find_spec("liger_kernel") is not None and find_spec("triton") is not None
    if installed and config.model_type in LIGER_MODELS:
        # Its fused losses would replace the model's forward, which the engine needs for scores.
        apply_liger_kernel(model, {"fused_linear_cross_entropy": False, "cross_entropy": False})
    if "linear_attention" in (getattr(config, "layer_types", None) or ()):
        _choose_linear_attention(trains=trains)


def _compute_in_torch(model: Any) -> None:
    """Let linear attention and convolutions of tensors on a CPU compute in torch.

    When transformers is imported it binds the kernels of the packages that are installed (fla,
    causal_conv1d, mamba_ssm), which run on a GPU only.
    """
    for module in {sys.modules[type(layer).__module__] for layer in model.modules()}:
        for name, function in list(vars(module).items()):
            # Within its wrappers stands the same computation in torch.
            binding = getattr(function, "__globals__", {}).get("__name__")
            if binding == hub_kernels.__name__ and hasattr(function, "__wrapped__"):
                setattr(module, name, _kernel_on_cuda(function))


def _kernel_on_cuda(kernel: Any) -> Any:
    """A function that calls ``kernel`` for a tensor on a GPU, else what it stands for in torch."""

    @functools.wraps(kernel)
    def compute(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        function = kernel if tensor.is_cuda else kernel.__wrapped__
        return function(tensor, *args, **kwargs)

    return compute


def _choose_linear_attention(*, trains: bool) -> None:
    """Refuse what would compute linear attention slowly, or with wrong gradients."""
    if find_spec("fla") is None:
        fault = (
            "linear attention: without flash-linear-attention transformers runs a Python loop, "
            "more than ten times slower than a kernel; pip install 'svr-lightning[kernels]'"
        )
        require(not trains, fault)
        rank_zero_warn(fault)
        return
    release, hopper = Version(version("triton")), torch.cuda.get_device_capability()[0] == 9
    # The bounds of flash-linear-attention, whose backward pass would raise.
    require(
        not (trains and hopper and Version("3.4") <= release < SAFE_TRITON),
        f"linear attention: Triton {release} computes wrong gradients of it on this GPU "
        "(Hopper); install torch 2.13, which brings 3.7.1",
    )
    if release >= SAFE_TRITON:
        # On Hopper it would compile a kernel of TileLang for each batch size, for half a minute.
        os.environ.setdefault("FLA_TILELANG", "0")


PROBE = 4096
"""Elements that are read of each tensor."""


def probe(tensor: Tensor) -> Tensor:
    """Some evenly spaced elements, at least :data:`PROBE` if there are as many.

    They distinguish policies: an optimizer step, a mix or another seed changes almost every one.
    """
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // PROBE)]


def weights_fingerprint(state: Mapping[str, Tensor]) -> str:
    """A sha256 over names, types, shapes and a :func:`probe` of every tensor of ``state``."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(probe(tensor).contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def adapter_facts(policy: Any, config: LoRAConfig | None) -> dict[str, Any]:
    """What must not change for adapters: their settings, and the fingerprint of their base model.

    Empty without adapters.
    """
    if config is None:
        return {}
    base = weights_fingerprint(lora.base_of(policy.state_dict()))
    return {"lora": asdict(config), "base": base}
