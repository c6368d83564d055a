"""A byte-level BPE of about 1000 tokens, trained on the prompt templates and traces.

Digits and the signs beside them stand alone, so that arithmetic is visible token by token. The
fixed text of the templates may merge across spaces: the system message costs about 20 tokens.
Any text survives a round trip, since every byte is a token.
"""

import itertools
from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tools.warmstart.traces import documents

VOCABULARY_SIZE = 1000
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
        r"</think>\n<answer>",
        r"</answer>\n<self_check>VERDICT: ",
        r"; CONFIDENCE: (?=\d)",
        r"</?(?:think|answer|self_check)>",
        r"\b(?:CORRECT|INCORRECT|UNSURE|TRUNCATED)\b",
        r"0\.(?=\d)",
        r"\d",
        r"(?<=\d)[-+*/=,](?=\d)",
        r"[-+*/](?=\(\d)",
        r"(?<=\d\))[-+*/]",
        r"\((?=\d)",
        r"(?<=\d)\)",
    ]
)
"""Split off before merging: serialization tags, verdicts, digits and operators."""


def build_tokenizer(sample: int = 4000, seed: int = 0) -> PreTrainedTokenizerFast:
    """Train the tokenizer from scratch; equal arguments give an equal tokenizer.

    Args:
        sample: number of demonstrations to train on.
        seed: seed of these demonstrations.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_APART), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[PAD, END, *_ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(sample, seed), trainer)
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


def _texts(sample: int, seed: int) -> Iterator[str]:
    for document in itertools.islice(documents(seed), sample):
        yield from (message["content"] for message in document.messages)
        yield document.completion
