"""The paper's rule, and the turn whose answer is returned."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.stopping import DEFAULT_THRESHOLD, Rule, ending, should_stop
from svr_lightning.core.types import Verdict

C = Verdict.CORRECT


def test_the_default_threshold_is_the_papers() -> None:
    assert DEFAULT_THRESHOLD == 0.85


@pytest.mark.parametrize(
    ("confidence", "stops"),
    [(0.85, True), (0.8500001, True), (1.0, True), (0.8499999, False), (0.0, False)],
)
def test_a_complete_correct_verdict_stops_from_the_threshold_on(
    confidence: float, stops: bool
) -> None:
    assert should_stop(C, confidence, truncated=False) is stops


@pytest.mark.parametrize("verdict", [Verdict.INCORRECT, Verdict.UNSURE])
def test_no_other_verdict_stops(verdict: Verdict) -> None:
    assert not should_stop(verdict, 1.0, truncated=False)
    assert not should_stop(verdict, 1.0, truncated=False, threshold=0.0)


def test_a_truncated_turn_never_stops() -> None:
    assert not should_stop(C, 1.0, truncated=True)
    assert not should_stop(C, 1.0, truncated=True, threshold=0.0)


def test_the_threshold_moves_the_gate() -> None:
    assert should_stop(C, 0.65, truncated=False, threshold=0.65)
    assert not should_stop(C, 0.9, truncated=False, threshold=0.95)
    assert should_stop(C, 0.0, truncated=False, threshold=0.0)


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("VERDICT: CORRECT; CONFIDENCE: 0.85", True),
        ("VERDICT: CORRECT; CONFIDENCE: 85%", True),
        ("VERDICT: CORRECT", False),  # the prior 0.8 lies under the threshold
        ("VERDICT: CORRECT; CONFIDENCE: 9/10", False),
        ("CONFIDENCE: 1.0", False),  # no verdict is no commitment
        ("VERDICT: CORRECT, INCORRECT, or UNSURE; CONFIDENCE: 1", False),
        ("", False),
    ],
)
def test_what_was_not_said_clearly_does_not_stop(text: str, stops: bool) -> None:
    check = parse_self_check(f"<self_check>{text}</self_check>")
    assert should_stop(check.verdict, check.confidence, truncated=False) is stops


class Gates(Rule[bool]):
    """Each turn says itself whether it ends the trajectory."""

    def stops(self, turns: Sequence[bool], max_turns: int) -> bool:
        return turns[-1]


def returned_turn(gates: Sequence[bool], max_turns: int) -> int | None:
    for seen in range(1, len(gates) + 1):
        end = ending(Gates(), gates[:seen], max_turns)
        if end is not None:
            assert end.observed == end.returned == seen
            assert end.stopped_early is (seen < max_turns)
            return seen
    return None


@pytest.mark.parametrize(
    ("gates", "max_turns", "turn"),
    [
        ([True], 10, 1),  # generation ended there: later turns never ran
        ([False, True], 10, 2),
        ([False, True, False, True], 10, 2),  # the first open gate
        ([False] * 10, 10, 10),  # none opened: the last turn's answer
        ([False] * 9 + [True], 10, 10),
        ([False, False, True], 2, 2),  # what lies beyond the budget does not count
        ([True, True, True], 1, 1),
        ([False], 1, 1),
    ],
)
def test_the_first_open_gate_or_else_the_last_turn_is_returned(
    gates: list[bool], max_turns: int, turn: int
) -> None:
    assert returned_turn(gates, max_turns) == turn


@pytest.mark.parametrize("gates", [[], [False], [False] * 9])
def test_a_trajectory_with_turns_left_and_no_stop_goes_on(gates: list[bool]) -> None:
    assert returned_turn(gates, 10) is None


@given(st.lists(st.booleans(), min_size=10, max_size=10), st.integers(1, 10))
def test_a_longer_budget_never_returns_an_earlier_turn(gates: list[bool], budget: int) -> None:
    longest = returned_turn(gates, 10)
    assert longest is not None
    assert returned_turn(gates, budget) == min(longest, budget)
