"""A policy with random weights and a tokenizer, in a folder as a checkpoint of Qwen3.5 has them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from svr_lightning.training.policy import weights_fingerprint
from tools.shapes import qwen3_5, random_model

PAD, END, START, UNKNOWN = "<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|unknown|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
VISION = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
"""The smallest vision tower, which a text policy leaves out."""
MEAN_LENGTH = {"cuda": 400, "cpu": 12}
"""Of a completion, in tokens: one in so many ends it, since random weights seldom write one."""


@dataclass(frozen=True)
class Policy:
    """A folder, and the fingerprint that its text model has when it is loaded in fp32."""

    folder: Path
    fingerprint: str


def save_policy(folder: Path, device: str, layers: int | None = None) -> Policy:
    """Save a random hybrid in bf16 and its tokenizer; lengths differ from completion to completion.

    Qwen3.5's files hold the text model within a multimodal one, whose names it has here.
    """
    text = random_model(qwen3_5(device == "cpu", layers), device).to(torch.bfloat16)
    settings = {
        "text_config": text.config.to_dict(),
        "vision_config": VISION | {"out_hidden_size": text.config.hidden_size},
        "tie_word_embeddings": True,
    }
    with torch.device(device):
        whole: Any = Qwen3_5ForConditionalGeneration(Qwen3_5Config(**settings)).to(torch.bfloat16)
    whole.model.language_model.load_state_dict(text.model.state_dict())
    ends = range(1, text.config.vocab_size, MEAN_LENGTH[device])
    whole.generation_config.eos_token_id = [*ends]
    whole.save_pretrained(folder)
    build_tokenizer(text.config.vocab_size).save_pretrained(folder)
    found = Policy(folder, weights_fingerprint(text.float().state_dict()))
    del text, whole
    if device == "cuda":
        torch.cuda.empty_cache()  # a training is another process and needs the GPU's memory
    return found


def build_tokenizer(vocabulary: int) -> Any:
    """A tokenizer of ``vocabulary`` words: ``w0``, ``w1`` and so on, with a chat template.

    Every id decodes to a word, so that drafts have the length that they have with a real one. What
    is no word of it, as the text of the prompts, is read as an unknown word.
    """
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


def question(number: int) -> str:
    """About a hundred words of :func:`build_tokenizer`."""
    return " ".join(f"w{(number * 97 + word) % 1000}" for word in range(100))
