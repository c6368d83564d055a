"""Every field of a stopping rule, worked out by hand, and columns that agree with single turns."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svr_lightning.core.stopping import (
    DEFAULT_THRESHOLD,
    StopRule,
    StopSignals,
    answer_turn,
    evidence_of,
    repeats,
    should_stop,
    stops,
)
from svr_lightning.core.types import Verdict
from svr_lightning.evaluation.replay import replay
from tests.trajectories import record, records_of, turn_tables

VERDICTS = {"C": Verdict.CORRECT, "I": Verdict.INCORRECT, "U": Verdict.UNSURE}


def said(verdict: str, confidence: float, **other: Any) -> StopSignals:
    """One turn; the verdict is C, I or U."""
    turn = {"truncated": False, **other}
    return StopSignals(verdict=VERDICTS[verdict], confidence=confidence, **turn)


def test_the_defaults_are_the_papers_rule() -> None:
    rule = StopRule()
    assert rule.threshold == DEFAULT_THRESHOLD == 0.85
    for verdict in VERDICTS:
        for confidence in (0.0, 0.84, 0.85, 1.0):
            for truncated in (False, True):
                turn = said(verdict, confidence, truncated=truncated)
                expected = should_stop(VERDICTS[verdict], confidence, truncated)
                assert stops(rule, [turn]) is expected


@pytest.mark.parametrize(
    ("gate", "open_at"),
    [
        ("joint", [True, False, False, False]),
        ("verdict", [True, True, False, False]),
        ("confidence", [True, False, True, True]),
    ],
)
def test_a_gate_asks_for_the_verdict_the_confidence_or_both(gate: Any, open_at: list[bool]) -> None:
    turns = [said("C", 0.9), said("C", 0.5), said("U", 0.9), said("I", 0.9)]
    assert [stops(StopRule(gate=gate), [turn]) for turn in turns] == open_at
    assert not stops(StopRule(gate=gate, threshold=0.0), [said("C", 1.0, truncated=True)])


@pytest.mark.parametrize(
    ("evidence", "known", "unknown"),
    [("stated", 0.9, 0.9), ("verdict_probability", 0.5, 0.9), ("product", 0.45, 0.9)],
)
def test_evidence_is_stated_read_off_or_their_product(
    evidence: Any, known: float, unknown: float
) -> None:
    rule = StopRule(evidence=evidence)
    assert evidence_of(rule, said("C", 0.9, verdict_probability=0.5)) == pytest.approx(known)
    assert evidence_of(rule, said("C", 0.9)) == unknown
    assert stops(
        StopRule(evidence=evidence, threshold=known), [said("C", 0.9, verdict_probability=0.5)]
    )
    assert not stops(
        StopRule(evidence=evidence, threshold=known + 0.01),
        [said("C", 0.9, verdict_probability=0.5)],
    )


@pytest.mark.parametrize(
    ("answers", "agree"),
    [
        (["7"], False),  # nothing was said before
        (["7", "7"], True),
        ([" 7", "7\n"], True),  # white space is no difference
        (["1 + 2", "1+2"], True),
        (["7", "8"], False),
        (["7", "8", "7"], False),  # the turn before counts, none earlier
        (["8", "7", "7"], True),
        ([None, None], False),  # what cannot be read repeats nothing
        (["7", None], False),
        ([None, "7"], False),
    ],
)
def test_an_answer_repeats_the_one_before(answers: list[str | None], agree: bool) -> None:
    assert repeats([said("C", 0.5, answer=answer) for answer in answers]) is agree


def test_agreement_lowers_the_threshold_and_replaces_nothing_else() -> None:
    rule = StopRule(agreement_threshold=0.6)
    before = said("I", 0.2, answer="7")

    def stop(verdict: str, confidence: float, **other: Any) -> bool:
        return stops(rule, [before, said(verdict, confidence, **{"answer": "7", **other})])

    assert stop("C", 0.6)
    assert not stop("C", 0.59)
    assert not stop("C", 0.6, answer="8")
    assert stop("C", 0.85, answer="8")
    assert not stop("U", 0.9)
    assert not stop("C", 0.9, truncated=True)
    assert not stops(StopRule(), [before, said("C", 0.6, answer="7")])
    confident = StopRule(agreement_threshold=0.6, gate="confidence")
    assert stops(confident, [before, said("U", 0.6, answer="7")])


@pytest.mark.parametrize(
    ("turns", "turn"),
    [
        ([("I", 0.5), ("I", 0.7), ("I", 0.6)], 2),
        ([("I", 0.7), ("C", 0.7), ("U", 0.7)], 2),  # ties go to the better verdict
        ([("I", 0.7), ("U", 0.7), ("I", 0.7)], 2),
        ([("U", 0.7), ("U", 0.7)], 1),  # and then to the earlier turn
        ([("C", 0.1), ("I", 0.2)], 2),  # the confidence comes first
        ([("C", 0.8, True), ("I", 0.1)], 2),  # a truncated turn only where there is no other
        ([("C", 0.1, True), ("C", 0.2, True)], 2),
        ([("C", 0.8), ("C", 0.85)], 2),  # stopped: its own answer
        ([("I", 0.99), ("C", 0.85)], 2),  # however confident an earlier turn was
    ],
)
def test_an_exhausted_budget_returns_the_most_confident_turn(
    turns: list[tuple[Any, ...]], turn: int
) -> None:
    heard = [said(v, c, truncated=bool(cut)) for v, c, *cut in turns]
    assert answer_turn(StopRule(fallback="most_confident"), heard) == turn
    assert answer_turn(StopRule(), heard) == len(turns)


def test_the_most_confident_turn_is_so_by_the_rules_own_evidence() -> None:
    turns = [said("U", 0.9, verdict_probability=0.1), said("U", 0.5, verdict_probability=0.8)]
    stated = StopRule(fallback="most_confident")
    read_off = StopRule(fallback="most_confident", evidence="verdict_probability")
    assert (answer_turn(stated, turns), answer_turn(read_off, turns)) == (1, 2)


RULES = st.builds(
    StopRule,
    threshold=st.sampled_from([0.0, 0.5, 0.85, 1.01]),
    gate=st.sampled_from(["joint", "verdict", "confidence"]),
    evidence=st.sampled_from(["stated", "verdict_probability", "product"]),
    agreement_threshold=st.sampled_from([None, 0.0, 0.5, 0.9]),
    fallback=st.sampled_from(["last", "most_confident"]),
)
LEVELS = st.sampled_from([0.0, 0.4, 0.5, 0.85, 1.0])
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "verdict": st.sampled_from([v.value for v in Verdict]),
            "confidence": LEVELS,
            "verdict_probability": st.none() | LEVELS,
            "truncated": st.booleans(),
            "answer": st.sampled_from(["7", " 7", "8", None]),
        }
    ),
    min_size=4,
    max_size=4,
)


@settings(max_examples=120, deadline=None)
@given(RULES, st.lists(TURNS, min_size=1, max_size=4), st.integers(1, 4))
def test_columns_return_what_turn_after_turn_would(
    rule: StopRule, trajectories: list[list[dict[str, Any]]], max_turns: int
) -> None:
    rows = []
    for name, turns in enumerate(trajectories):
        row = record(str(name), *[(True, "C", 0.5, 1)] * 4)
        for turn, changes in zip(row["turns"], turns, strict=True):
            turn.update(changes)
        rows.append(row)
    outcome = replay(turn_tables(rows)["toy"], rule, max_turns)
    for index, row in enumerate(records_of(rows)):
        heard: list[StopSignals] = []
        for turn in row.turns[:max_turns]:
            heard.append(turn.signals())
            if stops(rule, heard):
                break
        assert outcome.observed[index] == len(heard)
        assert outcome.returned[index] == answer_turn(rule, heard)
        assert outcome.stopped_early[index] == (stops(rule, heard) and len(heard) < max_turns)
