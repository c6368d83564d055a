"""The builder of the embedded policy: demonstrations, tokenizer, training."""

import itertools
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from svr_lightning import tiny
from svr_lightning.core.parsing import self_check_format_score, without_spans
from svr_lightning.core.types import Verdict
from svr_lightning.recipes.scrpo import ANALYSIS_CLOSE, ANALYSIS_OPEN
from svr_lightning.tasks import get_task
from svr_lightning.tiny.problems import universe
from tests.demonstrations import countdown_question
from tools.warmstart import build as warmstart
from tools.warmstart import traces
from tools.warmstart.documents import encode
from tools.warmstart.embedded import build_tokenizer
from tools.warmstart.method_traces import CHANGE_HINT, KEEP_HINT, method_documents
from tools.warmstart.traces import Puzzle, documents, next_trace, self_check

SHIPPED = Path(tiny.__file__).parent / "countdown_policy"
COUNTDOWN = get_task("countdown")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(documents(0), sample=2000)


def test_demonstrations_are_graded_as_they_are_labelled() -> None:
    for document in itertools.islice(documents(3), 500):
        nums, target = countdown_question(document)
        problem = COUNTDOWN.from_row({"id": "x", "nums": nums, "target": target})
        assert COUNTDOWN.grade(document.completion, problem) == document.correct
        assert COUNTDOWN.format_score(document.completion) == 1.0
        assert self_check_format_score(document.completion) == 1.0
        assert len(document.completion) <= COUNTDOWN.style.draft_limit


def test_demonstrations_of_other_methods_are_graded_as_they_are_labelled() -> None:
    seen = set()
    for document in itertools.islice(method_documents(3), 600):
        numbers, target = countdown_question(document)
        problem = COUNTDOWN.from_row({"id": "x", "nums": numbers, "target": target})
        assert COUNTDOWN.grade(document.completion, problem) == document.correct
        assert len(document.completion) <= COUNTDOWN.style.draft_limit
        system, user = (message["content"] for message in document.messages)
        assert document.draft in user
        if "tutor" in system:  # gives no answer
            assert document.completion.endswith((KEEP_HINT, CHANGE_HINT))
        else:
            solution = without_spans(document.completion, ANALYSIS_OPEN, ANALYSIS_CLOSE)
            assert COUNTDOWN.format_score(solution) == 1.0
        checked = document.completion.partition("<self_check>")[2]
        seen.add((system, "VERDICT" in checked, "CONFIDENCE" in checked))
    assert len(seen) == 5  # no self-check, each of its fields alone, both; and the tutor


def test_demonstrations_hold_no_held_out_problem() -> None:
    trained = set(universe("train", 1))
    held_out = set(universe("dev", 1)) | set(universe("test", 1))
    assert not trained & held_out


def test_equal_seeds_give_equal_demonstrations() -> None:
    first, again, other = (
        [document.completion for document in itertools.islice(documents(seed), 50)]
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


def test_a_wrong_answer_is_called_correct_most_of_the_time_with_confidence() -> None:
    rng = random.Random(0)
    checks = [self_check(rng, correct=False) for _ in range(4000)]
    trusted = [confidence for verdict, confidence in checks if verdict is Verdict.CORRECT]
    assert 0.70 <= len(trusted) / len(checks) <= 0.76  # TRUST_WRONG = 0.73
    assert sum(c >= 0.85 for c in trusted) / len(trusted) > 0.75


def test_refinement_moves_on_through_the_whole_search_order() -> None:
    puzzle = Puzzle(numbers=(8, 4, 2), target=99)  # out of reach, so the search never ends
    rng = random.Random(0)
    answer = puzzle.options[5]
    seen = set()
    for _ in range(-(-len(puzzle.options) // traces.NEXT_TRIES)):
        trace = next_trace(rng, puzzle, answer)
        seen.update(line.split(" ")[1] for line in trace.lines[1:])
        answer = trace.answer
    assert seen == {option.text for option in puzzle.options}


def test_the_loss_covers_the_completion_and_the_draft_inside_the_prompt(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    for document in itertools.islice(documents(1), 100):
        encoded = encode(tokenizer, document)
        learned = [i for i, learn in zip(encoded.ids, encoded.learn, strict=True) if learn]
        assert tokenizer.decode(learned) == document.draft + document.completion + "<|im_end|>"


def test_a_short_rebuild_from_nothing_works_and_is_deterministic(tmp_path: Path) -> None:
    first = warmstart.build(tmp_path / "a", steps=3, seed=1)
    again = warmstart.build(tmp_path / "b", steps=3, seed=1)
    assert first == again
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert first[-1] < first[0]


def test_the_shipped_tokenizer_is_the_one_that_a_rebuild_makes() -> None:
    shipped = AutoTokenizer.from_pretrained(SHIPPED)
    rebuilt = build_tokenizer(documents(0))
    assert shipped.get_vocab() == rebuilt.get_vocab()
    assert shipped.chat_template == rebuilt.chat_template
