"""The warning that a policy has collapsed into doubt."""

import pytest

from svr_lightning.training.collapse import WINDOW, CollapseWatch

START, DOUBT = (0.7, 0.52), (0.01, 0.5)
"""The share of turns that would stop, and the AUROC of their confidence."""


def warnings(*rollouts: tuple[float, float]) -> list[str | None]:
    """What is said after each rollout."""
    watch = CollapseWatch()
    return [
        watch.note({"train/would_stop": stops, "train/auroc": auroc}) for stops, auroc in rollouts
    ]


def test_doubt_of_right_and_wrong_answers_alike_is_named_once() -> None:
    said = warnings(*[START] * WINDOW, *[DOUBT] * 3 * WINDOW)
    (warning,) = filter(None, said)
    assert said.index(warning) == 2 * WINDOW - 1  # as soon as a whole window is seen
    assert "1% of the turns would stop (70% at the start)" in warning
    assert "docs/results.md" in warning


@pytest.mark.parametrize(
    ("start", "now"),
    [
        (START, (0.01, 0.7)),  # low, but it tells right from wrong
        (START, (0.18, 0.5)),  # it still stops a quarter as often
        (START, START),
        ((0.05, 0.52), DOUBT),  # it never stopped
    ],
)
def test_one_sign_alone_is_no_collapse(
    start: tuple[float, float], now: tuple[float, float]
) -> None:
    assert not any(warnings(*[start] * WINDOW, *[now] * 3 * WINDOW))


def test_rollouts_without_self_checks_or_of_one_class_are_ignored() -> None:
    watch = CollapseWatch()
    assert not any(watch.note({"train/would_stop": 0.0}) for _ in range(4 * WINDOW))


def test_a_run_resumed_in_collapse_keeps_its_start() -> None:
    watch, resumed = CollapseWatch(), CollapseWatch()
    for stops, auroc in [START] * WINDOW:
        watch.note({"train/would_stop": stops, "train/auroc": auroc})
    resumed.seen = watch.seen
    said = [resumed.note({"train/would_stop": 0.0, "train/auroc": 0.5}) for _ in range(WINDOW)]
    assert said[:-1] == [None] * (WINDOW - 1)
    assert said[-1]
