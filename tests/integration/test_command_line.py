"""Faults of the command line are found without torch, and said in one line."""

import errno
import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser

from svr_lightning.__main__ import main
from svr_lightning.cli.checks import read_questions, with_questions
from svr_lightning.cli.keys import SECTIONS, flat, known_keys
from svr_lightning.cli.main import READING
from svr_lightning.cli.messages import explain, of_parser
from svr_lightning.cli.training import best_checkpoint
from svr_lightning.errors import ConfigError
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.module import SVRModule
from svr_lightning.training.trainer import SVRTrainer

ROOT = Path(__file__).resolve().parents[2]
TINY = str(ROOT / "configs" / "countdown_tiny.yaml")
SMALL = str(ROOT / "tests" / "faults" / "small_run.yaml")


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_keys_read_from_source_are_those_of_the_parser() -> None:
    parser = LightningArgumentParser()
    for section, home in (("trainer", SVRTrainer), ("model", SVRModule), ("data", SVRDataModule)):
        assert SECTIONS[section] == (home.__module__, home.__name__)
        parser.add_lightning_class_args(home, section)
    known = {name for name, _ in flat(known_keys("fit")) if "." in name}
    real = set(parser.get_defaults().keys())
    # Null by default, so that the parser does not list their fields.
    optional = ("data.train", "data.predict", "model.policy.lora")
    assert real - {*optional} <= known
    fields = tuple(f"{name}." for name in optional)
    assert {name for name in known - real if not name.startswith(fields)} == set()
    assert {"data.train.path", "data.train.task"} <= known


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ["repla"],
            ["'repla'", "did you mean 'replay'?", "fit, validate, test, predict, replay, certify"],
        ),
        (["fit", "--config", TINY, "--trainer.max_step", "1"], ["trainer.max_steps"]),
        (["fit", "--config", TINY, "--max_steps", "1"], ["did you mean 'trainer.max_steps'?"]),
        (["fit", "--config", TINY, "--max_step", "1"], ["did you mean 'trainer.max_steps'?"]),
        (
            ["fit", "--model.evaluation.max_turn", "1"],
            ["did you mean 'model.evaluation.max_turns'?"],
        ),
        (["fit", "--model.evaluation.votez", "1"], ["did you mean 'model.evaluation.votes'?"]),
        (["fit", "--config", TINY, "--data.train.pth=x"], ["did you mean 'data.train.path'?"]),
        (["fit", "--config", TINY.replace("tiny", "tin")], ["no such file", "countdown_tiny.yaml"]),
        (["fit", "--config", TINY, "--model.policy.path", "a/b/c"], ["'a/b/c' is not a folder"]),
        (["fit", "--config", TINY, "--model.policy.path", "configs/no"], ["'configs/no'"]),
        (["test", "--config", TINY, "--ckpt_path", "no.ckpt"], ["no.ckpt", "no such file"]),
        (["fit", "--config", TINY, "--data.train.path", "rows.jsonl"], ["rows.jsonl"]),
        (
            ["fit", "--config", TINY, "--model.micro_batch_size", "four"],
            ["model.micro_batch_size=four: must be a whole number"],
        ),
        (["fit", "--trainer.fast_dev_run", "[1]"], ["must be a whole number or true or false"]),
        (["fit", "--model.optimizer.lr=high"], ["model.optimizer.lr=high: must be a number"]),
        (["fit", "--question", "x"], ["--question is for predict"]),
        (["predict", "--config", TINY, "--questions", "no.txt"], ["--questions no.txt"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_a_fault_is_named_before_anything_is_imported(
    arguments: list[str], parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code = (
        "import sys; from svr_lightning.__main__ import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'transformers', 'lightning', 'jsonargparse'}; "
        "print(heavy & set(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "set()\n")
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def test_a_wrong_key_of_a_configuration_is_named_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model:\n  evaluation:\n    adaptve: false\n")
    error = error_of(capsys, "fit", "--config", str(file))
    assert "mine.yaml: there is no key 'model.evaluation.adaptve'" in error
    assert "did you mean 'model.evaluation.adaptive'?" in error
    file.write_text("trainer:\n  max_steps: many\n")
    error = error_of(capsys, "fit", "--config", str(file))
    assert "mine.yaml: trainer.max_steps=many: must be a whole number" in error
    file.write_text("- a\n- list\n")
    assert "must hold keys" in error_of(capsys, "fit", "--config", str(file))
    file.write_text("model: [")
    assert "not a YAML file" in error_of(capsys, "fit", "--config", str(file))


@pytest.mark.parametrize("command", READING)
def test_commands_that_read_files_do_not_import_torch(command: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom svr_lightning.__main__ import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "print({'torch', 'torchmetrics', 'transformers', 'lightning'} & set(sys.modules))"
    )
    for arguments in (["--help"], [str(tmp_path / "none")]):
        done = subprocess.run(
            [sys.executable, "-c", code, command, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_help_lists_every_key_and_says_what_is_not_read(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    for name, _ in flat(known_keys(command)):
        assert "." not in name or f"--{name}" in text
    assert "Environment variables set none of them" in text
    assert ("--questions FILE" in text) == (command == "predict")


def test_no_command_takes_an_abbreviated_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = error_of(capsys, "replay", "x", "--max-turn", "3")
    assert "unrecognized arguments: --max-turn 3; did you mean '--max-turns'?" in error
    assert "FOLDER; see `svr_lightning replay --help`" in error_of(capsys, "replay")
    monkeypatch.setattr("svr_lightning.cli.main.check_command_line", lambda *_: None)
    error = error_of(capsys, "fit", "--config", TINY, "--trainer.max_step", "1")
    assert "--trainer.max_step" in error


def asked(*arguments: str) -> list[str]:
    """The questions that the parser reads."""
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(SVRDataModule, "data")
    questions: list[str] = parser.parse_args(with_questions("predict", [*arguments])).data.questions
    return questions


def test_questions_are_asked_as_they_were_written(tmp_path: Path) -> None:
    """Whatever they would mean to the parser, which reads YAML."""
    odd = ["null", "5", "[a]", "- 1 2 = 3", "{x: 1}", "#", "~", "é 😀\u2028\x7f\x00 \"'\\ --x"]
    assert asked(*(word for question in odd for word in ("--question", question))) == odd
    file = tmp_path / "questions.jsonl"
    file.write_text("\ufeff" + '{"question": "one\u2028line"}\r\n', encoding="utf-8")
    assert read_questions(str(file)) == ["one\u2028line"]


def test_questions_of_a_file_are_entries_of_the_data_module(tmp_path: Path) -> None:
    text, rows = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("What is 1 + 1?\n\n  What is: 2?  \n")
    rows.write_text('{"question": "A?", "answer": 3}\n{"question": "B?"}\n')
    assert read_questions(str(text)) == ["What is 1 + 1?", "What is: 2?"]
    given = ["--data.seed", "1", "--question=C?", "--questions", str(rows)]
    assert asked(*given) == ["C?", "A?", "B?"]
    rows.write_text('{"question": "A?"}\n{"task": 1}\n')
    with pytest.raises(ConfigError, match=r"b.jsonl:2"):
        read_questions(str(rows))
    text.write_text("\n")
    with pytest.raises(ConfigError, match="no questions"):
        read_questions(str(text))


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "Parser key \"model.evaluation.gate\":\n  Expected a typing.Literal['joint', "
            "'verdict']. Got value: both",
            "model.evaluation.gate=both: must be joint or verdict",
        ),
        (
            'Parser key "model.recipe":\n  - Does not validate against any of the Union subtypes\n'
            "    Subtypes: [<class 'svr_lightning.recipes.base.Recipe'>, <class 'NoneType'>]\n"
            "    Errors:\n      - Problem with given class_path 'svr_lightning.recipes.svr.SVR':\n"
            "          Option 'horizonn' is not accepted\n      - Expected a <class 'NoneType'>\n"
            "    Given value type: <class 'jsonargparse._util.NestedArg'>\n"
            "    Given value: NestedArg(key='horizonn', val='3')",
            "model.recipe.init_args.horizonn=3: SVR has no option 'horizonn'; "
            "did you mean 'horizon'?",
        ),
        (
            'Parser key "model.recipe": Does not validate against any of the Union subtypes '
            "Subtypes: [<class 'svr_lightning.recipes.base.Recipe'>, <class 'NoneType'>] Errors: "
            "- Problem with given class_path 'svr_lightning.recipes.svr.SVR': unrecognized "
            "arguments: --loss.betaa=3 - Expected a <class 'NoneType'> Given value type: <class "
            "'jsonargparse._util.NestedArg'> Given value: NestedArg(key='loss.betaa', val='3')",
            "model.recipe.init_args.loss.betaa=3: loss has no option 'betaa'; did you mean 'beta'?",
        ),
        (
            'Parser key "model.recipe": - Expected a path but grpo either not accessible or '
            "invalid - Does not validate against any of the Union subtypes Subtypes: [<class "
            "'svr_lightning.recipes.base.Recipe'>, <class 'NoneType'>] Errors: - Expected a dot "
            "import path string: grpo - Expected a <class 'NoneType'> Given value type: <class "
            "'str'> Given value: grpo",
            "model.recipe=grpo: must be a class path such as package.module.Class; "
            "did you mean svr_lightning.recipes.grpo.GRPO?",
        ),
        (
            'Parser key "model.engine":\n  Does not validate against any of the Union subtypes\n'
            "  Subtypes: [<class 'svr_lightning.engines.base.Engine'>, <class 'NoneType'>]\n"
            "  Errors:\n    - Problem with given class_path "
            "'svr_lightning.engines.servers.ServersEngine':\n        Parser key \"timeout\":\n"
            "          Expected a <class 'float'>. Got value: soon\n    - Expected a <class "
            "'NoneType'>\n  Given value type: <class 'dict'>\n  Given value: {'class_path': 'x'}",
            "model.engine.init_args.timeout=soon: must be a number",
        ),
    ],
)
def test_parser_errors_are_said_in_plain_words(message: str, line: str) -> None:
    assert of_parser(ValueError(message)) == line


def test_a_command_leaves_no_model_in_memory(tmp_path: Path) -> None:
    """A notebook runs one after the other."""

    def modules() -> int:
        gc.collect()
        return sum(isinstance(found, SVRModule) for found in gc.get_objects())

    before = modules()
    folder = ("--trainer.default_root_dir", str(tmp_path))
    steps = ("--trainer.max_steps", "1", "--data.val", "[]", "--data.test", "[]")
    assert main(["fit", "--config", TINY, "--config", SMALL, *folder, *steps]) == 0
    assert modules() == before


def test_faults_of_the_system_are_one_line_and_those_of_the_program_are_not_hidden() -> None:
    assert "disk is full" in str(explain(OSError(errno.ENOSPC, "No space left", "run/x.ckpt")))
    assert "run/x: " in str(explain(OSError(errno.EROFS, "Read-only", "run/x")))
    missing = ModuleNotFoundError("No module named 'vllm'", name="vllm")
    assert "svr-lightning[vllm]" in str(explain(missing))
    assert "cpu_smoke.yaml" in str(explain(RuntimeError("No supported gpu backend found!")))
    assert explain(RuntimeError("shapes do not match")) is None
    assert explain(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


def monitored(folder: Path, **saved: Any) -> Any:
    """A trainer whose last checkpoint recorded ``saved`` of its monitoring callback."""
    callback = ModelCheckpoint(folder, monitor="accuracy", mode="max", save_last=True)
    torch.save({"callbacks": {callback.state_key: saved}}, folder / "last.ckpt")
    return SimpleNamespace(checkpoint_callbacks=[callback], default_root_dir=str(folder))


def test_the_best_checkpoint_is_the_one_that_the_run_recorded(tmp_path: Path) -> None:
    trainer = monitored(tmp_path, best_model_path="/before/the/move/step-4.ckpt")
    (tmp_path / "step-4.ckpt").touch()
    assert best_checkpoint(trainer) == str(tmp_path / "step-4.ckpt")


@pytest.mark.parametrize("part", ["meta.pt", "checkpoint/mp_rank_00_model_states.pt"])
def test_the_best_checkpoint_of_shards_is_a_folder(tmp_path: Path, part: str) -> None:
    trainer = monitored(tmp_path, best_model_path="step-4.ckpt")
    recorded = tmp_path / ".last.ckpt.0" / part
    recorded.parent.mkdir(parents=True)
    (tmp_path / "last.ckpt").rename(recorded)
    (tmp_path / "last.ckpt").symlink_to(".last.ckpt.0")
    (tmp_path / "step-4.ckpt").mkdir()
    assert best_checkpoint(trainer) == str(tmp_path / "step-4.ckpt")


@pytest.mark.parametrize("saved", [{}, {"best_model_path": ""}, {"best_model_path": "gone.ckpt"}])
def test_a_run_without_a_best_checkpoint_is_named(tmp_path: Path, saved: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--ckpt_path best: .* give last or a file"):
        best_checkpoint(monitored(tmp_path, **saved))


def test_a_damaged_checkpoint_cannot_say_which_one_is_best(tmp_path: Path) -> None:
    trainer = monitored(tmp_path)
    (tmp_path / "last.ckpt").write_bytes(b"no checkpoint")
    with pytest.raises(ConfigError, match="does not name the best one of 'accuracy'"):
        best_checkpoint(trainer)
