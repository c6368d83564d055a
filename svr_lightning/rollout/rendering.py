"""Messages to token ids and token ids to text, through the tokenizer's own chat template.

A message's content is only text. If it spells a control token, as a draft with a forged
``<|im_end|>`` does, the characters are encoded and not the token.
"""

import hashlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from statistics import fmean
from typing import Any

from svr_lightning.core.evidence import token_scores, token_span
from svr_lightning.core.parsing import METHOD_TAGS, THINK_CLOSE, THINK_OPEN
from svr_lightning.core.types import Choice, Completion, Message, Reading, TokenChoice, TokenScores
from svr_lightning.errors import ConfigError, format_exception

CACHED_CHARACTERS = 2**16
"""Longest prompt whose tokens are cached."""
_PRIVATE_USE = "\U000f0000"
_PROBE = "Probe."


class Renderer:
    """Renders prompts within a token budget and reads completions back.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        max_prompt_tokens: longest prompt, in tokens.
        max_model_len: longest prompt and completion together, in tokens.
        chat_template_kwargs: handed to the template, for example ``enable_thinking``.
        vocabulary: tokens that the model has an embedding for; None checks no ids.

    Raises:
        ConfigError: if the tokenizer has no chat template, or one that cannot be used, or if it
            ends turns or pads with a token that the model lacks.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_prompt_tokens: int = 4096,
        max_model_len: int = 8192,
        chat_template_kwargs: dict[str, Any] | None = None,
        vocabulary: int | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"model.policy: the tokenizer of {tokenizer.name_or_path!r} has no chat template; "
                "use an instruction-tuned checkpoint or add a chat_template.jinja to its folder"
            )
        self.tokenizer = tokenizer
        self.max_prompt_tokens = max_prompt_tokens
        self.max_model_len = max_model_len
        self._limit = min(max_prompt_tokens, max_model_len - 1)
        self._kwargs = chat_template_kwargs or {}
        self._vocabulary = vocabulary
        ends = end_of_turn(tokenizer).values()
        declared = (tokenizer.eos_token_id, tokenizer.pad_token_id, *ends)
        self._require_embeddings([token for token in declared if token is not None])
        self._find_place_of_system()
        control = _control_tokens(tokenizer)
        self._control_ids = frozenset(control.values())
        self._spelt_out = _at_any_of(control)
        self.text_prefix = self._open_think()
        # All trajectories of a group begin with the same prompt, which is also checked in advance.
        self._encode_once = lru_cache(maxsize=1024)(self._encode_rendered)
        self._differ_once = lru_cache(maxsize=4096)(self._differ)

    @cached_property
    def _longest_token(self) -> int:
        """Characters; only a server asks, since it takes a pass over the vocabulary."""
        return max(map(len, self.tokenizer.get_vocab()))

    def text(self, messages: Sequence[Message]) -> str:
        """The rendered prompt, generation prompt included."""
        return self._template(messages, add_generation_prompt=True)

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether the prompt needs no cutting and leaves room for a completion."""
        if sum(len(m["content"]) for m in messages) > self._limit * self._longest_token:
            return False  # without encoding it, which takes seconds for a megabyte
        return len(self.encode(messages)) <= self._limit

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a prompt, its user content cut from the left until it fits the budget.

        The system message, the end of the user content (the refinement instruction) and the
        generation prompt are kept.

        Raises:
            ConfigError: if the budget is too small even for an empty user content, or if the
                tokenizer takes a token that the model lacks.
        """
        ids = self.encode(messages)
        while len(ids) > self._limit:
            *before, user = messages
            if not user["content"]:
                raise ConfigError(
                    f"model.policy.max_prompt_tokens={self.max_prompt_tokens} (context "
                    f"{self.max_model_len}) cannot hold the system message alone, which takes "
                    f"{len(ids)} tokens; raise it"
                )
            messages = [
                *before,
                {**user, "content": self._cut(user["content"], len(ids) - self._limit)},
            ]
            ids = self.encode(messages)
        return ids

    def completion_text(self, token_ids: Sequence[int]) -> str:
        """Decode a completion without control tokens, as parsers and drafts see it."""
        written = [token for token in token_ids if token not in self._control_ids]
        return self.text_prefix + self._decode(written)

    def token_scores(self, completion: Completion, reading: Reading) -> TokenScores:
        """See :func:`svr_lightning.core.evidence.token_scores`."""
        return token_scores(
            completion.text,
            reading,
            completion.logprobs,
            self.characters(completion.token_ids),
        )

    def tokens_of(self, span: tuple[int, int], token_ids: Sequence[int]) -> tuple[int, int]:
        """The tokens of a completion that a span of its text lies in: see :func:`token_span`."""
        return token_span(span, len(token_ids), self.characters(token_ids))

    def characters(self, token_ids: Sequence[int]) -> Callable[[int], int]:
        """A function from k to the number of characters that the first k tokens make up."""
        return cache(lambda count: len(self.completion_text(token_ids[:count])))

    def token_choices(self, ids: Sequence[int], choices: Sequence[Choice]) -> list[TokenChoice]:
        """The choices of a completion in tokens.

        The policy chose at the first token in which the alternatives differ. Where several begin
        with the same token there, it earns what the one earns that goes on as the sampled text
        does: with a token for each digit, ``7`` of ``.75`` has nine rivals, ``.05`` to ``.95``.
        Without such a one it earns the mean of them. A choice is left out if the sampled tokens are
        not how this tokenizer writes their text, or if an alternative begins with another.
        """
        ids = tuple(ids)
        text = self.completion_text(ids)
        characters = self.characters(ids)
        resolved: list[TokenChoice] = []
        for choice in choices:
            start, stop = choice.span
            first, last = token_span(choice.span, len(ids), characters)
            # Two tokens more on the left: a space may belong to some words and not to others, and
            # some tokenizers write the beginning of a text otherwise.
            context = max(first - 2, 0)
            before = text[characters(context) : start]
            after = text[stop : characters(last)]
            words = (text[start:stop], *choice.alternatives)
            written = tuple(f"{before}{word}{after}" for word in words)
            rest, alternatives_of = self._differ_once(written, ids[context:last])
            if alternatives_of:
                scores = [
                    fmean(choice.scores[index] for index in indices)
                    for indices in alternatives_of.values()
                ]
                resolved.append(
                    TokenChoice(
                        position=last - rest,
                        token_ids=tuple(alternatives_of),
                        scores=tuple(scores),
                    )
                )
        return resolved

    def _differ(
        self, texts: Sequence[str], sampled: tuple[int, ...]
    ) -> tuple[int, dict[int, list[int]]]:
        """Where texts differ first, and for each token there the alternatives that it stands for.

        Args:
            texts: the sampled one, then its alternatives.
            sampled: the tokens of the first one.

        Returns:
            How many tokens before the end the place is, and by token the alternatives' indices; no
            token where :meth:`token_choices` leaves the choice out.
        """
        written, *encoded = [self._encode_pieces([text]) for text in texts]
        shortest = min(map(len, [written, *encoded]))
        place = 0
        while place < shortest and all(ids[place] == written[place] for ids in encoded):
            place += 1
        ending = written[place:]
        if place == shortest or ending != sampled[-len(ending) :]:
            return 0, {}
        alternatives_of: dict[int, list[int]] = {}
        for index, ids in enumerate(encoded):
            alternatives_of.setdefault(ids[place], []).append(index)
        for token, indices in alternatives_of.items():
            as_sampled = [index for index in indices if encoded[index][place + 1 :] == ending[1:]]
            alternatives_of[token] = as_sampled or indices
        return len(ending), alternatives_of

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a whole prompt, whatever its length."""
        key = tuple((m["role"], m["content"]) for m in messages)
        cached = sum(len(content) for _, content in key) <= CACHED_CHARACTERS
        return (self._encode_once if cached else self._encode_rendered)(key)

    def _encode_rendered(self, roles_and_contents: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
        """Render and encode, splitting every control token that the content spells.

        The rest is encoded as usual: a tokenizer splits the text at such places anyway.
        """
        messages = [{"role": role, "content": content} for role, content in roles_and_contents]
        contents = [content for _, content in roles_and_contents]
        if any(map(self._spelt_out.search, contents)):
            # No text holds its own hash; a private character keeps its digits apart from the
            # text's.
            digest = hashlib.sha256("".join(contents).encode("utf-8", "surrogatepass")).hexdigest()
            mark = f"{_PRIVATE_USE}{digest}{_PRIVATE_USE}"
            marked = [
                {**m, "content": self._spelt_out.sub(rf"\1{mark}", m["content"])} for m in messages
            ]
            pieces = self.text(marked).split(mark)
        else:
            pieces = [self.text(messages)]
        ids = self._encode_pieces(pieces)
        self._require_embeddings(ids)
        return ids

    def _require_embeddings(self, ids: Sequence[int]) -> None:
        """Refuse tokens of the tokenizer that the model lacks: a GPU would abort on them."""
        if self._vocabulary is None or max(ids, default=0) < self._vocabulary:
            return
        token = self.tokenizer.convert_ids_to_tokens(max(ids))
        raise ConfigError(
            f"model.policy: the tokenizer of {self.tokenizer.name_or_path!r} does not fit the "
            f"model, which has {self._vocabulary} tokens: {token!r} is number {max(ids)}; put the "
            "model's own tokenizer into the folder, or resize the model's embeddings to added "
            "tokens"
        )

    def _encode_pieces(self, pieces: Sequence[str]) -> tuple[int, ...]:
        encode = self.tokenizer.encode
        return tuple(token for p in pieces for token in encode(p, add_special_tokens=False))

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))

    def _template(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        rendered = self.tokenizer.apply_chat_template(
            _system_in_user(messages) if self._folds_system else list(messages),
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **self._kwargs,
        )
        return str(rendered)

    def _cut(self, content: str, overshoot: int) -> str:
        """Drop characters that make up at least ``overshoot`` tokens from the left."""
        cuts = [0, *(match.end() for match in self._spelt_out.finditer(content)), len(content)]
        ids = self._encode_pieces([content[a:b] for a, b in pairwise(cuts)])
        # Decoding may split a character or add a space: take the same length from the original.
        kept = min(len(self._decode(ids[overshoot:])), len(content) - 1)
        return content[len(content) - kept :]

    def _find_place_of_system(self) -> None:
        """Put system messages into the user's if the template shows no others, and warn of it.

        Raises:
            ConfigError: if the template shows no text, or raises.
        """
        messages = [{"role": role, "content": _PROBE} for role in ("system", "user")]
        name, fault = self.tokenizer.name_or_path, "it does not show their text"
        for folds in (False, True):
            self._folds_system = folds
            try:
                shown = self.text(messages).count(_PROBE) == 2
            except Exception as error:  # a template may raise anything
                shown, fault = False, format_exception(error)
            if shown and folds:
                message = "takes no system message; it is put before the user's message"
                warnings.warn(f"the chat template of {name!r} {message}", stacklevel=3)
            if shown:
                return
        raise ConfigError(
            f"model.policy: the chat template of {name!r} takes no messages whose content is text "
            f"({fault}); fix the chat_template.jinja in its folder"
        )

    def _open_think(self) -> str:
        """``<think>`` and a newline if the template leaves one open before the completion."""
        probe = [{"role": "user", "content": "x"}]
        prompt = self._template(probe, add_generation_prompt=True)
        suffix = prompt.removeprefix(self._template(probe, add_generation_prompt=False))
        is_open = suffix.rfind(THINK_OPEN) > suffix.rfind(THINK_CLOSE)
        return f"{THINK_OPEN}\n" if is_open else ""


def end_of_turn(tokenizer: Any) -> dict[str, int]:
    """The token that the chat template puts after an assistant message, by its text; or nothing.

    It need not be the tokenizer's declared end.
    """
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}]
    try:
        rendered = str(tokenizer.apply_chat_template(chat, tokenize=False))
    except Exception:  # a template may raise anything; rendering a prompt reports it
        return {}
    _, _, behind = rendered.partition(_PROBE)
    ids = tokenizer.encode(behind.strip(), add_special_tokens=False)
    ends = [token for token in ids if token in tokenizer.added_tokens_decoder]
    texts = {tokenizer.convert_ids_to_tokens(token): token for token in ends[:1]}
    return {text: token for text, token in texts.items() if text not in METHOD_TAGS}


def _system_in_user(messages: Sequence[Message]) -> list[Message]:
    """Messages with each system message put before the next user message."""
    kept, system = [], ""
    for message in messages:
        if message["role"] == "system":
            system += message["content"] + "\n\n"
        elif message["role"] == "user":
            kept.append({**message, "content": system + message["content"]})
            system = ""
        else:
            kept.append(message)
    return kept


def _control_tokens(tokenizer: Any) -> dict[str, int]:
    """The tokens that structure a chat, by the text that stands for them."""
    special = {t.content: i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    special |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    special |= end_of_turn(tokenizer)
    # Tags of completions are text even if a tokenizer calls them special.
    return {text: token for text, token in special.items() if text not in METHOD_TAGS}


def _at_any_of(control: Mapping[str, int]) -> re.Pattern[str]:
    """Matches the first character of every control token's text, overlapping ones too."""
    texts = [re.escape(text) for text in control if len(text) > 1]
    return re.compile(rf"(?=(?:{'|'.join(texts)}))(.)" if texts else "(?!)", re.DOTALL)
