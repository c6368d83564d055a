"""The control that stops where the reasoning ends in "yes"."""

from typing import Any

import pytest

from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import Trajectory
from svr_lightning.recipes.dialogues import chain
from tests.recipes import completion, ten
from tools.miniature.string_rule import StringRule

GIVES_UP = (
    "<think>try 8+4=12,12*2=24 yes; try 8*4=32,32+2=34 no</think>\n<answer>(8*4)+2</answer>\n"
    "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>"
)
FINDS = GIVES_UP.replace("34 no<", "34 yes<").replace("VERDICT: CORRECT", "VERDICT: INCORRECT")


def play(texts: list[str]) -> tuple[Trajectory, list[str]]:
    """The trajectory and every prompt of a policy that says ``texts`` one after the other."""
    program: Any = chain(StringRule().dialogue, ten(), 0, len(texts), StopRule())
    prompts = [next(program)]
    for text in texts:
        try:
            prompts.append(program.send([completion(text)]))
        except StopIteration as end:
            return end.value, [messages[-1]["content"] for (messages,) in prompts]
    raise AssertionError("it asks for more turns than it may take")


def test_it_reads_the_last_word_of_the_reasoning_and_nothing_that_the_policy_says_of_itself() -> (
    None
):
    trajectory, prompts = play([GIVES_UP, FINDS, GIVES_UP])
    checks = [(turn.check.verdict.value, turn.check.confidence) for turn in trajectory.turns]
    assert checks == [("INCORRECT", 0.2), ("CORRECT", 1.0)]
    assert len(prompts) == 2
    assert "INCORRECT" in prompts[1]
    assert "0.20" in prompts[1]


@pytest.mark.parametrize("text", ["", "yes", "<think>yes, no</think>", "<think>eyes</think>"])
def test_anything_else_is_no_find(text: str) -> None:
    trajectory, _ = play([text, text])
    assert len(trajectory.turns) == 2
    assert trajectory.turns[-1].check.confidence == 0.2
