"""The warning that a policy has collapsed into doubt."""

import pytest

from svr_lightning.training.logs import WINDOW, CollapseWatch, SelfVerification, has_collapsed

START = SelfVerification(says_correct=0.9, would_stop=0.7, spread=0.2, auroc=0.52)
DOUBT = SelfVerification(says_correct=0.1, would_stop=0.01, spread=0.12, auroc=0.5)


def _stats(seen: SelfVerification) -> dict[str, float]:
    return {
        "train/verdict/correct": seen.says_correct,
        "train/would_stop": seen.would_stop,
        "train/confidence/spread": seen.spread,
        "train/auroc": seen.auroc,
    }


def test_uniform_doubt_after_overconfidence_is_a_collapse() -> None:
    assert has_collapsed(START, DOUBT)
    # As SVR does within fifty steps of the study in docs/results.md.
    assert has_collapsed(START, DOUBT._replace(says_correct=0.25, would_stop=0.15))


@pytest.mark.parametrize(
    "now",
    [
        DOUBT._replace(auroc=0.7),  # low, but it tells right from wrong
        DOUBT._replace(would_stop=0.18),  # it still stops a quarter as often
        DOUBT._replace(says_correct=0.6),  # it still says CORRECT
        START,
    ],
)
def test_one_sign_alone_is_none(now: SelfVerification) -> None:
    assert not has_collapsed(START, now)


def test_a_policy_that_never_stopped_has_not_collapsed() -> None:
    assert not has_collapsed(START._replace(would_stop=0.05), DOUBT)


def test_a_collapse_is_named_once_with_what_to_try() -> None:
    watch = CollapseWatch()
    rollouts = [START] * WINDOW + [DOUBT] * 3 * WINDOW
    said = [watch.note(_stats(seen)) for seen in rollouts]
    (warning,) = filter(None, said)
    assert said.index(warning) == 2 * WINDOW - 1  # as soon as a whole window is seen
    assert "in 10% of the turns (90% at the start)" in warning
    for advice in ("model.optimizer.lr", "SVRPlus", "warm start", "docs/results.md"):
        assert advice in warning


def test_rollouts_without_self_checks_or_of_one_class_say_nothing() -> None:
    watch = CollapseWatch()
    without = {key: value for key, value in _stats(DOUBT).items() if key != "train/auroc"}
    assert [watch.note(stats) for stats in [{}, without] * 20] == [None] * 40
