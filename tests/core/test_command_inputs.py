"""Evaluations and stopping rules as every command takes them."""

import argparse
from pathlib import Path

import pytest

from svr_lightning.analysis.results import samples_file
from svr_lightning.cli.inputs import add_stop_option, stop_of
from svr_lightning.core.stopping import Confident, RepeatedAnswer, StopRule
from svr_lightning.errors import ConfigError


def stop(*arguments: str) -> StopRule | None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_stop_option(parser)
    return stop_of(parser.parse_args(arguments))


def test_a_stopping_rule_is_spelled_as_in_a_configuration() -> None:
    assert stop() is None
    assert stop("--stop", "Confident") == Confident()
    given = ("--stop", "Confident", "--stop.threshold", "0.9", "--stop.needs_correct", "false")
    assert stop(*given) == Confident(threshold=0.9, needs_correct=False)
    assert stop("--stop", "RepeatedAnswer", "--stop.times", "3") == RepeatedAnswer(times=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stop.threshold", "0.9"], "--stop.threshold: name its rule too, --stop Confident"),
        (["--stop", "Majority", "--stop.times", "3"], "Majority has no such option; it has cert"),
        (["--stop", "Confident", "--stop.threshold", "9"], "--stop Confident: threshold=9.0 must"),
    ],
)
def test_an_option_that_no_rule_can_have_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stop(*arguments)


def test_an_evaluation_is_its_folder_or_its_samples_file(tmp_path: Path) -> None:
    file = tmp_path / "eval" / "test" / "samples.jsonl"
    with pytest.raises(ConfigError, match=r"no evaluation; it needs a samples\.jsonl"):
        samples_file(tmp_path)
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(ConfigError, match=r"no evaluation; give one of .*eval/test"):
        samples_file(tmp_path)
    assert samples_file(file.parent) == samples_file(file) == file
