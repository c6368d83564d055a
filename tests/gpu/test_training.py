"""Commands as a user runs them: a shipped configuration at full depth, or in small on a CPU."""

import re
import time
from importlib.util import find_spec

import httpx
import pytest

from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.policy import Policy
from tests.commands import sampled
from tests.gpu.conftest import DEVICE
from tests.gpu.policy import question
from tests.gpu.report import started
from tests.gpu.training import LOG, Run, eager_engine

pytestmark = pytest.mark.gpu
KILLED_AFTER = 3
"""Step; the last checkpoint is of the one before."""


def test_a_shipped_configuration_trains_and_validates_at_full_depth(policy, figures, tmp_path):
    loaded = Policy.load(PolicyConfig(path=str(policy.folder)))
    assert loaded.fingerprint() == policy.fingerprint
    del loaded
    run = Run(tmp_path, policy, DEVICE)
    run.finish(figures, "fit", seconds=420)
    assert run.steps() == 2
    found = sorted(path.parent.name for path in run.folder.glob("eval/*/results.json"))
    assert found == ["step-000001", "step-000002"]
    curves = run.logged()
    assert min(curves["train/grad_norm"].values()) > 0
    assert max(curves["engine/changed_frac"].values()) > 0.1
    lengths = {len(text) for texts in sampled(run.folder, 1).values() for text in texts}
    assert len(lengths) > 2  # as with a real policy, micro-batches differ in shape
    run.finish(figures, "validate", seconds=180)
    assert (run.folder / "eval" / "validate" / "results.json").is_file()


def test_a_killed_training_resumes_from_its_checkpoint_and_samples_the_same(
    shallow, figures, tmp_path
):
    run, zero = Run(tmp_path, shallow, DEVICE), find_spec("deepspeed") is not None
    figures("deepspeed", zero)
    saving = {"every_n_train_steps": 2, "save_top_k": 0, "save_last": True}
    saver = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": saving | {"enable_version_counter": False},
    }
    run.changes["trainer"] |= {
        "max_steps": KILLED_AFTER + 1,
        "limit_val_batches": 0,
        "enable_checkpointing": True,
        "strategy": "deepspeed_stage_2" if zero else "auto",
        "precision": "bf16-true" if zero else "32-true" if run.cpu else "bf16-mixed",
        "callbacks": [LOG, saver],
    }
    run.changes["model"] |= {
        "engine": eager_engine(run.cpu),
        "sampling": {"max_completion_tokens": 16},
    }
    with run.started("fit") as ended:
        while ended() is None and run.steps() < KILLED_AFTER:
            time.sleep(0.05)
        assert ended() is None, "it ended before it could be killed"
    before = sampled(run.folder, KILLED_AFTER)
    run.finish(figures, "fit", "--ckpt_path", "last", seconds=240)
    again = sampled(run.folder, KILLED_AFTER)
    same = sum(again[key] == texts for key, texts in before.items()) / len(before)
    figures("same_rollouts", same, note="share of the killed step's trajectories, drawn once more")
    assert run.steps() == KILLED_AFTER + 1
    assert same == 1 or DEVICE == "cuda"  # kernels of a GPU may add up in another order


def test_adapters_train_on_the_layer_for_a_small_card(policy, figures, tmp_path):
    pytest.importorskip("peft")
    run = Run(tmp_path, policy, DEVICE, layer="1gpu_24gb")
    run.changes["trainer"]["limit_val_batches"] = 0
    if run.cpu:
        run.changes["model"]["engine"] = eager_engine(cpu=True)
    run.finish(figures, "fit", seconds=300)
    assert run.steps() == 2
    assert min(run.logged()["train/grad_norm"].values()) > 0


def test_a_policy_answers_behind_a_server(policy, figures, tmp_path):
    began = time.perf_counter()
    limits = ("--max-turns=2", "--max-completion-tokens=32", "--port=0")
    line = ("serve", "--task", "gsm8k", "--policy", str(policy.folder), *limits)
    log = tmp_path / "serve.log"
    log.touch()
    with started(log, DEVICE, *line) as ended:
        while not (said := re.search("^serving .* (http.*)$", log.read_text(), re.MULTILINE)):
            assert ended() is None, log.read_text()
            time.sleep(0.1)
        figures("start", time.perf_counter() - began, "s")
        for number in range(3):
            began = time.perf_counter()
            body = {"messages": [{"role": "user", "content": question(number)}]}
            answer = httpx.post(f"{said[1]}/chat/completions", json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["svr"]["turns"]) == 2
            figures(f"answer_{number}", time.perf_counter() - began, "s", "two turns")
