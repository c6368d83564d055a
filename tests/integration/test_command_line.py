"""One line says what is wrong with a command, where, and what may have been meant."""

import errno
import gc
import json
import re
import signal
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from svr_lightning.__main__ import main
from svr_lightning.cli.main import READING, SERVING, parser_of
from svr_lightning.cli.messages import explain
from svr_lightning.errors import ConfigError
from svr_lightning.files import config_file
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.module import SVRModule
from svr_lightning.training.sources import DataSource
from tests import forked
from tests.commands import ROOT, SMALL, flags, ran, refused, resolved

CALLBACK = "svr_lightning.callbacks.HFExport"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["serv"],
            "unknown command 'serv'; did you mean 'serve'?; commands: warmstart, fit, validate,",
        ),
        (["fit", "--config", "countdown_tin"], "or named configuration; did you mean 'countdown_t"),
        (["fit", "--config=hardware/gpu1"], "--config hardware/gpu1: no such file or"),
    ],
)
def test_commands_and_files_are_checked_without_torch(arguments, message):
    code = (
        "import sys; from svr_lightning.__main__ import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'transformers', 'lightning', 'jsonargparse'}; "
        "print(heavy & set(sys.modules)); sys.exit(code)"
    )
    done = ran(sys.executable, "-c", code, *arguments)
    assert (done.returncode, done.stdout) == (2, "set()\n")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.parametrize("command", READING)
def test_commands_that_read_files_do_not_import_torch(command, tmp_path):
    code = (
        "import contextlib, sys\nfrom svr_lightning.__main__ import main\n"
        "for word in ('--help', sys.argv[2]):\n"
        "    with contextlib.suppress(SystemExit):\n        main([sys.argv[1], word])\n"
        "print({'torch', 'torchmetrics', 'transformers', 'lightning'} & set(sys.modules))"
    )
    done = ran(sys.executable, "-c", code, command, tmp_path / "none")
    assert done.stdout.endswith("set()\n")


def test_the_proxy_does_not_import_torch():
    code = (
        "import sys\nfrom svr_lightning.cli import main, serve\n"
        "words = '--task gsm8k --upstream http://h/v1 --model m'.split()\n"
        "serve.make_server(main.parser_of('serve').parse_args(words))\n"
        "print('torch' in sys.modules)"
    )
    assert ran(sys.executable, "-c", code).stdout == "False\n"


def test_help_and_errors_name_the_program_that_was_called(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for called, program in (
        ("/usr/bin/svr", "svr"),
        (str(ROOT / "svr_lightning" / "__main__.py"), "python -m svr_lightning"),
    ):
        monkeypatch.setattr(sys, "argv", [called])
        assert main([]) == 0
        shown = capsys.readouterr().out
        assert f"\n  {program} fit --config countdown_tiny\n" in shown
        assert main(["report"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"{program}: error: ")
        assert f"see `{program} report --help`" in error
        for command in (*READING, *SERVING):
            text = parser_of(command).format_help()
            assert set(re.findall(r"\b(svr|python -m svr_lightning) [a-z]+ ", text)) == {program}
            shown += text
        longest = max(shown.splitlines(), key=len)
        assert len(longest) <= 80 or program != "svr", longest


def test_a_configuration_is_found_by_name_or_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = ROOT / "configs" / "hardware" / "1gpu.yaml"
    for given in ("hardware/1gpu", "hardware/1gpu.yaml", "configs/hardware/1gpu.yaml", str(wanted)):
        assert config_file(given) == wanted
    (tmp_path / "gsm8k.yaml").touch()
    assert config_file("gsm8k.yaml") == Path("gsm8k.yaml")
    assert config_file("gsm8k") == ROOT / "configs" / "gsm8k.yaml"
    (tmp_path / "my_data.yaml").touch()
    assert config_file("my_data") == Path("my_data.yaml")
    with pytest.raises(ConfigError, match=r"--config my_dat\.yaml: .*; did you mean 'my_data'\?"):
        config_file("my_dat.yaml")


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("trainer: {max_steps: many}", "trainer.max_steps: Expected a <class 'int'>. Got value: m"),
        ("model: [", "while parsing a flow node did not find expected node content"),
        ("data: {test: {name: x, path: y}}", "data.test is a list; write [{...}]"),
        ("- a", "Unexpected config: - a"),
        ("model: {seed: 1}\ndata:\nmodel: {}", "line 1: duplicate key 'model'; merge"),
        ("model: {recipe: {class_path: mine.X}}", "model.recipe: No module named 'mine'"),
    ],
)
def test_a_fault_of_a_configuration_is_named_with_its_file(layer, message, tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(layer)
    error = refused(capsys, "fit", "--config", str(file))
    assert error.startswith(f"{file}: ")
    assert message in error


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import not_installed", "No module named 'not_installed' (FILE:1)"),
        ("x = 1\ndef f(:", "invalid syntax (FILE:2)"),
        ("x = 1\ny = undefined", "name 'undefined' is not defined (FILE:2)"),
        ("", "module 'broken' has no attribute 'Mine'"),
        ("class Mine: pass", "broken.Mine does not correspond to a subclass of Recipe"),
        (
            "from svr_lightning.recipes.svr import SVR\nclass Mine(SVR):\n"
            "    def __init__(self): raise TypeError('no table')",
            "no table (FILE:3)",
        ),
    ],
)
def test_a_fault_in_code_that_is_named_is_said_with_its_line(
    code, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    file = tmp_path / "broken.py"
    file.write_text(code)
    error = refused(
        capsys, "fit", "--config", "countdown_tiny", "--model.recipe", "broken.Mine",
        "--trainer.default_root_dir", str(tmp_path / "run"),
    )  # fmt: skip
    assert message.replace("FILE", str(file)) in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("recipe.group_size=1", "recipe.init_args.group_size=1 needs at least 2 trajectories"),
        ("recipe.loss.beta=.nan", "recipe.init_args.loss.beta=nan must be at least 0"),
        ("optimizer.betas=[0.9,1]", "optimizer.betas=(0.9, 1.0) must be below 1"),
        ("micro_batch_size=0", "micro_batch_size=0 must be at least 1"),
        (
            "evaluation.stop=Confident --model.evaluation.stop.threshold=7",
            "evaluation.stop.init_args.threshold=7.0 must lie in [0, 1]",
        ),
        (
            "engine=TransformersEngine --model.engine.max_batch=0",
            "engine.init_args.max_batch=0 must be at least 1",
        ),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_whole_key(options, message, capsys):
    words = f"--model.{options}".split()
    error = refused(capsys, "fit", "--config", "countdown_tiny", *words)
    assert error.startswith(f"model.{message}")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--model.recipe.init_args", '{"lr": 4, "lr": 8}'),
        ("--model.optimizer", "lr: 1\nlr: 2"),
        ("--trainer.callbacks+", "{class_path: RolloutLog, init_args: {lr: 1, lr: 2}}"),
    ],
)
def test_a_flag_whose_value_has_a_key_twice_is_refused(flag, value, capsys):
    error = refused(capsys, "fit", "--config", "countdown_tiny", flag, value)
    assert error == "line 1: duplicate key 'lr'; merge the two sections"


def test_a_text_in_which_a_word_comes_twice_stays_a_text(capsys):
    question = "Q: 3 5\nQ: 8 = 16"
    config = resolved(
        capsys, "predict", "--config", "countdown_tiny", "--data.questions+", question
    )
    assert config["data"]["questions"] == [question]


def test_a_data_set_of_a_list_is_refused_with_its_place(capsys):
    good = "name: a, task: countdown, path: 'embedded:countdown-tiny'"
    sets = f"[{{{good}}}, {{{good.replace('a,', 'b,')}, limit: 0}}]"
    error = refused(capsys, "test", "--config", "countdown_tiny", "--data.test", sets)
    assert error == "data.test[1].limit=0 must be at least 1"


def test_no_command_takes_an_abbreviated_flag(capsys):
    error = refused(capsys, "replay", "x", "--ou", "y")
    assert "unrecognized arguments: --ou y; did you mean '--out'?" in error
    error = refused(capsys, "fit", "--config", "countdown_tiny", "--trainer.max_step", "1")
    assert error.endswith("--trainer.max_step 1; did you mean '--trainer.max_steps'?")
    error = refused(capsys, "fit", "--config", "{trainer: {max_stepz: 1}}")
    assert error.endswith("option 'trainer.max_stepz'; did you mean 'trainer.max_steps'?")


def test_faults_of_the_system_are_one_line_and_those_of_the_program_are_not_hidden():
    full = str(explain(OSError(errno.ENOSPC, "No space left", "run/x.csv")))
    assert full == "run/x.csv: the disk is full; free some space and start again"
    assert "run/x: " in str(explain(OSError(errno.EROFS, "Read-only", "run/x")))
    assert "hardware/cpu_smoke" in str(explain(RuntimeError("No supported gpu backend found!")))
    assert explain(RuntimeError("shapes do not match")) is None
    assert explain(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data.train", "{name: mine, task: gsm8k, path: FILE}"],
        ["--config", "{data: {train: {name: mine, task: gsm8k, path: FILE}}}"],
    ],
)
def test_a_data_set_of_a_later_layer_inherits_nothing(arguments, capsys):
    base = ("fit", "--config", "gsm8k", "--config", "{data: {questions_task: math}}")
    data = resolved(capsys, *base, *arguments)["data"]
    train = data["train"]
    assert data["questions_task"] is None
    asked = ("--data.questions_task", "countdown", *arguments)
    assert resolved(capsys, *base, *asked)["data"]["questions_task"] == "countdown"
    expected = {"name": "mine", "task": "gsm8k", "path": "FILE", "split": "train"}
    assert {name: value for name, value in train.items() if value is not None} == expected


def test_a_flag_changes_one_setting_of_a_data_set(capsys):
    base = ("fit", "--config", "gsm8k", "--data.train.limit", "5")
    limited = resolved(capsys, *base)["data"]["train"]
    assert (limited["subset"], limited["limit"]) == ("main", 5)
    first = resolved(capsys, "fit", *base[3:], *base[1:3])  # a configuration never wins over it
    assert first["data"]["train"] == limited
    # But a path: nothing is left of the choice of rows before it.
    other = resolved(capsys, *base, "--data.train.path", "mine.jsonl")["data"]["train"]
    nothing = {"subset": None, "select": None, "limit": None}
    assert other == limited | {"path": "mine.jsonl"} | nothing


def test_a_list_of_data_sets_replaces_the_one_before_it_whatever_its_length(capsys):
    long = {"question": "a column with a name of this length " * 10}
    mine = f"[{{name: mine, task: gsm8k, path: mine.jsonl, columns: {json.dumps(long)}}}]"
    (other,) = resolved(capsys, "test", "--config", "gsm8k", "--data.test", mine)["data"]["test"]
    assert (other["subset"], other["split"], other["columns"]) == (None, "train", long)


def test_a_layer_adds_to_the_callbacks_or_says_that_it_replaces_them(tmp_path, capsys, caplog):
    layer = tmp_path / "layer.yaml"
    counts = {}
    for key in ("callbacks+", "callbacks"):
        layer.write_text(f"trainer: {{{key}: [{{class_path: {CALLBACK}}}]}}")
        layers = ("--config", "countdown_tiny", "--config", str(layer))
        with caplog.at_level("INFO"):
            counts[key] = len(resolved(capsys, "fit", *layers)["trainer"]["callbacks"])
        assert ("replaces trainer.callbacks" in caplog.text) == (key == "callbacks")
    assert counts == {"callbacks+": 6, "callbacks": 1}


def test_recording_and_stopping_have_short_options(capsys):
    rule = ("--stop", "Confident", "--stop.threshold", "0.7")
    found = resolved(capsys, "test", "--config", "countdown_tiny", "--record", *rule)
    evaluation = found["model"]["evaluation"]
    assert evaluation["adaptive"] is False
    assert evaluation["stop"]["class_path"] == "svr_lightning.core.stopping.Confident"
    assert evaluation["stop"]["init_args"]["threshold"] == 0.7


def test_questions_are_asked_as_they_were_written(capsys):
    """Whatever they would mean to the parser, which reads YAML."""
    odd = ["null", "5", "[a]", "- 1 2 = 3", "{x: 1}", "#", "é 😀\u2028 \"'\\ --x"]
    words = [word for question in odd for word in ("--question", question)]
    assert resolved(capsys, "predict", *words)["question"] == odd


def test_a_policy_for_one_task_is_not_asked_about_another(capsys):
    error = refused(capsys, "predict", "--question", "What is 1 + 1?")
    assert error.startswith("model.policy.path=embedded:countdown-tiny answers countdown, and ")
    assert "give the --config of your policy" in error


def test_a_command_leaves_no_model_in_memory(tmp_path):
    """A notebook runs one after the other."""

    def modules():
        gc.collect()
        return sum(isinstance(found, SVRModule) for found in gc.get_objects())

    before = modules()
    folder = ("--trainer.default_root_dir", str(tmp_path))
    steps = ("--trainer.max_steps", "1", "--data.val", "[]", "--data.test", "[]")
    assert main(["fit", *SMALL, *folder, *steps]) == 0
    assert modules() == before


def test_export_writes_the_policy_of_a_checkpoint(tmp_path):
    monitor = {"monitor": "val/dev/accuracy", "mode": "max", "save_last": True, "filename": "best"}
    saver = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": monitor}
    settings = {
        "default_root_dir": str(tmp_path),
        "callbacks": [saver, {"class_path": "svr_lightning.callbacks.HFExport"}],
        **{"max_steps": 2, "val_check_interval": 2},
    }
    layer = tmp_path / "layer.yaml"
    layer.write_text(yaml.safe_dump({"trainer": settings}))
    layers = (*SMALL, "--config", str(layer))
    assert main(["fit", *layers]) == 0
    best = tmp_path / "checkpoints" / "best.ckpt"
    assert main(["export", *layers, "--ckpt_path", str(best)]) == 0
    saved = torch.load(best, weights_only=True)["state_dict"]
    exported = load_file(tmp_path / "export" / "policy" / "model.safetensors")
    assert all(torch.equal(saved[f"policy.{name}"], value) for name, value in exported.items())


QUIET = ("--data.val", "[]", "--trainer.max_steps", "2")


def test_a_resume_that_is_refused_leaves_the_configuration_of_the_run(tmp_path, capsys):
    folder = ("--trainer.default_root_dir", str(tmp_path))
    assert main(["fit", *SMALL, *folder, *QUIET]) == 0
    written = (tmp_path / "config.yaml").read_text()
    changed = ("--model.sampling.temperature", "0.7", "--ckpt_path", "last")
    line = refused(capsys, "fit", *SMALL, *folder, *QUIET, *changed)
    assert "model.sampling.temperature=0.7, but the checkpoint was saved with 0.9" in line
    assert (tmp_path / "config.yaml").read_text() == written
    # What is known of its task goes with the policy, though no configuration names it.
    assert yaml.safe_load(written)["data"]["questions_task"] == "countdown"


def test_a_training_that_is_terminated_says_so_with_its_exit_code(tmp_path):
    strike = "[{class_path: tests.faults.rank_engine.Terminated}]"
    settings = {"default_root_dir": tmp_path, "max_steps": 1, "callbacks": strike}
    words = flags({f"trainer.{name}": value for name, value in settings.items()})
    process = forked.start(tmp_path / "log", "fit", *SMALL, *words, "--data.val", "[]")
    assert forked.wait(process) == 128 + signal.SIGTERM


def test_questions_are_put_as_the_task_of_the_training_set(tmp_path, capsys):
    mine = "{name: mine, task: gsm8k, path: mine.jsonl}"
    trained = ("--config", "countdown_tiny", "--data.train", mine, "--model.policy.path", "mine")
    asked = (*trained, "--question", "1 + 1?")
    error = refused(capsys, "predict", *asked, "--trainer.default_root_dir", tmp_path)
    assert error.startswith("model.policy.path='mine'")  # and not that the task is Countdown
    data = SVRDataModule(train=DataSource(name="mine", task="gsm8k", path="x"), questions=["1?"])
    assert data.problems("predict")[0][0].task == "gsm8k"
    assert SVRDataModule(questions=["1?"]).problems("predict")[0][0].task == "math"


def test_a_layer_or_a_section_that_holds_nothing_changes_nothing(tmp_path, capsys):
    empty = ("# to be filled in\n\n  # model: {seed: 3}\n", "---\n", "null", "{}", "")
    empty += ("trainer:\n  # max_steps: 3\n", "model: {sampling: , policy: {}}\ndata:\n")
    pinned = "model: {{policy: {{revision: {}}}}}".format
    empty += (pinned("v1"), pinned("null"))  # which takes the value back
    layers = []
    for number, text in enumerate(empty):
        layer = tmp_path / f"{number}.yaml"
        layer.write_text(text)
        layers += ["--config", layer]
    with_them, without = (resolved(capsys, "fit", *SMALL, *some) for some in (layers, ()))
    assert with_them == without


def test_what_is_nested_too_deeply_is_one_line(tmp_path, capsys):
    deep = tmp_path / "deep.yaml"
    deep.write_text(f"model: {'[' * 3000}{']' * 3000}")
    assert refused(capsys, "fit", "--config", deep) == f"{deep}: nested too deeply"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("data: {train: {name: no, task: countdown, path: x}}", "False; YAML reads it as somethin"),
        ("data: {train: {name: 1e5, task: countdown, path: x}}", "put it in quotes"),
        ("trainer: 5", "trainer: 5 is no section"),
        ("model: {sampling: []}", "model.sampling: [] is no section"),
        ("trainer: {accumulate_grad_batches: 4}", "set model.micro_batch_size instead"),
        ("trainer: {overfit_batches: 2}", "set data.train.limit instead"),
    ],
)
def test_a_setting_that_means_something_else_is_said_with_its_cure(layer, message, capsys):
    assert message in refused(capsys, "fit", "--config", "countdown_tiny", "--config", layer)


def test_a_callback_that_cannot_work_here_is_one_line(tmp_path, capsys):
    callback = "lightning.pytorch.callbacks.GradientAccumulationScheduler"
    callbacks = f"[{{class_path: {callback}, init_args: {{scheduling: {{0: 2}}}}}}]"
    words = [*SMALL, *QUIET, "--trainer.default_root_dir", tmp_path]
    error = refused(capsys, "fit", *words, "--trainer.callbacks", callbacks)
    assert error.startswith("trainer.callbacks: Automatic gradient accumulation and the ")


def test_a_misspelt_metric_to_stop_at_is_one_line(tmp_path, capsys):
    stops = "lightning.pytorch.callbacks.EarlyStopping, init_args: {monitor: val/dev/acuracy}"
    words = [*SMALL, "--trainer.default_root_dir", tmp_path, "--trainer.val_check_interval", "2"]
    callbacks = f"[{{class_path: {stops}}}]"
    error = refused(capsys, "fit", *words, "--trainer.callbacks", callbacks)
    assert error == (
        "EarlyStopping: monitor='val/dev/acuracy' is not logged; did you mean 'val/dev/accuracy'?"
    )


def test_a_package_that_is_missing_is_named_as_the_project_declares_it():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    for package, extra in (("vllm", "vllm"), ("starlette", "serve"), ("peft", "lora")):
        line = str(explain(ModuleNotFoundError(f"No module named {package!r}", name=package)))
        assert all(f"'{requirement}'" in line for requirement in extras[extra])
    sources = ROOT.glob("[es]*/**/*.py")  # no index has it
    assert [path for path in sources if "install 'svr-lightning" in path.read_text()] == []


def test_output_that_nobody_reads_ends_a_command_without_a_word():
    done = ran("sh", "-c", '("$0" -m svr_lightning; echo $? >&2) | true', sys.executable)
    assert done.stderr == f"{128 + signal.SIGPIPE}\n"
