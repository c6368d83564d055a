"""The names that stay: importable from the root without torch, and working together."""

import subprocess
import sys

import pytest

import svr_lightning as svr

USE_EVERYTHING = """
import sys
import svr_lightning as svr

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
assert svr.Controller(lambda *_: text, "countdown").solve("3 5 8 = 16").accepted
heavy = {"torch", "transformers", "lightning", "vllm", "numpy", "httpx", "rich", "starlette",
         "sympy"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_whole_surface_works_without_torch():
    subprocess.run([sys.executable, "-c", USE_EVERYTHING], check=True)


def test_help_needs_no_heavy_import():
    code = (
        "import sys; from svr_lightning.__main__ import main; main(['--help']);"
        "sys.exit('lightning' in sys.modules or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "fit" in done.stdout


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = svr.nothing


def test_every_public_name_resolves():
    assert all(getattr(svr, name) is not None for name in svr.__all__)
