"""The tokenizer of an embedded policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from experiments.warmstart.__main__ import TASKS
from experiments.warmstart.attempts import completion_text
from experiments.warmstart.countdown import attempt_of, documents
from experiments.warmstart.embedded import build_tokenizer
from svr_lightning.core.types import Verdict
from svr_lightning.tasks import get_task
from svr_lightning.tasks.messages import first_turn_messages, refinement_messages
from svr_lightning.tiny.problems import search_order

COUNTDOWN = get_task("countdown")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(documents(0), **TASKS["countdown"].tokenizer)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_survives(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_emoji_accents_and_operators_survive(tokenizer: PreTrainedTokenizerFast) -> None:
    text = " h\u00e9llo \u6570\u5b66 \U0001f389\n\t12.50*(3-1)=25  yes</think>\n<answer>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_numbers_and_signs_are_tokens_of_their_own(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("(8/2)*40=160")["input_ids"]
    assert [tokenizer.decode([i]) for i in ids] == ["(", "8", "/", "2", ")", "*", "40", "=", "160"]
    assert all(len(tokenizer(str(n))["input_ids"]) == 1 for n in range(201))


def test_prompts_and_completions_are_short(tokenizer: PreTrainedTokenizerFast) -> None:
    def count(messages: list[dict[str, str]]) -> int:
        return len(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        )

    problem = COUNTDOWN.from_row({"id": "x", "nums": [8, 10, 2], "target": 100})
    attempt = attempt_of(problem, search_order((8, 10, 2))[0])
    text = completion_text(attempt, Verdict.CORRECT, 0.9)
    assert count(first_turn_messages(COUNTDOWN, problem)) <= 42
    for verdict in Verdict:
        messages = refinement_messages(
            COUNTDOWN,
            problem,
            previous=text,
            verdict=verdict,
            confidence=0.9,
            truncated=False,
            turn=10,
        )
        assert count(messages) <= 150
    assert len(tokenizer(text)["input_ids"]) <= 45


def test_the_chat_template_closes_assistant_turns_with_the_end_token(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|user|>a<|assistant|>b<|im_end|>"
    )
    assert tokenizer.apply_chat_template(
        messages[:1], tokenize=False, add_generation_prompt=True
    ) == ("<|user|>a<|assistant|>")
