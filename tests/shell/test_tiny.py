"""The embedded default: its problems and the policy that ships with the package."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from svr_lightning import tiny
from svr_lightning.core.parsing import parse_self_check, self_check_format_score
from svr_lightning.core.types import Verdict
from svr_lightning.tasks import get_task
from svr_lightning.tasks.messages import first_turn_messages
from svr_lightning.tiny.problems import derivations, generate, search_order

SHIPPED = Path(tiny.__file__).parent / "countdown_policy"
COUNTDOWN = get_task("countdown")


def _keys(split: str, orders: int) -> set[tuple[tuple[int, ...], int]]:
    return {(tuple(sorted(row["nums"])), row["target"]) for row in generate(split, orders)}


def test_splits_share_no_problem_in_any_order() -> None:
    train, dev, test = (_keys(split, 6) for split in ("train", "dev", "test"))
    assert not train & dev
    assert not train & test
    assert not dev & test


def test_splits_are_large_enough_to_measure_on() -> None:
    assert len(_keys("test", 1)) >= 170
    assert len(generate("test")) >= 340
    assert 100 <= len(_keys("dev", 1)) <= 200
    assert len(_keys("train", 1)) >= 600


def test_problems_are_the_same_on_every_call_and_have_unique_ids() -> None:
    rows = generate("test")
    assert rows == generate("test")
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({(tuple(row["nums"]), row["target"]) for row in rows}) == len(rows)


def test_all_orders_of_a_problem_are_one_cluster() -> None:
    for row in generate("test", orders=6):
        assert row["cluster"] == "-".join(map(str, [*sorted(row["nums"]), row["target"]]))
        assert row["id"].startswith(f"test-{row['cluster']}-")


def test_an_unknown_split_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="validation"):
        generate("validation")  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_every_problem_has_several_solutions_that_the_task_accepts(split: str) -> None:
    for row in generate(split, orders=1):
        problem = COUNTDOWN.from_row(row)
        solutions = [option for option in derivations(row["nums"]) if option.value == row["target"]]
        assert len(solutions) >= 2
        for option in solutions:
            assert COUNTDOWN.grade(f"<answer>{option.expression}</answer>", problem)


def test_derivations_of_1_2_3_are_the_ones_found_by_hand() -> None:
    # Pair 1 2: 1+2=3 (+3, -3 gives 0, *3, /3), 2-1=1 (+3, 3-1, *3, 3/1 is out), 1*2=2 (+3, 3-2,
    # *3), 2/1 is out.
    of_first_pair = [option.text for option in derivations((1, 2, 3))][:9]
    assert of_first_pair == [
        "1+2=3,3+3=6",
        "1+2=3,3*3=9",
        "1+2=3,3/3=1",
        "2-1=1,1+3=4",
        "2-1=1,3-1=2",
        "2-1=1,1*3=3",
        "1*2=2,2+3=5",
        "1*2=2,3-2=1",
        "1*2=2,2*3=6",
    ]


def test_equal_numbers_leave_no_derivation_twice_in_the_search_order() -> None:
    texts = [option.text for option in search_order((3, 3, 5))]
    assert len(texts) == len(set(texts))


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


def test_the_shipped_weights_are_finite() -> None:
    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
