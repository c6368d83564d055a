"""What stopping rules certify, on problems made by hand."""

from dataclasses import replace

import pytest

from experiments.qwen.certificates import certificates
from tests.trajectories import pool, turn_tables


def certified(*answers: str) -> dict[tuple[str, float], dict[str, float]]:
    """Of 400 problems that are answered so in turn; all turns are equally probable."""
    rows = [pool(f"p{n}", answers[n % len(answers)]) for n in range(400)]
    run = turn_tables(rows)["toy"]
    run = replace(run, solution_logprob=-1.0 / run.completion_tokens)
    return {(row["way"], row["limit"]): row for row in certificates(run)}


def test_equal_answers_certify_where_they_are_right():
    found = certified("aab", "bca")
    row = found["equal answers", 0.1]  # given twice, it is always right; none is given thrice
    assert (row["certified"], row["wrong"]) == (1.0, 0.0)
    assert row["accepted"] == pytest.approx(0.5)
    assert found["solution's log-probability, summed", 0.2]["accepted"] == 0.0


def test_nothing_is_accepted_where_no_rule_tells_right_from_wrong():
    found = certified("aa", "bb")
    accepted = {name for (name, _), row in found.items() if row["accepted"]}
    assert accepted == {"oracle (reads labels)"}
