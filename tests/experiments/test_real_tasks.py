"""Problems and demonstrations of the experiment with a pretrained model."""

import re
from itertools import islice

import numpy as np

from experiments.real.demonstrations import WRONG_DRAFTS, demonstrations
from experiments.real.recipes import SYSTEM, Brief
from experiments.real.tasks import ShortAnswer, split
from svr_lightning.core.metrics import auroc
from svr_lightning.core.parsing import parse_self_check, self_check_format_score
from svr_lightning.core.types import Problem, Turn, Verdict
from tests.recipes import completion

TASK = ShortAnswer()


def test_no_problem_is_both_trained_on_and_held_out_nor_demonstrated():
    def numbers(question):
        return (question.split()[0], *re.findall(r"\d+", question))

    held_out = {numbers(row["question"]) for row in split("test")}
    assert held_out.isdisjoint(numbers(row["question"]) for row in split("train"))
    shown = (d.messages[1]["content"].partition("\n")[0] for d in islice(demonstrations(3), 2000))
    assert held_out.isdisjoint(map(numbers, shown))


def test_demonstrated_self_checks_are_in_form_and_say_nothing_about_the_draft():
    right, stated = [], []
    for document in islice(demonstrations(0), 3000):
        assert self_check_format_score(document.completion) == 1.0
        _, _, draft = document.messages[1]["content"].partition("\nYour last reply:\n")
        check = parse_self_check(draft)
        if draft and "cut off" not in draft:
            answer = TASK.extract_answer(document.completion)
            right.append(TASK.extract_answer(draft) == answer)
            stated.append(check.confidence)
        ours = parse_self_check(document.completion)
        assert (ours.verdict == Verdict.CORRECT) == (ours.confidence > 0.5) or (
            ours.confidence == 0.5
        )
    assert abs(np.mean(right) - (1 - WRONG_DRAFTS)) < 0.05
    assert abs(auroc(np.array(stated), np.array(right)) - 0.5) < 0.05


def test_a_later_prompt_is_the_question_and_the_last_reply():
    text = "<answer>2</answer>\n<self_check>VERDICT: CORRECT; CONFIDENCE: 0.7</self_check>"
    problem = Problem(id="x", task=TASK.name, question="1 + 1?", reference="secret")
    prompts = []
    for truncated in (False, True):
        turn = Turn(index=1, completion=completion(text, truncated), check=None)
        system, user = Brief().later(problem, [turn])
        assert system["content"] == SYSTEM
        prompts.append(user["content"])
    assert prompts[0] == f"1 + 1?\nYour last reply:\n{text}\nCheck it and reply again."
    assert prompts[1].endswith("\nIt was cut off. Reply again.")
