"""Reading a policy's files.

A policy is a folder, a hub id, the embedded checkpoint, or a tiny model with random weights.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from svr_lightning.core.prompts import first_turn_messages, refinement_messages
from svr_lightning.core.types import Message, Problem, Verdict
from svr_lightning.display import join_first
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.files import LFS_POINTER, is_lfs_pointer
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.weights import require_finite
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.tasks import get_task
from svr_lightning.tiny import COUNTDOWN_TINY, EMBEDDED

RANDOM_HYBRID = "random:qwen3_5"

_SCORE_SHAPING = (
    "final_logit_softcapping",
    "lm_head_multiplier",
    "logit_scale",
    "logits_scaling",
    "output_multiplier",
)
"""What some architectures do to the output layer's scores, by the names in their configurations."""


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


def _source(config: PolicyConfig) -> str:
    """The folder or the name on the hub that transformers loads from."""
    source = COUNTDOWN_TINY if config.path == RANDOM_HYBRID else config.path
    if source.startswith("embedded:"):
        names = ", ".join([*EMBEDDED, RANDOM_HYBRID])
        require(source in EMBEDDED, f"model.policy.path={source!r} is not built in; known: {names}")
        return str(files("svr_lightning.tiny") / f"{EMBEDDED[source]}_policy")
    require(
        Path(source).is_dir()
        or (source.count("/") == 1 and not source.startswith((".", "/", "~"))),
        f"model.policy.path={source!r} is not a folder; give a checkpoint folder or a hub id "
        "OWNER/NAME",
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
            model, report = AutoModelForCausalLM.from_pretrained(
                source,
                revision=config.revision,
                dtype=torch.float32,
                attn_implementation=config.attn_implementation,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are named below
                trust_remote_code=False,
            )
    except Exception as error:
        raise ConfigError(_unreadable("model", source, error)) from error
    if odd := sorted(report["mismatched_keys"]):
        name, saved, expected = odd[0]
        raise ConfigError(
            f"model.policy.path={source!r}: the weight {one_line(name)} is {[*saved]}, and by "
            f"config.json {[*expected]}; correct config.json, or save the checkpoint again"
        )
    # transformers would draw weights that are missing at random.
    absent, other = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    instead = f"; it has others, such as {one_line(other[0])}" if other else ""
    require(
        not absent,
        f"model.policy.path={source!r}: the checkpoint lacks {len(absent)} of the model's weights "
        f"({join_first(absent, 3)}){instead}. Save it again with all weights under "
        "the names that transformers gives them",
    )
    require_finite(model.state_dict(), f"model.policy.path={source!r}")
    return model


def _unreadable(what: str, source: str, error: Exception) -> str:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    if pointers := [path for path in Path(source).glob("*") if is_lfs_pointer(path)]:
        return f"model.policy.path={source!r}: {LFS_POINTER.format(file=pointers[0].name)}"
    if "trust_remote_code" in str(error):
        return (
            f"model.policy.path={source!r}: the {what} needs Python code in its own folder "
            "(auto_map), which is never run; use an architecture of transformers"
        )
    cure = (
        "correct its files or download it again"
        if Path(source).exists()
        else "there is no such folder here; of a hub id, check the spelling and the network, "
        "for which HF_HUB_OFFLINE=1 does not wait"
    )
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
    if config.gradient_checkpointing:
        for name, value in text_config.to_dict().items():
            require(
                not (value and ("dropout" in name or name.endswith("pdrop"))),
                f"model.policy.gradient_checkpointing: {config.path!r} has {name}={value}, and "
                "the loss needs the policy without dropout; set it to 0 in the model's config.json",
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
