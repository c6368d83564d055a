"""What the goldens of recipe prompts do not show of the prompts without a self-check."""

import pytest

from svr_lightning.core.prompts import analysis, feedback, guided, neutral
from svr_lightning.core.types import DraftState, OracleState
from svr_lightning.tasks import get_task


def test_a_right_draft_is_never_called_wrong() -> None:
    state = OracleState(draft="d", truncated=False, correct=True)
    with pytest.raises(ValueError, match="a draft that is right"):
        analysis(get_task("math").style, "q", state, 2)


def test_drafts_are_shortened_as_svrs_are_and_hints_are_not() -> None:
    style = get_task("countdown").style
    long = "x" * 512 + "y"
    kept = "x" * 512 + "[...truncated]"
    for messages in (
        neutral(style, "q", DraftState(draft=long, truncated=False), 2),
        feedback(style, "q", long),
        guided(style, "q", long, "hints", 3),
    ):
        assert f"\n{kept}\n\n" in messages[1]["content"]
    assert f"\n{long}\n\n" in guided(style, "q", "d", long, 3)[1]["content"]
