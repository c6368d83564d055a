"""Messages to token ids and token ids to text, through the tokenizer's own chat template."""

from collections.abc import Sequence
from typing import Any

from svr_lightning.core.types import Message
from svr_lightning.errors import ConfigError

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class Renderer:
    """Renders prompts within a token budget and reads completions back.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        max_prompt_tokens: longest prompt, in tokens.
        max_model_len: longest prompt and completion together, in tokens.
        chat_template_kwargs: handed to the template, for example ``enable_thinking``.

    Raises:
        ConfigError: if the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_prompt_tokens: int = 4096,
        max_model_len: int = 8192,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"model.policy: the tokenizer of {tokenizer.name_or_path!r} has no chat template; "
                "use an instruction-tuned checkpoint or add a chat_template.jinja to its folder"
            )
        self.tokenizer = tokenizer
        self.max_prompt_tokens = max_prompt_tokens
        self.max_model_len = max_model_len
        self._kwargs = chat_template_kwargs or {}
        self.text_prefix = self._open_think()

    def text(self, messages: Sequence[Message]) -> str:
        """The rendered prompt, generation prompt included."""
        return self._template(messages, add_generation_prompt=True)

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether the prompt needs no cutting and leaves room for a completion."""
        limit = min(self.max_prompt_tokens, self.max_model_len - 1)
        return len(self._encode(messages)) <= limit

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a prompt, the user content cut from its left until the budget holds.

        The system message, the end of the user content (the refinement instruction) and the
        generation prompt survive.

        Raises:
            ConfigError: if the budget is too small even for an empty user content.
        """
        limit = min(self.max_prompt_tokens, self.max_model_len - 1)
        ids = self._encode(messages)
        while len(ids) > limit:
            *before, user = messages
            if not user["content"]:
                raise ConfigError(
                    f"model.max_prompt_tokens={self.max_prompt_tokens} (context "
                    f"{self.max_model_len}) cannot hold the system message alone, which takes "
                    f"{len(ids)} tokens; raise it"
                )
            messages = [*before, {**user, "content": self._cut(user["content"], len(ids) - limit)}]
            ids = self._encode(messages)
        return tuple(ids)

    def completion_text(self, token_ids: Sequence[int]) -> str:
        """Decode a completion as parsers and drafts see it."""
        decoded = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return self.text_prefix + decoded

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return list(self.tokenizer.encode(self.text(messages), add_special_tokens=False))

    def _template(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        rendered = self.tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **self._kwargs,
        )
        return str(rendered)

    def _cut(self, content: str, overshoot: int) -> str:
        """Drop characters that make up at least ``overshoot`` tokens from the left."""
        ids = self.tokenizer.encode(content, add_special_tokens=False)
        if overshoot >= len(ids):
            return ""
        kept = str(self.tokenizer.decode(ids[overshoot:], clean_up_tokenization_spaces=False))
        # Decoding may split a character or add a space: take the same length from the original.
        return content[-min(len(kept), len(content) - 1) :]

    def _open_think(self) -> str:
        """``<think>`` and a newline where the template leaves one open before the completion."""
        probe = [{"role": "user", "content": "x"}]
        prompt = self._template(probe, add_generation_prompt=True)
        suffix = prompt.removeprefix(self._template(probe, add_generation_prompt=False))
        is_open = suffix.rfind(THINK_OPEN) > suffix.rfind(THINK_CLOSE)
        return f"{THINK_OPEN}\n" if is_open else ""
