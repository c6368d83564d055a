"""Every stopping rule, worked out by hand, live and replayed."""

import math
from collections.abc import Sequence
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svr_lightning.analysis.metrics import measure
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.table import FirstRight
from svr_lightning.core.stopping import (
    DEFAULT_THRESHOLD,
    RULES,
    Confident,
    FixedTurns,
    Majority,
    Posterior,
    RepeatedAnswer,
    StopRule,
    ending,
    rule_as_config,
    rule_from_config,
    should_stop,
)
from svr_lightning.core.types import Ending, StopSignals, TokenScores, Verdict
from svr_lightning.evaluation.config import EvaluationConfig
from tests.trajectories import record, turn_tables

VERDICTS = {"C": Verdict.CORRECT, "I": Verdict.INCORRECT, "U": Verdict.UNSURE}


def turn_of(verdict: str, confidence: float, **other: Any) -> StopSignals:
    """One turn; the verdict is C, I or U."""
    return StopSignals(VERDICTS[verdict], confidence, **{"truncated": False, **other})


def answers(letters: str) -> list[StopSignals]:
    """A turn without a self-check for each letter; a dot is no answer."""
    return [StopSignals(None, None, truncated=False, answer=".abc".index(one)) for one in letters]


def end_of(rule: StopRule | None, turns: Sequence[StopSignals], max_turns: int) -> Ending:
    """How a trajectory ends that would have made ``turns``."""
    for seen in range(1, len(turns) + 1):
        if end := ending(rule, turns[:seen], max_turns):
            return end._replace(accepted=False)
    raise AssertionError("the turns are too few")


# --- an answer that cannot be read ---------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        Confident(),
        Confident(needs_correct=False),
        Confident(threshold=0.0),
        Confident(score="answer_logprob", threshold=-1.0, needs_correct=False),
        RepeatedAnswer(),
        Majority(),
        Posterior(),
    ],
)
def test_a_turn_whose_answer_cannot_be_read_is_never_accepted_by_any_rule(rule):
    sure = {"verdict": Verdict.CORRECT, "confidence": 0.95, "truncated": False}
    unread = StopSignals(**sure, answer=0, answer_logprob=-0.5)
    assert ending(rule, [unread], 3) is None
    assert ending(rule, [unread] * 3, 3) == Ending(3, 3, stopped_early=False, accepted=False)
    # Where answers are not known at all, as in the log of another program, the rule decides.
    known = [unread._replace(answer=answer) for answer in (1, None)]
    by_answers = isinstance(rule, RepeatedAnswer | Majority | Posterior)
    assert [ending(rule, [turn] * 2, 2).accepted for turn in known] == [True, not by_answers]


def test_a_fixed_number_of_turns_ends_without_being_accepted():
    assert ending(FixedTurns(turns=1), answers("."), 3) == Ending(1, 1, True, accepted=False)
    assert ending(FixedTurns(turns=1), answers("a"), 3) == Ending(1, 1, True, accepted=True)


# --- the paper's rule and its kin ---------------------------------------------------------------


def test_the_default_is_the_papers_rule():
    assert EvaluationConfig().full_rule == Confident()
    assert DEFAULT_THRESHOLD == 0.85


def test_a_complete_turn_with_a_correct_verdict_stops_from_the_threshold_on():
    for verdict in (Verdict.CORRECT, "CORRECT"):  # a verdict may be a plain string
        assert should_stop(verdict, 0.5, False, 0.5)
        assert not should_stop(verdict, 0.8499999, False)
        assert not should_stop(verdict, 1.0, True)


@pytest.mark.parametrize(
    ("rule", "open_at"),
    [
        (Confident(), [True, False, False, False]),
        (Confident(threshold=0.0), [True, True, False, False]),
        (Confident(needs_correct=False), [True, False, True, True]),
    ],
)
def test_a_stop_needs_the_verdict_the_confidence_or_both(rule, open_at):
    turns = [turn_of("C", 0.9), turn_of("C", 0.5), turn_of("U", 0.9), turn_of("I", 0.9)]
    assert [rule.stops([turn], 10) for turn in turns] == open_at
    assert not rule.stops([turn_of("C", 1.0, truncated=True)], 10)


@pytest.mark.parametrize(
    ("score", "threshold"),
    [
        ("verdict_probability", 0.5),
        ("answer_logprob", -0.25),
        ("completion_logprob", -0.5),
        ("solution_logprob", -0.75),
    ],
)
def test_a_score_stops_from_its_threshold_on_and_never_where_it_is_not_known(score, threshold):
    rule = Confident(score=score, threshold=threshold, needs_correct=False)
    scores = TokenScores(0.5, -0.25, -0.5, -0.75)._asdict()
    assert rule.stops([StopSignals(None, None, truncated=False, **scores)], 10)
    above = Confident(score=score, threshold=threshold + 0.001, needs_correct=False)
    assert not above.stops([StopSignals(None, None, truncated=False, **scores)], 10)
    assert not rule.stops([turn_of("C", 1.0)], 10)
    assert not rule.stops([turn_of("C", 1.0, **{**scores, "truncated": True})], 10)
    assert not Confident(score=score, threshold=threshold).stops([turn_of("U", 1.0, **scores)], 10)


# --- rules that need no self-check --------------------------------------------------------------


@pytest.mark.parametrize(
    ("letters", "in_a_row", "twice", "thrice"),
    [
        # turns observed when the same answer came twice and three times, of at most six
        ("aabbcc", 2, 2, 6),
        ("abaaab", 4, 3, 4),
        ("abcabc", 6, 4, 6),
        ("a.abbb", 5, 3, 6),
        ("..a..a", 6, 6, 6),
    ],
)
def test_an_answer_stops_when_it_has_been_given_often_enough(letters, in_a_row, twice, thrice):
    turns = answers(letters)
    assert end_of(RepeatedAnswer(), turns, 6) == Ending(in_a_row, in_a_row, in_a_row < 6)
    apart = RepeatedAnswer(times=2, in_a_row=False)
    assert end_of(apart, turns, 6) == Ending(twice, twice, twice < 6)
    assert end_of(RepeatedAnswer(times=3, in_a_row=False), turns, 6).observed == thrice


@pytest.mark.parametrize(
    ("letters", "max_turns", "observed", "returned"),
    [
        ("aaabbb", 6, 3, 1),  # another answer could draw level, but a came first
        ("abab", 4, 3, 1),  # a tie of two goes to the answer that was given first
        ("abbb", 4, 4, 2),  # b leads 2 to 1 with one turn left: a could draw level, and came first
        ("...", 3, 3, 3),  # no vote at all: the last turn
        ("abababaaaa", 10, 8, 1),  # 5 to 3, two left
    ],
)
def test_a_majority_stops_when_the_turns_that_are_left_cannot_change_it(
    letters, max_turns, observed, returned
):
    end = end_of(Majority(), answers(letters), max_turns)
    assert end == Ending(observed, returned, observed < max_turns)


@settings(max_examples=300)
@given(st.text("abc.", min_size=1, max_size=8), st.integers(0, 8))
def test_an_early_majority_is_that_of_all_turns_and_no_earlier_stop_would_be(letters, more):
    """Against every possible continuation of the turns."""
    turns = answers(letters)
    max_turns = len(turns) + more % 3
    end = ending(Majority(), turns, max_turns)
    leader = Majority().answer_turn(turns, max_turns)
    results = {
        [*turns, *rest][Majority().answer_turn([*turns, *rest], max_turns) - 1].answer
        for rest in continuations(max_turns - len(turns))
    }
    settled = len(results) == 1 and results != {0}
    assert (end is not None) == (settled or len(turns) == max_turns)
    if settled:
        assert results == {turns[leader - 1].answer}


def continuations(left: int) -> list[list[StopSignals]]:
    """All that may follow; 9 is an answer that was not given before."""
    if not left:
        return [[]]
    firsts = [StopSignals(None, None, truncated=False, answer=one) for one in (0, 1, 2, 3, 9)]
    return [[first, *rest] for first in firsts for rest in continuations(left - 1)]


@pytest.mark.parametrize(
    ("certainty", "letters", "observed"),
    [
        # P(p > 1/2) for Beta(first + 1, second + 1): 3/4, 7/8, 15/16, 31/32 for 1 to 4 in a row
        (0.75, "aaaaaaaaaa", 1),
        (0.76, "aaaaaaaaaa", 2),
        (0.95, "aaaaaaaaaa", 4),
        (0.95, "abaaaaaaaa", 6),  # 5 to 1: 120/128 = .9375; settled instead, with four left
        (0.80, "abaaaaaaaa", 4),  # 3 to 1: 26/32 = .8125
        (1.0, "aaaaaaaaaa", 5),
    ],
)
def test_a_majority_below_certainty_follows_the_beta_posterior(certainty, letters, observed):
    assert end_of(Majority(certainty=certainty), answers(letters), 10).observed == observed


def votes(*pairs: tuple[int, float | None]) -> list[StopSignals]:
    """Turns as (answer, confidence); answer 0 cannot be read."""
    return [StopSignals("CORRECT", p, truncated=False, answer=a) for a, p in pairs]


@pytest.mark.parametrize(
    ("turns", "probabilities"),
    [
        (votes((1, 0.6)), {1: 0.6}),  # a single turn: its confidence
        # .36 against ten answers of .04 * .04 each that no turn has given
        (votes((1, 0.6), (1, 0.6)), {1: 0.36 / 0.376}),
        # .6 * .04 for either answer, nine others
        (votes((1, 0.6), (2, 0.6)), {1: 0.024 / 0.0624, 2: 0.024 / 0.0624}),
        # Nothing stated: p = 1/2, so that agreement alone counts.
        (votes((3, None), (3, None)), {3: 0.25 / 0.275}),
        (votes((0, 0.9)), {}),
        (votes((1, 1.0)), {1: 0.99}),  # no confidence decides alone
    ],
)
def test_votes_and_confidences_make_the_probability_of_an_answer(turns, probabilities):
    assert list(Posterior(alternatives=10).probabilities(turns))[-1] == pytest.approx(probabilities)


def test_a_posterior_stops_at_its_threshold_and_returns_the_most_probable_answer():
    turns = votes((1, 0.3), (2, 0.8), (2, 0.8))
    assert ending(Posterior(threshold=0.9), turns[:2], 3) is None
    assert ending(Posterior(threshold=0.9), turns, 5) == Ending(3, 2, True, accepted=True)
    assert ending(Posterior(threshold=0.999), turns, 3) == Ending(3, 2, False)
    assert ending(Posterior(), votes((0, 0.9), (0, 0.9)), 2) == Ending(2, 2, False)
    assert ending(Posterior(threshold=0.7), votes((1, 0.7)), 2) == Ending(1, 1, True, accepted=True)


@pytest.mark.parametrize(
    ("score", "verdict", "value", "p"),
    [
        ("verdict_probability", Verdict.CORRECT, 0.8, 0.8),
        ("verdict_probability", Verdict.INCORRECT, 0.8, 0.2),
        ("verdict_probability", Verdict.UNSURE, 0.8, 0.5),
        ("solution_logprob", Verdict.INCORRECT, math.log(0.8), 0.8),
        ("solution_logprob", Verdict.CORRECT, None, 0.5),
    ],
)
def test_another_score_weighs_votes_in_the_confidences_place(score, verdict, value, p):
    turn = StopSignals(verdict, 0.99, truncated=False, answer=1, **{score: value})
    assert list(Posterior(score=score).probabilities([turn])) == [pytest.approx({1: p})]


def test_fixed_turns_stop_there_and_no_rule_at_all_at_the_end():
    turns = answers("aaaa")
    assert end_of(FixedTurns(turns=3), turns, 4) == Ending(3, 3, True)
    assert end_of(FixedTurns(turns=9), turns, 4) == Ending(4, 4, False)
    assert end_of(None, turns, 4) == Ending(4, 4, False)


# --- replays and their cost ---------------------------------------------------------------------


def letter_record(letters: str, right: str) -> dict[str, Any]:
    """A recording whose turn t says a letter and costs 100 t prompt and t completion tokens."""
    turns = [
        (one == right, "C", 0.9 if one == "b" else 0.1, t + 1) for t, one in enumerate(letters)
    ]
    row = record(letters, *turns)
    for turn, one in zip(row["turns"], letters, strict=True):
        turn["answer"] = None if one == "." else one
        turn["answer_group"] = ".abc".index(one)
    return row


@pytest.mark.parametrize(
    ("rule", "returned", "tokens"),
    [
        # The turn that stops is paid for: turns 1 to t cost 100 + 1, 200 + 2, ... each.
        (FixedTurns(turns=2), 2, 303),
        (RepeatedAnswer(), 4, 1010),
        (RepeatedAnswer(in_a_row=False), 3, 606),
        (Majority(), 1, 1010),  # a: 3 of 4, one left; the answer stood at turn 1
        (Confident(), 2, 303),
        (FirstRight(), 1, 101),
        (None, 5, 1515),
    ],
)
def test_all_turns_up_to_the_stop_are_paid_for_and_no_other(rule, returned, tokens):
    (table,) = turn_tables([letter_record("abaaa", "a")]).values()
    outcome = replay(table, rule, 5)
    assert outcome.returned.tolist() == [returned]
    assert measure(outcome)["avg_total_tokens"] == tokens


def test_labels_cannot_reach_a_rule_that_inference_may_use():
    assert not issubclass(FirstRight, StopRule)
    assert "FirstRight" not in RULES
    assert set(get_type_hints(StopSignals)) == {
        "verdict",
        "confidence",
        "truncated",
        "answer",
        *TokenScores._fields,
    }
    with pytest.raises(ValueError, match="is no stopping rule"):
        rule_from_config({"stop": {"class_path": "svr_lightning.analysis.table.FirstRight"}})


# --- configurations -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        FixedTurns(turns=2),
        RepeatedAnswer(times=2, in_a_row=False),
        Majority(),
        Confident(score="answer_logprob", threshold=-0.1),
    ],
    ids=repr,
)
def test_a_rule_survives_its_configuration(rule):
    assert rule_from_config({"stop": rule_as_config(rule)}) == rule


def test_results_without_a_rule_have_the_papers_and_those_with_settings_of_old_are_refused():
    assert rule_from_config({}) == Confident()
    with pytest.raises(ValueError, match="gate is no longer a setting; evaluate again"):
        rule_from_config({"threshold": 0.7, "gate": "joint"})


@pytest.mark.parametrize(
    "evaluation",
    [
        {"stop": "Confident"},
        {"stop": {}},
        {"stop": {"class_path": "os.system"}},
        {"stop": {"class_path": "mine.rules.Majority"}},
        {"stop": {"class_path": "Confident", "init_args": {"threshold": "0.9"}}},
        {"stop": {"class_path": "Confident", "init_args": {"score": "length"}}},
        {"stop": {"class_path": "Confident", "init_args": {"threshold": math.nan}}},
        {"stop": {"class_path": "RepeatedAnswer", "init_args": [2]}},
        {"stop": {"class_path": "Confident", "init_args": {"give_up": 0.3}}},
    ],
    ids=str,
)
def test_what_is_no_rule_is_refused(evaluation):
    with pytest.raises(ValueError, match="is no stopping rule"):
        rule_from_config(evaluation)


@pytest.mark.parametrize(
    ("score", "reads"),
    [
        ("confidence", True),
        ("verdict_probability", True),
        ("completion_logprob", True),  # the self-check's tokens are among them
        ("answer_logprob", False),
        ("solution_logprob", False),
    ],
)
def test_a_rule_reads_the_self_check_if_its_score_does(score, reads):
    threshold = -1.0 if "logprob" in score else 0.5
    rule = Confident(score=score, threshold=threshold, needs_correct=False)
    assert rule.reads_self_check == reads
