"""Which policy a run takes, and how its prompts are rendered (``model.policy``)."""

from dataclasses import dataclass, field
from typing import Any

from svr_lightning.core.ranges import Checked, Count, Positive, require_field


@dataclass(frozen=True, kw_only=True)
class LoRAConfig(Checked):
    """Train low-rank adapters beside frozen weights, with peft."""

    r: Count = 16
    """Rank of an adapter."""
    alpha: Positive = 32.0
    """An adapter counts ``alpha / r`` times."""
    target_modules: str | list[str] = "all-linear"
    """Linear layers that get one: all but the output layer, a regular expression of whole names,
    or a list of names' ends, such as ``[q_proj, v_proj]``."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(Checked):
    """Which model trains, and how its prompts are rendered."""

    path: str = "embedded:countdown-tiny"
    """Checkpoint folder, hub id, ``embedded:countdown-tiny`` or ``embedded:arithmetic-tiny`` for a
    policy that ships with the package, or ``random:qwen3_5`` for a tiny hybrid model with random
    weights."""
    revision: str | None = None
    """Hub revision to pin."""
    attn_implementation: str | None = None
    """Attention implementation, as transformers names it; None lets it choose."""
    gradient_checkpointing: bool = False
    """Recompute each layer's activations in the backward pass to save memory."""
    lora: LoRAConfig | None = None
    """Train adapters instead of all weights; the reference is the base model then."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=lambda: {"enable_thinking": False})
    """Handed to the chat template. What it appends after the assistant header is prompt."""
    max_prompt_tokens: Count = 4096
    """Longest prompt; longer ones lose the left of their user content."""
    max_model_len: Count = 8192
    """Longest prompt and completion together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_field(
            self,
            "max_prompt_tokens",
            self.max_prompt_tokens < self.max_model_len,
            f"must be below max_model_len={self.max_model_len}: a completion needs room",
        )
