"""The demonstrations of the embedded Countdown: what they teach and what they hide."""

import itertools
import random
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from svr_lightning.core.metrics import auroc
from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.types import Verdict
from svr_lightning.tasks import get_task
from tests.demonstrations import assert_form, countdown_question
from tools.warmstart import __main__ as command
from tools.warmstart.attempts import SHARES
from tools.warmstart.countdown import CountdownSolver, attempt_of, documents
from tools.warmstart.countdown_problems import search_order, split_of
from tools.warmstart.documents import Document, encode
from tools.warmstart.embedded import build_tokenizer
from tools.warmstart.measure import leaks, leaks_of_documents, worst_leak

COUNTDOWN = get_task("countdown")
MANY = 6000
"""The standard error of an AUROC over so many documents is below .01."""


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(documents(0), sample=2000)


@pytest.fixture(scope="module")
def many() -> list[Document]:
    return list(itertools.islice(documents(3), MANY))


def test_demonstrations_are_graded_as_they_are_labelled(many: list[Document]) -> None:
    for document in many[:1500]:
        nums, target = countdown_question(document)
        problem = COUNTDOWN.from_row({"id": "x", "nums": nums, "target": target})
        assert COUNTDOWN.grade(document.completion, problem) == bool(document.correct)
        assert_form(COUNTDOWN, document)


def test_demonstrations_hold_no_numbers_of_a_held_out_problem(many: list[Document]) -> None:
    assert {split_of(countdown_question(document)[0]) for document in many} == {"train"}
    held_out = itertools.islice(documents(3, "test"), 50)
    assert {split_of(countdown_question(document)[0]) for document in held_out} == {"test"}


def test_equal_seeds_give_equal_demonstrations() -> None:
    first, again, other = (
        [document.completion for document in itertools.islice(documents(seed), 50)]
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


def test_no_prompt_of_a_recipe_is_rare_in_the_warm_start(many: list[Document]) -> None:
    shown = Counter(document.kind for document in many)
    assert set(shown) == set(SHARES)
    assert max(shown.values()) <= 2.5 * min(shown.values())  # SHARES: 24 to 12


def test_neither_a_token_nor_the_length_gives_away_which_answers_are_right(
    tokenizer: PreTrainedTokenizerFast, many: list[Document]
) -> None:
    name, value = worst_leak(leaks_of_documents(tokenizer, many))
    assert value <= 0.6, name


def test_a_word_that_names_the_outcome_is_found(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = ["8+4=12 yes", "8-4=4 no", "9+4=13 yes", "9-4=5 no"]
    _, value = worst_leak(leaks(tokenizer, texts, [True, False, True, False]))
    assert value == 1.0
    longer = ["8+4=12", "8-4=4", "9+3=12", "9-4=5"]
    assert leaks(tokenizer, longer, [True, False, True, False])["length"] == 1.0


@pytest.mark.parametrize(("informative", "low", "high"), [(1.0, 0.58, 0.68), (0.0, 0.47, 0.53)])
def test_the_demonstrated_self_check_is_overconfident_and_knows_little(
    informative: float, low: float, high: float
) -> None:
    told = itertools.islice(documents(3, "train", informative), MANY)
    checked = [(parse_self_check(d.completion), d.correct) for d in told if d.kind == "svr"]
    wrong = [check for check, correct in checked if not correct]
    assert fmean(check.verdict is Verdict.CORRECT for check in wrong) >= 0.75
    doubt = [c.verdict is not Verdict.CORRECT or c.confidence < 0.85 for c, _ in checked]
    assert 0.1 <= fmean(doubt) <= 0.3
    confidence = np.array([check.confidence for check, _ in checked])
    assert low <= auroc(confidence, np.array([bool(y) for _, y in checked])) <= high


def test_another_attempt_walks_through_the_whole_search_order() -> None:
    problem = COUNTDOWN.from_row({"id": "x", "nums": [8, 4, 2], "target": 99})  # out of reach
    options = search_order((8, 4, 2))
    solver, rng = CountdownSolver(), random.Random(0)
    attempt, seen = attempt_of(problem, options[5]), set()
    for _ in options:
        attempt = solver.another(rng, problem, attempt)
        seen.add(attempt.reasoning)
    assert seen == {attempt_of(problem, option).reasoning for option in options}


def test_an_analysis_and_a_hint_propose_how_to_begin(many: list[Document]) -> None:
    """So that a recipe which optimises only these has something to choose."""
    plans: Counter[str] = Counter()
    for document in many:
        if document.kind == "analysis":
            analysis, solution = document.completion.split("</analysis>\n<think>")
            plan = analysis.rpartition("; try ")[2]
            assert solution.startswith(plan)
            repeated = analysis.removeprefix("<analysis>").startswith(plan)
            plans["keep" if repeated else "change"] += 1
    assert min(plans.values()) >= 0.2 * plans.total()


def test_the_loss_covers_the_completion_and_the_draft_inside_the_prompt(
    tokenizer: PreTrainedTokenizerFast, many: list[Document]
) -> None:
    for document in many[:200]:
        encoded = encode(tokenizer, document)
        learned = [i for i, learn in zip(encoded.ids, encoded.learn, strict=True) if learn]
        assert tokenizer.decode(learned) == document.draft + document.completion + "<|im_end|>"


def test_a_short_warm_start_is_deterministic_and_goes_on_from_any_policy(tmp_path: Path) -> None:
    def run(name: str, *more: str) -> list[float]:
        return command.main(["--out", str(tmp_path / name), "--steps", "3", *more])

    first, again = run("a"), run("b")
    assert first == again
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    further = run("c", "--policy", str(tmp_path / "a"), "--seed", "1")
    assert further[-1] < first[0]


def test_a_policy_that_is_no_checkpoint_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path / "out"), "--policy", str(tmp_path)])
    assert capsys.readouterr().err.endswith("there is no config.json, so it is no checkpoint\n")
