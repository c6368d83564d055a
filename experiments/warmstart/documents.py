"""What a demonstrator yields, and how it becomes token ids."""

from dataclasses import dataclass
from typing import Any

from svr_lightning.core.types import Message

_CHECK = "\n<self_check>"


@dataclass(frozen=True, slots=True)
class Document:
    """One turn to learn from."""

    kind: str
    """Whose prompt it is: ``svr``, ``verdict``, ``confidence``, ``neutral``, ..."""
    messages: list[Message]
    completion: str
    correct: bool | None
    """y_t of the completion's answer; None where it gives none."""
    draft: str = ""
    """The part of the prompt to learn as well, such as the previous turn, or empty."""

    @property
    def solution(self) -> str:
        """The completion up to its self-check: the text that must not tell right from wrong."""
        return self.completion.partition(_CHECK)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A document in token ids."""

    ids: list[int]
    """[L] prompt, completion and end of turn."""
    weights: list[float]
    """[L] of each token's loss: 0 outside of the completion and of the draft in the prompt."""


def encode(tokenizer: Any, document: Document, check_weight: float = 1.0) -> Encoded:
    """Render a document with the chat template and weigh the tokens to learn.

    Args:
        tokenizer: with a chat template.
        document: to encode.
        check_weight: of the tokens of the self-check; all others to learn weigh 1.
    """
    rendered = tokenizer.apply_chat_template(
        document.messages, add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    prompt, completion = (
        tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        for text in (rendered, document.completion)
    )
    start = rendered.index(document.draft)
    end, solved = start + len(document.draft), len(document.solution)
    drafted = [float(start <= left < right <= end) for left, right in prompt["offset_mapping"]]
    checked = [check_weight if right > solved else 1.0 for _, right in completion["offset_mapping"]]
    return Encoded(
        ids=[*prompt["input_ids"], *completion["input_ids"], tokenizer.eos_token_id],
        weights=[*drafted, *checked, 1.0],
    )
