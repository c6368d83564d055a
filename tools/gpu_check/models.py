"""Models of real shapes with random weights, and a tokenizer for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from svr_lightning.training.policy import weights_fingerprint

PAD, END, START, UNKNOWN = "<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|unknown|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
SHARPER = 0.5
"""Added to the last norm's scale, so that the output distributions are not flat."""
_INTO_THE_STREAM = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
"""Matrices whose output is added to the residual stream."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """An architecture and its dimensions."""

    model_type: str
    """``qwen3_5_text`` or ``qwen3``."""
    dims: Mapping[str, Any]
    """Arguments of the architecture's configuration."""


# The text_config of https://huggingface.co/Qwen/Qwen3.5-2B/blob/main/config.json, as public ports
# of that model quote it; 1.88e9 parameters.
_QWEN3_5_2B = {
    "vocab_size": 248_320,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,  # every fourth one of full attention
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
_QWEN3_2B = {  # Qwen3-1.7B with Qwen3.5's vocabulary
    "vocab_size": 248_320,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
_SMALL = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "initializer_range": 0.1,
}
_SMALL_HYBRID = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "rope_parameters": {
        **_QWEN3_5_2B["rope_parameters"],  # type: ignore[dict-item]
        "mrope_section": [2, 1, 1],
    },
}


def shapes(small: bool) -> dict[str, Shape]:
    """The models by name.

    ``hybrid`` is Qwen3.5-2B's text model, ``dense`` a Qwen3 of about that size with full attention
    throughout, ``shallow`` the first four layers of the hybrid.
    """
    hybrid: dict[str, Any] = _QWEN3_5_2B | (_SMALL | _SMALL_HYBRID if small else {})
    dense: dict[str, Any] = _QWEN3_2B | (_SMALL | {"num_hidden_layers": 2} if small else {})
    return {
        "hybrid": Shape(model_type="qwen3_5_text", dims=hybrid),
        "dense": Shape(model_type="qwen3", dims=dense),
        "shallow": Shape(model_type="qwen3_5_text", dims=hybrid | {"num_hidden_layers": 4}),
    }


def random_model(shape: Shape, device: str, seed: int = 0) -> Any:
    """A model in fp32 with random weights, in eval mode.

    What each layer adds is scaled down by the root of how many there are. Without that, a deep
    random model makes far more of bf16's rounding than a trained one does.
    """
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    with torch.device(device):
        if shape.model_type == "qwen3":
            model: Any = Qwen3ForCausalLM(Qwen3Config(**shape.dims))
        else:
            model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape.dims))
    with torch.no_grad():
        model.base_model.norm.weight.add_(SHARPER)
        for name, weight in model.named_parameters():
            if name.endswith(_INTO_THE_STREAM):
                weight.mul_((2 * model.config.num_hidden_layers) ** -0.5)
    return model.eval()


VISION = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
"""The smallest vision tower, which a text policy leaves out."""


def save_checkpoint(folder: Path, shape: Shape, device: str) -> str:
    """Save a random hybrid and a tokenizer in bf16, under the names that Qwen3.5's files have.

    These hold a text model within a multimodal one: ``model.language_model.layers.0`` and so on.

    Returns:
        The fingerprint that the text model has to have when it is loaded in fp32.
    """
    import torch
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    text = random_model(shape, device).to(torch.bfloat16)
    settings = {
        "text_config": text.config.to_dict(),
        "vision_config": VISION | {"out_hidden_size": text.config.hidden_size},
        "tie_word_embeddings": True,
    }
    with torch.device(device):
        whole: Any = Qwen3_5ForConditionalGeneration(Qwen3_5Config(**settings)).to(torch.bfloat16)
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.save_pretrained(folder)
    build_tokenizer(shape.dims["vocab_size"]).save_pretrained(folder)
    return weights_fingerprint(text.float().state_dict())


def question(number: int) -> str:
    """About a hundred words of :func:`build_tokenizer`."""
    return " ".join(f"w{(number * 97 + word) % 1000}" for word in range(100))


def build_tokenizer(vocabulary: int) -> Any:
    """A tokenizer of ``vocabulary`` words: ``w0``, ``w1`` and so on, with a chat template.

    Every id decodes to a word, so that drafts have the length that they have with a real one. What
    is no word of it, as the text of the prompts, is read as an unknown word.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, END, START, UNKNOWN]
    words = [*special, *(f"w{number}" for number in range(vocabulary - len(special)))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
