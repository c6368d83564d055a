"""A policy with random weights and a tokenizer, in a folder as a checkpoint of Qwen3.5 has them."""

import string
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from svr_lightning.policy.weights import weights_fingerprint
from tests.gpu.shapes import hybrid, random_model

PAD, END, START = "<|endoftext|>", "<|im_end|>", "<|im_start|>"
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
    text = random_model(hybrid(device == "cpu", layers), device).to(torch.bfloat16)
    settings = {
        "text_config": text.config.to_dict(),
        "vision_config": VISION | {"out_hidden_size": text.config.hidden_size},
        "tie_word_embeddings": True,
    }
    with torch.device(device):
        whole = Qwen3_5ForConditionalGeneration(Qwen3_5Config(**settings)).to(torch.bfloat16)
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
    """A byte-level BPE of ``vocabulary`` tokens with a chat template.

    Behind the bytes come words of letters, the shorter ones first, each made of a shorter one and a
    letter: texts take about a token for four characters, as with a real one. Transformers reads the
    tokenizer of a Qwen3.5 as a BPE, whatever its file says.
    """
    special = [PAD, END, START]
    space, letters = "\u0120", string.ascii_lowercase
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    queue = deque([space])
    while len(tokens) < vocabulary:
        stem = queue.popleft()
        for letter in letters[: vocabulary - len(tokens)]:
            merges.append((stem, letter))
            tokens.append(stem + letter)
            queue.append(stem + letter)
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def question(number: int) -> str:
    """A hundred words, a token each in the smallest vocabulary too."""
    a = ord("a")
    return "".join(
        f" {chr(a + (number * 7 + word) % 26)}{chr(a + (number + word * 3) % 26)}"
        for word in range(100)
    )
