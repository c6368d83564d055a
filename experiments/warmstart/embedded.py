"""Tokenizer and model of an embedded policy, made from nothing.

A byte-level BPE of about 1000 tokens is trained on the demonstrations. Digits and the signs beside
them stand alone, so that arithmetic is visible token by token. The fixed text of the prompts may
merge across spaces: the system message costs about 20 tokens. Any text survives a round trip,
since every byte is a token.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from experiments.warmstart.documents import Document

PAD = "<|pad|>"
END = "<|im_end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] -}}"
    "{%- if message['role'] == 'assistant' -%}{{- '<|im_end|>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
"""Roles are single tokens; only an assistant message ends with one of its own."""

_APART = "|".join(
    [
        r"</think>\n<answer>(?:\\boxed\{)?",
        r"\}?</answer>\n<self_check>VERDICT: ",
        r"\}</answer>",
        r"; CONFIDENCE: (?=\d)",
        r"</?(?:think|answer|self_check)>",
        r"\b(?:CORRECT|INCORRECT|UNSURE|TRUNCATED)\b",
        r"0\.(?=\d)",
        r"\d{1,DIGITS}",
        r"(?<=\d)[-+*/=,](?=\d)",
        r"[-+*/](?=\(\d)",
        r"(?<=\d\))[-+*/]",
        r"\((?=\d)",
        r"(?<=\d)\)",
    ]
)
"""Split off before merging: serialization tags, verdicts, digits and operators."""


def build_tokenizer(
    demonstrations: Iterator[Document],
    sample: int = 4000,
    *,
    vocabulary: int = 1000,
    largest_number: int = 9,
    words: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """Train the tokenizer; equal arguments, equal tokenizer.

    Args:
        demonstrations: the first ``sample`` are trained on.
        sample: see above.
        vocabulary: number of tokens.
        largest_number: every whole number up to this one is one token.
        words: never part of a longer token, such as names.
    """
    apart = "|".join([_APART.replace("DIGITS", str(len(str(largest_number)))), *words])
    numbers = (str(n) for n in range(10, largest_number + 1) for _ in range(sample))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(apart), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END, *_ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = _texts(itertools.islice(demonstrations, sample))
    bpe.train_from_iterator(itertools.chain(texts, numbers), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(_ROLES),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
        padding_side="left",
    )


def new_model(
    tokenizer: PreTrainedTokenizerFast, seed: int, width: int = 96, layers: int = 4
) -> Qwen3ForCausalLM:
    """An untrained Qwen3; half a million parameters with the default shape.

    Args:
        tokenizer: gives the vocabulary and the special tokens.
        seed: of the weights.
        width: of the residual stream, a multiple of 32.
        layers: number of layers.
    """
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def _texts(demonstrations: Iterator[Document]) -> Iterator[str]:
    for document in demonstrations:
        yield from (message["content"] for message in document.messages)
        yield document.completion
