"""Models with random weights, as small as their architectures allow."""

import copy
from typing import Any

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

from svr_lightning.policy import lora
from svr_lightning.policy.config import LoRAConfig

VOCABULARY = 40


SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def tiny_qwen3(seed: int = 0, **changes: Any) -> Any:
    """Two layers of full attention. Wide initial weights make its distributions uneven."""
    own = {"num_hidden_layers": 2, "initializer_range": 0.2}
    config = Qwen3Config(**SMALL | own | changes)
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config).eval()


def tiny_hybrid(seed: int = 0, **changes: Any) -> Any:
    """Qwen3.5: three layers of linear attention with recurrent states, one of full attention."""
    own = {"num_hidden_layers": 4, "initializer_range": 0.1}
    own |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    own |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    config = Qwen3_5TextConfig(**SMALL | own | changes)
    torch.manual_seed(seed)
    return Qwen3_5ForCausalLM(config).eval()


def with_adapter(model: Any) -> Any:
    """A copy of ``model`` with an adapter that makes another policy of it."""
    adapted = copy.deepcopy(model)
    lora.attach(adapted, LoRAConfig(r=4, alpha=8), seed=1, base="tiny")
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1, generator=random)
    return adapted


MODELS = {"qwen3": tiny_qwen3, "hybrid": tiny_hybrid}
