"""What a demonstrator yields, and how it becomes token ids."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from svr_lightning.core.types import Message


class Demonstrator(Protocol):
    """A task's demonstrations."""

    def __call__(
        self, seed: int, split: str = "train", informative: float = 1.0
    ) -> Iterator["Document"]:
        """Endless demonstrations; equal arguments, equal sequences.

        Args:
            seed: of the sequence.
            split: whose problems are demonstrated.
            informative: how much self-checks know of correctness; 0 is nothing, 1 the default.
        """
        ...


_CHECK = "\n<self_check>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One turn to learn from."""

    kind: str
    """Whose prompt it is: ``svr``, ``verdict``, ``confidence``, ``neutral``, ..."""
    messages: list[Message]
    completion: str
    draft: str = ""
    """The part of the prompt to learn as well, such as the previous turn, or empty."""
    correct: bool | None
    """y_t of the completion's answer; None where it gives none."""

    @property
    def solution(self) -> str:
        """The completion up to its self-check: the text that must not tell right from wrong."""
        return self.completion.partition(_CHECK)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A document in token ids."""

    ids: list[int]
    """[L] prompt, completion and end of turn."""
    learn: list[bool]
    """[L] True on tokens to predict: the completion, and the draft inside the prompt."""


def encode(tokenizer: Any, document: Document) -> Encoded:
    """Render a document with the chat template and mark the tokens to learn."""
    rendered = tokenizer.apply_chat_template(
        document.messages, add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    prompt = tokenizer(rendered, return_offsets_mapping=True, add_special_tokens=False)
    completion = tokenizer(document.completion, add_special_tokens=False)["input_ids"]
    learn = [False] * len(prompt["input_ids"])
    if document.draft:
        start = rendered.index(document.draft)
        end = start + len(document.draft)
        learn = [start <= left and right <= end for left, right in prompt["offset_mapping"]]
    return Encoded(
        ids=[*prompt["input_ids"], *completion, tokenizer.eos_token_id],
        learn=[*learn, *[True] * (len(completion) + 1)],
    )
