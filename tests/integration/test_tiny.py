"""The embedded Countdown: its problems, how far a search without a model gets, and its policy."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from svr_lightning import tiny
from svr_lightning.core.parsing import parse_self_check, self_check_format_score
from svr_lightning.core.prompts import first_turn_messages
from svr_lightning.core.types import Verdict
from svr_lightning.tasks import get_task
from svr_lightning.tiny.problems import (
    LARGEST_NUMBER,
    MIN_SOLUTIONS,
    Split,
    generate,
    search_order,
)

SHIPPED = Path(tiny.__file__).parent / "countdown_policy"
COUNTDOWN = get_task("countdown")
SPLITS: tuple[Split, ...] = ("train", "dev", "test", "outside")


def _numbers(split: Split) -> set[tuple[int, ...]]:
    return {tuple(sorted(row["nums"])) for row in generate(split, orders=6)}


def test_splits_share_no_numbers() -> None:
    """Not even with another target, in any order."""
    train, dev, test, outside = map(_numbers, SPLITS)
    assert not train & (dev | test | outside)
    assert not dev & test
    assert all(max(numbers) > LARGEST_NUMBER for numbers in outside)
    assert all(max(numbers) <= LARGEST_NUMBER for numbers in train | dev | test)


def test_all_orders_of_a_problem_are_one_cluster() -> None:
    for row in generate("test", orders=6):
        assert row["cluster"] == "-".join(map(str, [*sorted(row["nums"]), row["target"]]))
        assert row["id"].startswith(f"test-{row['cluster']}-")


@pytest.mark.parametrize("split", SPLITS)
def test_every_problem_has_several_solutions_that_the_task_accepts(split: Split) -> None:
    for row in generate(split, orders=1):
        problem = COUNTDOWN.from_row(row)
        options = search_order(tuple(row["nums"]))
        solutions = [option for option in options if option.value == row["target"]]
        assert len({option.expression for option in solutions}) >= MIN_SOLUTIONS
        for option in solutions:
            assert COUNTDOWN.grade(f"<answer>{option.expression}</answer>", problem)


def test_derivations_of_1_2_3_are_the_ones_found_by_hand() -> None:
    texts = [option.text for option in search_order((1, 2, 3))]
    assert texts[:4] == ["1+2=3,3+3=6", "1+3=4,4+2=6", "2+3=5,5+1=6", "1+3=4,4-2=2"]
    # 1+2=3,3-3 would give 0. A product divided by a third number needs 2*3=6 over 1, or 1*2 over 3
    # and 1*3 over 2: none is allowed, and 3/1, 2/1 and 3/2 are not either.
    assert not any("/" in text for text in texts if "*" in text)


def test_the_shipped_checkpoint_answers_with_a_self_check_that_parses() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 4_000_000
    rows = generate("dev", orders=1)[:20]
    first_verdicts = []
    for row in rows:
        messages = first_turn_messages(COUNTDOWN, COUNTDOWN.from_row(row))
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = model.generate(**prompt, max_new_tokens=96, do_sample=False)
        ids = output[0, prompt["input_ids"].shape[1] :]
        assert ids[-1] == tokenizer.eos_token_id
        text = tokenizer.decode(ids, skip_special_tokens=True)
        assert self_check_format_score(text) == 1.0
        assert COUNTDOWN.format_score(text) == 1.0
        first_verdicts.append(parse_self_check(text).verdict)
    # Overconfident: greedy first verdicts are nearly all CORRECT, 3 of 10 answers are wrong.
    assert first_verdicts.count(Verdict.CORRECT) >= 15
