"""The commands of the README, in short, as a user types them."""

import re
import shlex
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from svr_lightning.__main__ import main
from svr_lightning.core.stopping import Confident, rule_from_config
from svr_lightning.tasks import get_task
from tests import forked
from tests.commands import ROOT, TINY, embedded, flags, jsonl, ran, read_json

SHORT = flags({"trainer.max_steps": 2, "data.problems_per_step": 2, "data.test": embedded(6)})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, str]:
    """A short training of the embedded default, and its terminal output."""
    folder = tmp_path_factory.mktemp("e2e") / "run"
    words = ("fit", *TINY, *SHORT, "--trainer.default_root_dir", str(folder))
    log = folder.with_name("log")
    code = forked.wait(forked.start(log, *words, COLUMNS="80"))
    said = log.read_text(errors="replace")
    assert code == 0, said[-3000:]
    return folder, said


def test_fit_ends_with_a_table_of_before_and_after(run):
    assert re.search(r"held_out: 6 held-out prompts", run[1])
    assert "premature stop error" in run[1]
    assert max(len(line) for line in run[1].splitlines() if " 0." in line) <= 80


def test_fit_leaves_what_the_documentation_lists(run):
    folder = run[0]
    for name in ("config.yaml", "metrics.csv", "rollouts.jsonl", "checkpoints/last.ckpt"):
        assert (folder / name).is_file(), name
    for name in ("before", "after"):
        samples = jsonl(folder / "eval" / name / "samples.jsonl")
        results = read_json(folder / "eval" / name / "results.json")
        assert len(samples) == 6
        assert results["datasets"]["held_out"]["n"] == 6
        assert rule_from_config(results["config"]["model"]["evaluation"]) == Confident()
        assert results["versions"]["torch"]
    lines = jsonl(folder / "rollouts.jsonl")
    assert [len(line["turns"]) for line in lines] == [3] * (2 * 2 * 8)  # steps x problems x G
    events = EventAccumulator(str(folder / "logs")).Reload()
    assert [point.step for point in events.Scalars("train/reward/mean")] == [1, 2]


def test_the_exported_policy_loads_and_predicts(run, tmp_path, capsys, monkeypatch):
    policy = run[0] / "policy"
    model = AutoModelForCausalLM.from_pretrained(policy)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id]
    assert tokenizer.chat_template
    card = (policy / "README.md").read_text()
    values = read_json(run[0] / "eval" / "after" / "results.json")["datasets"]
    low, high = values["held_out"]["accuracy_ci95"]
    accuracy = values["held_out"]["accuracy"]
    assert f"| held_out | 6 | [{low:.3f}, {high:.3f}] | {accuracy:.3f} |" in card
    assert "on the data set `countdown_tiny_train` (`embedded:countdown-tiny`)" in card
    prompt = card.split("```text\n")[1].split("\n```")[0]
    assert prompt == f"system: {get_task('countdown').system_prompt}\n\nuser: THE QUESTION"
    command = card.split("```bash")[1].split("```")[0].replace("\\\n", " ")
    spelled = command.replace("THIS_FOLDER", str(policy)).replace("...", "3 5 8 = 16")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(spelled)[1:]) == 0
    output = capsys.readouterr().out
    assert "turn 1" in output
    assert re.search(r"answer: .*[358]", output)
    assert "stopped: " in output


def test_test_and_validate_write_their_own_folders(run):
    common = [*TINY, *SHORT[-2:], "--trainer.default_root_dir", str(run[0])]
    checkpoint = ["--ckpt_path", str(run[0] / "checkpoints" / "last.ckpt")]
    assert main(["test", *common, *checkpoint]) == 0
    files = {n: run[0] / "eval" / n / "samples.jsonl" for n in ("after", "test", "validate")}
    after, again = jsonl(files["after"]), jsonl(files["test"])
    for one, other in zip(after, again, strict=True):  # after training, turns behind a stop as well
        one["turns"] = one["turns"][: len(other["turns"])]
    assert again == after
    short = ["--trainer.limit_val_batches", "1", "--data.eval_batch_size", "4"]
    assert main(["validate", *common, *short]) == 0
    assert len(jsonl(files["validate"])) == 4


@pytest.mark.parametrize("name", ["gsm8k", "math", "countdown"])
def test_the_real_configurations_run_on_real_rows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    layers = (name, "hardware/cpu_smoke", "tests/real_rows.yaml")
    configs = [word for layer in layers for word in ("--config", layer)]
    assert main(["fit", *configs, "--trainer.default_root_dir", str(tmp_path)]) == 0
    assert list(tmp_path.glob("logs/events*"))
    assert (tmp_path / "checkpoints" / "last.ckpt").is_file()
    assert (tmp_path / "eval" / "step-000002" / "results.json").is_file()
    assert len(jsonl(tmp_path / "eval" / "step-000002" / "samples.jsonl")) == 4


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The ``bin`` of an environment with the wheel, and what else this one has installed."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True)
    (packages,) = (folder / "env" / "lib").glob("*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    return python.parent


def test_an_installed_wheel_needs_no_checkout(installed, tmp_path):
    def run_installed(*arguments, program="svr"):
        done = ran(installed / program, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    where = "import svr_lightning as s, importlib.util as u; print(s.__file__); "
    where += "print(u.find_spec('svr_lightning.tests'))"
    file, tests = run_installed("-c", where, program="python").split()
    assert Path(file).is_relative_to(installed.parent)
    assert tests == "None"
    root = ("--trainer.default_root_dir", "run")
    layers = ("--config", "countdown_tiny", "--config", "methods/svr_plus")
    run_installed("fit", *layers, *SHORT, "--data.val", "[]", *root)
    asked = ("--model.policy.path", "run/policy", "--question", "3 5 8 = 16")
    assert "turn 1" in run_installed("predict", "--config", "countdown_tiny", *asked, *root)
    promise = ("--max-wrong-accepted", "0.25", "--out", "certified", "--write", "run/policy")
    assert "certificate.json" in run_installed("certify", "embedded:log", *promise)
    assert "usage: svr serve" in run_installed("serve", "--help")


def test_the_callbacks_at_the_top_are_those_of_the_package():
    """A checkout offers them under a short name; no module exists twice."""
    import callbacks
    import svr_lightning.callbacks

    assert callbacks.__all__ == svr_lightning.callbacks.__all__
    for name in callbacks.__all__:
        assert getattr(callbacks, name) is getattr(svr_lightning.callbacks, name)
