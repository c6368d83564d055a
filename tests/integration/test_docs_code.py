"""The code in the documentation runs, and its tables agree with the code."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import svr_lightning as svr
from svr_lightning.__main__ import main
from svr_lightning.cli.main import READING, SERVING, parser_of
from svr_lightning.tasks import TASKS
from svr_lightning.tasks.fields import ID_COLUMN
from tests.chat_server import ChatServer as Scripted
from tests.chat_server import completion
from tests.commands import ROOT, SHIPPED, embedded, flags, screen, write_jsonl
from tests.core.test_controller import certificate
from tests.pages import blocks, page


def test_the_controllers_in_the_readme_and_the_guide_run(tmp_path, capsys):
    text = "<answer>\\boxed{40}</answer> VERDICT: CORRECT; CONFIDENCE: 0.95"
    namespace: dict[str, Any] = {"svr": svr, "ask": lambda *_: text, "question": "6 * 7 - 2 = ?"}
    (call,) = re.findall(r"`(svr\.Controller\(.*?)`", page("README.md"))
    result = eval(call, namespace)
    assert (result.answer, result.accepted, result.confidence) == ("40", True, 0.95)
    found = certificate(tmp_path)
    with (
        Scripted(lambda body, number: completion(text)) as upstream,
        OpenAI(base_url=upstream.url, api_key="none") as namespace["client"],
    ):
        exec(blocks(page("docs/serving.md"))[1], namespace)
        namespace["show"]("6 * 7 - 2 = ?", tmp_path / "certificate.json")
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown == "answered 40 CORRECT at confidence 0.95 >= 0.9 20"
    assert found.max_turns == 4


def test_the_python_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in blocks(page("docs/extending.md"))[:1]:
        exec(block, namespace)
    assert namespace["trainer"].global_step == 1
    assert 0.0 <= namespace["metrics"]["test/dev/accuracy"] <= 1.0


def test_the_functions_for_other_trainers_return_what_their_page_says():
    text = page("docs/trainers.md")
    namespace: dict[str, Any] = {}
    for block in blocks(text):
        exec(block, namespace)
        for name, printed in re.findall(r"^(\w+) = .*# (\[[^\]]*\])", block, re.MULTILINE):
            assert namespace[name] == pytest.approx(json.loads(printed), abs=1e-3)
    assert text.count("  # [") == 3


def test_the_page_on_data_lists_each_tasks_columns():
    text = page("docs/train.md")
    rows = re.findall(r"^\| `(\w+)` \| (`.*?) \| (?:yes|no) \|", text, re.MULTILINE)
    listed = {(task, tuple(re.findall(r"`(\w+)`", names))) for task, names in rows}
    expected = {
        (name, names)
        for name, task in TASKS.items()
        for names in task.columns
        if names != ID_COLUMN
    }
    assert listed == expected
    (ids,) = {task.columns[-1] for task in TASKS.values()}
    assert all(f"`{name}`" in text for name in ids)


PAGES = ["README.md", *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md")))]


def commands() -> list[str]:
    """Every command of the trainer in the documentation, once, in the pages' order."""
    lines = [
        line.partition(" #")[0].strip().replace("configs/hardware/torchrun.sh", "svr fit")
        for name in PAGES
        for block in blocks(page(name), "bash")
        for line in block.splitlines()
        if "CHECKPOINT" not in line
    ]
    return [*dict.fromkeys(line[4:].strip() for line in lines if line.startswith("svr "))]


FEW = embedded(4, name="few")
SHORT = {
    "fit": flags(
        {
            "trainer.max_steps": 1,
            "data.problems_per_step": 2,
            "data.test": FEW,
            "model.sampling.max_completion_tokens": 16,
            "model.evaluation.max_completion_tokens": 16,
        }
    ),
    "test": ["--data.test", FEW],
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout with a trained policy, its recordings and a user's own files."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    for run in ("countdown_tiny/policy", "mine/policy", "smollm2", "uninformative"):
        shutil.copytree(SHIPPED, folder / "runs" / run)
    (folder / "my_data.yaml").write_text(blocks(page("docs/train.md"), "yaml")[0])
    (folder / "data").mkdir()
    for name in ("train", "dev", "test"):
        (folder / "data" / f"{name}.jsonl").write_text(2 * '{"problem": "1+1?", "answer": "2"}\n')
    rows = [{"question": k, "p_true": 0.9, "label": 1, "cost": 66} for k in range(40)]
    write_jsonl(folder / "log.jsonl", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        record = "test --config countdown_tiny --model.policy.path runs/countdown_tiny/policy"
        assert main([*record.split(), *SHORT["test"], "--record"]) == 0
        for copy in ("countdown_tiny/eval/validate", "mine/eval/test"):
            shutil.copytree("runs/countdown_tiny/eval/test", f"runs/{copy}")
        yield folder


def runs_here(words: list[str]) -> bool:
    """Whether a command needs neither a GPU, a model from elsewhere, nor a server."""
    if words[0] in SERVING or "--url" in words or "OpenAIEngine" in words:
        return False  # tests/e2e/test_serving_guide.py
    configs = {b for a, b in pairwise(words) if a == "--config"}
    small = {"countdown_tiny", "hardware/cpu_smoke"}
    return words[0] in {"certify", "replay", "report"} or bool(configs & small)


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_documentation_runs_in_small_or_resolves(command, checkout, tmp_path):
    words = shlex.split(command)
    if "policy.lora" in command:
        pytest.importorskip("peft")  # which `make quick` does not install
    if runs_here(words):
        apart = ["--trainer.default_root_dir", str(tmp_path)] if words[0] == "fit" else []
        code = main([*words, *SHORT.get(words[0], []), *apart])
        assert code == 0 or (words[0] == "certify" and code == 1)  # too few problems to certify
    elif words[0] in READING | SERVING:
        assert parser_of(words[0]).parse_args(words[1:])
    else:
        with pytest.raises(SystemExit) as end:  # argparse ends so after --help and --print_config
            main([*words, *([] if {"--help", "--print_config"} & {*words} else ["--print_config"])])
        assert end.value.code in (0, None)


def test_the_example_log_is_certified_as_the_readme_shows(checkout, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(shlex.split(next(c for c in commands() if "embedded:log" in c))) == 0
    printed = screen(capsys)
    for name in ("README.md", "docs/certificates.md"):
        (shown,) = (block for block in blocks(page(name), "text") if "wrong_accepted" in block)
        assert " ".join(shown.split()) in printed
        assert "0.111" in page(name)
    assert "0.111" in printed
