"""The certificate in a policy's folder: read, and used where a configuration names no rule."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.analysis.operating_point import (
    OPERATING_POINT,
    Certificate,
    problem_digests,
    read_operating_point,
    weights_digest,
)
from svr_lightning.analysis.results import certified_settings
from svr_lightning.cli import serve
from svr_lightning.cli.main import parser_of
from svr_lightning.control.controller import Controller
from svr_lightning.core.stopping import Confident, Majority, RepeatedAnswer, rule_from_config
from svr_lightning.errors import ConfigError
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.recipes.dialogues import FreshTurns
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks import get_task
from svr_lightning.training.config import EvaluationConfig
from svr_lightning.training.evaluating import quoted_config
from svr_lightning.training.module import SVRModule
from svr_lightning.training.sources import load_problems
from tests.commands import SHIPPED, TINY, embedded, flags, jsonl, read_json, refused, screen
from tests.core.test_controller import certificate
from tests.small_fit import tiny


@pytest.mark.parametrize(
    "text",
    ["[" * 10**5, '{"certified": {"\\ud800": 1}}', '{"threshold": 0.5}'],
    ids=["deep", "key", "of an earlier version, with a threshold alone"],
)
def test_a_file_that_is_no_certificate_is_named(tmp_path, text):
    (tmp_path / "operating_point.json").write_text(text)
    with pytest.raises(ConfigError, match=r"operating_point\.json: "):
        read_operating_point(tmp_path)


def test_a_folder_without_a_certificate_has_none(tmp_path):
    assert read_operating_point(tmp_path) is None
    assert read_operating_point("embedded:countdown-tiny") is None


def written(folder: Path, **changes: Any) -> Certificate:
    """A certificate in a policy's folder."""
    rule = {"class_path": "Confident", "init_args": {"score": "verdict_probability"}}
    own = {"rule": rule, "max_turns": 10, "decoding": {}}
    return certificate(folder, OPERATING_POINT, **{**own, **changes})


def test_a_certificate_brings_its_whole_rule_and_names_other_settings(tmp_path):
    found = written(tmp_path, decoding={"temperature": 0.0, "top_k": 0})
    rule = Confident(threshold=0.9, score="verdict_probability")
    assert found.rule == rule
    assert found.id == read_json(tmp_path / "operating_point.json")["sha256"][:16]
    assert found.promises == ("pse at most 0.1", "confidence 0.9")
    same = {"max_turns": 3, "temperature": 0.0, "top_k": 0}
    assert found.departures(rule, 10, same) == []
    assert found.departures(Confident(threshold=0.9), 3, {**same, "temperature": 0.6}) == [
        f"rule=CORRECT at confidence >= 0.9 instead of {rule}",
        "temperature=0.6 instead of 0.0",
        "max_turns=3 instead of 10",
    ]


@pytest.mark.parametrize(
    "edited",
    [
        {"confidence": 0.99},
        {"rule": {"class_path": "Confident"}},
        {"certified": {"threshold": 0.5}},
        {"max_turns": 3, "sha256": "0" * 64},
        {"max_turns": 3, "sha256": None},
        {"note": 1},
    ],
    ids=str,
)
def test_a_certificate_that_was_edited_within_its_ranges_is_refused(tmp_path, edited):
    written(tmp_path)
    file = tmp_path / "operating_point.json"
    file.write_text(json.dumps(read_json(file) | edited))
    with pytest.raises(ConfigError, match=r"operating_point\.json: .*; certify again or remove it"):
        read_operating_point(tmp_path)


def test_one_problem_of_the_calibration_is_enough_to_be_named(tmp_path):
    found = written(tmp_path, data={"problems": problem_digests(["a"])})
    note = "the certificate was calibrated on 1 of 2 problems"
    assert found.calibration_note({1: ["b", "a"], 2: ["c"]}) == note
    assert found.calibration_note({2: ["c"]}) is None


def test_the_settings_of_a_certificate_are_those_that_were_applied():
    sources = [
        {"name": "math500", "task": "math"},
        {"name": "aime26", "task": "math", "max_completion_tokens": 3072},
        {"name": "own", "task": "my.Task"},
    ]
    config = {
        "model": {
            "evaluation": {"temperature": 0.0, "max_turns": 10, "max_completion_tokens": None},
            "policy": {"path": "p", "chat_template_kwargs": {"enable_thinking": False}},
            "engine": {"init_args": {"fields": {"top_p": None, "seed": None}}},
        },
        "data": {"val": None, "test": sources},
    }
    always = {
        "temperature": 0.0,
        "chat_template_kwargs": {"enable_thinking": False},
        "unsent": ["top_p"],  # the server decides it; the seed decides no distribution
    }
    assert certified_settings(config, ["aime26"]) == {
        **always,
        "task": "math",
        "max_completion_tokens": 3072,
    }
    assert certified_settings(config)["max_completion_tokens"] == [2048, 3072]
    config["model"]["evaluation"]["max_completion_tokens"] = 512
    assert certified_settings(config)["max_completion_tokens"] == 512
    assert certified_settings(config, ["own"]) == {**always, "task": "my.Task"}
    assert certified_settings({}) == {}


def test_a_certificate_is_for_its_own_weights(tmp_path):
    assert written(tmp_path).is_for(tmp_path)  # it names none
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    found = written(tmp_path, weights=weights_digest(tmp_path))
    assert found.is_for(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert not found.is_for(tmp_path)
    assert weights_digest(tmp_path / "nowhere") is None


def test_a_configured_threshold_wins_then_the_policys_then_the_papers(tmp_path):
    rule = written(tmp_path, certified={"threshold": 0.7}).rule
    own = PolicyConfig(path=str(tmp_path))
    assert SVRModule(policy=own).applied_evaluation.stop == rule
    configured = EvaluationConfig(stop=Confident(threshold=0.6))
    assert SVRModule(policy=own, evaluation=configured).applied_evaluation.stop == configured.stop
    assert SVRModule().applied_evaluation.stop == Confident()
    quoted = SVRModule(policy=own)
    quoted.run_config = {"seed_everything": 1, "model": {"evaluation": {"stop": None}}}
    evaluation = quoted_config(quoted, quoted.applied_evaluation)["model"]["evaluation"]
    assert evaluation["stop"]["class_path"] == "svr_lightning.core.stopping.Confident"
    assert rule_from_config(evaluation) == rule
    assert quoted.run_config["model"]["evaluation"] == {"stop": None}


def test_results_quote_the_rule_that_the_recipe_makes_of_the_configured_one():
    for adaptive in (True, False):
        module = SVRModule(
            recipe=SVR(interface="verdict"), evaluation=EvaluationConfig(adaptive=adaptive)
        )
        quoted = quoted_config(module, module.applied_evaluation)
        assert rule_from_config(quoted["model"]["evaluation"]) == Confident(threshold=0.0)
        assert quoted["protocol"]["adaptive"] is adaptive
    none = quoted_config(SVRModule(recipe=GRPO()), EvaluationConfig())
    assert none["model"]["evaluation"]["stop"] is None


@pytest.fixture
def tuned(tmp_path) -> Path:
    """The folder of a policy."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "tuned"))


def test_a_faulty_file_ends_the_command_before_the_policy_is_loaded(tuned, tmp_path, capsys):
    (tuned / "operating_point.json").write_text('{"certified": {"threshold": 7}}')
    settings = {"model.policy.path": tuned, "question": "1 2 = 3"}
    line = refused(
        capsys, "predict", *TINY, *flags(settings), "--trainer.default_root_dir", tmp_path / "run"
    )
    assert "is not a certificate of a threshold" in line
    assert line.endswith("certify again or remove it")


def served(policy: Path, *more: str) -> Controller:
    """What ``serve`` makes of a policy's folder."""
    options = ["--task", "countdown", "--policy", str(policy), *more]
    return serve.make_controller(parser_of("serve").parse_args(options))


def test_serve_keeps_a_certified_threshold_under_another_number_of_turns(tmp_path, capsys):
    rule = written(tmp_path).rule
    controller = served(tmp_path, "--max-turns", "3")
    assert (controller.rule, controller.max_turns, controller.certificate) == (rule, 3, None)
    line = f"operating_point.json: stops at {rule}, and promises nothing for --max-turns"
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stop", "rule"),
    [
        ("RepeatedAnswer", RepeatedAnswer()),
        ('{"class_path": "Majority", "init_args": {"certainty": 0.9}}', Majority(certainty=0.9)),
    ],
)
def test_serve_takes_another_rule_by_its_name(stop, rule, tmp_path):
    written(tmp_path)  # the rule of the options wins
    controller = served(tmp_path, "--stop", stop)
    assert (controller.rule, controller.certificate) == (rule, None)


def test_serve_draws_fresh_samples_where_its_certificate_was_made_from_some(tmp_path):
    written(tmp_path, decoding={"fresh_turns": True})
    controller = served(tmp_path)
    assert isinstance(controller.dialogue, FreshTurns)
    assert controller.certificate is not None


def evaluating(name: str, root: Path, folder: Path, turns: int, **settings: Any) -> list[str]:
    """A command that asks the policy of a folder."""
    own = {
        "model.policy.path": folder,
        "model.evaluation.max_turns": turns,
        "trainer.default_root_dir": root,
        "trainer.enable_progress_bar": "false",
    }
    return [name, *TINY, *flags(own | settings)]


def test_predict_asks_with_a_tuned_policys_own_threshold_and_says_so(tuned, tmp_path, caplog):
    """0.95 stops a trajectory of the shipped policy; at 1 nothing does."""
    asked = "3 5 8 = 16"
    own = {
        "rule": {"class_path": "Confident"},
        "certified": {"threshold": 1.0},
        "weights": "others",
        "data": {
            "problems": problem_digests([get_task("countdown").from_question(asked).question])
        },
    }
    written(tuned, **own)
    command = evaluating("predict", tmp_path, tuned, 2, question=asked)
    lost = "promises nothing for max_turns=2 instead of 10, other weights .*, any answer: made from"
    seen = "the certificate was calibrated on 1 of 1 problems"
    with pytest.warns(UserWarning, match=lost), pytest.warns(UserWarning, match=seen):
        assert main(command) == 0
    assert f"stops at CORRECT at confidence >= 1, the operating point of {tuned}" in caplog.text
    assert "operating_point.json; pse at most 0.1; confidence 0.9" in caplog.text
    (record,) = jsonl(tmp_path / "eval" / "predict" / "samples.jsonl")
    assert (record["returned_turn"], record["stopped_early"]) == (2, False)


def test_serve_says_of_a_logs_certificate_how_few_turns_it_has_and_that_it_covers_nothing(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command = ["certify", "embedded:log", "--max-wrong-accepted", "0.25", "--max-turns", "4"]
    assert main(command) == 0
    file = tmp_path / "certify" / "certificate.json"  # here, not beside the log in the package
    options = ["--task", "gsm8k", "--upstream", "http://h/v1", "--model", "m"]
    parsed = parser_of("serve").parse_args([*options, "--certificate", str(file)])
    said = serve.describe(serve.make_server(parsed).controller, parsed).splitlines()
    stops, _, _, reason, _ = said
    assert stops.endswith("; at most 4 turns")
    assert reason == (
        "  covers no answer: made from a log: prompts, policy and decoding are unknown"
    )
    assert "T_max 4, the turns of its recording, alone" in refused(
        capsys, "serve", *options, "--certificate", file, "--max-turns", "3"
    )


def test_an_evaluation_says_which_problems_a_certificate_was_calibrated_on(tuned, tmp_path, capsys):
    """Of the first three problems of the embedded set two were; the report says so too."""
    first, second, _ = load_problems(tiny("held_out", split="test", limit=3))
    digests = problem_digests([f"held_out/{first.id}", second.question])
    written(
        tuned,
        rule={"class_path": "Confident"},
        data={"problems": digests},
        decoding={"temperature": 0.0},
    )
    command = evaluating("test", tmp_path, tuned, 1, **{"data.test": embedded(3)})
    note = "the certificate was calibrated on 2 of 3 problems"
    with pytest.warns(UserWarning, match=note):
        assert main(command) == 0
    recorded = tmp_path / "eval" / "test"
    assert main(["report", f"SVR={recorded}", "--out", str(tmp_path / "report")]) == 0
    assert f"SVR: {note}" in screen(capsys)
