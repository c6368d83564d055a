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
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from svr_lightning.training.documents import Document

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
    texts = (
        text
        for document in itertools.islice(demonstrations, sample)
        for text in (*(message["content"] for message in document.messages), document.completion)
    )
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


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int, layers: int) -> Qwen3ForCausalLM:
    """An untrained Qwen3; half a million parameters with four layers.

    The tokenizer gives the vocabulary and the special tokens; ``seed`` is of the weights.
    """
    torch.manual_seed(seed)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        **ends,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**ends)
    return model
