"""The two examples in plain PyTorch, and the notebook, held against the trainer."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import svr_lightning as svr
from examples import minimal_svr as minimal
from examples import svr_from_scratch as scratch
from svr_lightning.core.schedule import warmup_stable_decay
from svr_lightning.core.types import Decoding
from svr_lightning.training.config import OptimizerConfig, ReferenceConfig
from svr_lightning.training.logs import CSVLog
from tests import small_fit
from tests.commands import ROOT, SHIPPED, read_json
from tests.scripted import says
from tests.tolerance import assert_same_first_step, rounding

EXAMPLES = ROOT / "examples"
SEED = 42


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> small_fit.Remembering:
    """The module after one optimizer step of the real trainer, in two micro-batches."""
    module = small_fit.module(
        recipe=minimal.RECIPE,
        sampling=Decoding(
            temperature=minimal.TEMPERATURE, max_completion_tokens=minimal.MAX_TOKENS
        ),
        optimizer=OptimizerConfig(
            lr=minimal.LR,
            weight_decay=minimal.WEIGHT_DECAY,
            betas=minimal.BETAS,
            gradient_clip_val=minimal.CLIP,
        ),
        reference=ReferenceConfig(every=0),
        micro_batch_size=8,
        seed=SEED,
    )
    folder = tmp_path_factory.mktemp("fit")
    trainer = small_fit.trainer(folder, max_steps=1, logger=CSVLog(folder))
    trainer.fit(module, small_fit.data(seed=SEED))
    return module


def policies(count: int) -> list[Any]:
    return [AutoModelForCausalLM.from_pretrained(SHIPPED) for _ in range(count)]


def test_the_example_and_the_trainer_take_the_same_first_step(trained):
    assert (minimal.GROUP, minimal.HORIZON) == (8, 3)
    reference, start = policies(2)
    policy = minimal.load_policy()
    lr = minimal.LR * warmup_stable_decay(0, total_steps=1)
    optimizer = minimal.make_optimizer(policy.model, lr)
    problems = [group.problem for group in trained.rollout.groups]
    mean_return = minimal.train_step(policy, reference, optimizer, problems, SEED, 0)

    returns = [value for group in trained.rollout.groups for value in group.returns]
    assert mean_return == pytest.approx(sum(returns) / len(returns), rel=1e-12)
    assert len(set(returns)) > 1  # otherwise there was nothing to learn
    assert_same_first_step(policy.model, trained, lr, 1024, len(returns) * 1024)
    pairs = zip(policy.model.parameters(), start.parameters(), strict=True)
    assert max((now - before).abs().max().item() for now, before in pairs) > lr / 2


def test_the_method_written_out_takes_the_trainers_first_step(trained):
    shared = ["GROUP", "HORIZON", "TEMPERATURE", "MAX_TOKENS", "LENGTH_SCALE"]
    shared += ["LR", "WEIGHT_DECAY", "BETAS"]
    assert [getattr(scratch, n) for n in shared] == [getattr(minimal, n) for n in shared]
    assert (minimal.LOSS.clip_eps, minimal.LOSS.beta) == (scratch.CLIP_EPS, scratch.BETA)
    assert scratch.CLIP_NORM == minimal.CLIP

    assert scratch.SEED == SEED

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    policy, reference = policies(2)
    lr = scratch.LR * warmup_stable_decay(0, total_steps=1)
    optimizer = scratch.make_optimizer(policy, lr)
    problems = [group.problem for group in trained.rollout.groups]
    seen, loss = scratch.train_step(policy, reference, tokenizer, optimizer, problems, 0)

    trajectories = [one for group in trained.rollout.groups for one in group.trajectories]
    rewards = [turns for group in trained.rollout.groups for turns in group.rewards]
    advantages = [sample.advantage for group in trained.rollout.groups for sample in group.samples]
    expected = zip(trajectories, rewards, advantages, strict=True)
    for (turns, earned, advantage), (one, totals, weight) in zip(seen, expected, strict=True):
        assert [turn.text for turn in turns] == [turn.completion.text for turn in one.turns]
        sampled = one.turns[-1].sampled
        assert turns[-1].prompt == list(sampled.prompt_ids)
        assert turns[-1].tokens == list(sampled.token_ids)
        assert earned == pytest.approx([turn.total for turn in totals])
        assert advantage == pytest.approx(weight)
    assert max(advantages) > 1
    lines = Path(trained.trainer.default_root_dir, "metrics.csv").read_text().splitlines()
    (logged,) = [float(line.split(",")[2]) for line in lines if line.split(",")[1] == "train/loss"]
    assert loss == pytest.approx(logged, abs=rounding(len(advantages), max(advantages)))
    assert_same_first_step(policy, trained, lr, 1024, len(advantages) * 1024)


COMPLETIONS = [
    says("(8+4)/2", "CORRECT", 0.9),
    says("8+4-2", "UNSURE", 0.5),
    says("8/(4-4)", "INCORRECT", 0.1),
    says("8+4-2", "CORRECT", 0.9).replace("CONFIDENCE", "SURE"),
    says("8+4-2", "CORRECT", 0.9).replace("CORRECT", "ok"),
    "<answer>8+4-2</answer> VERDICT: CORRECT",
    "<think>8+4</think> <answer>8+4",
    f"<think>{says('8+4-2', 'CORRECT', 0.9)}</think> <answer>8+4+2</answer> VERDICT: UNSURE",
    "<think><self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check></think>",
    "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9",
    "",
]


@pytest.mark.parametrize("text", COMPLETIONS)
def test_the_method_written_out_reads_as_the_package_does(text):
    part = text[scratch.TASK.read(text).check :]
    check = svr.parse_self_check(part)
    form = svr.self_check_format_score(part)
    assert scratch.parse_self_check(text) == (check.verdict, check.confidence, form)
    assert scratch.task_format(text) == scratch.TASK.format_score(text)


def test_the_examples_run_from_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(minimal, "RECIPE", replace(minimal.RECIPE, group_size=2))
    monkeypatch.setattr(scratch, "GROUP", 2)
    monkeypatch.setattr(scratch, "PROBLEMS", 1)
    for main, options in ((minimal.main, ["--problems", "1"]), (scratch.main, [])):
        monkeypatch.setattr(sys, "argv", ["example.py", "--steps", "1", *options])
        main()
    lines = capsys.readouterr().out.splitlines()
    assert [line[:19] for line in lines[:2]] == ["step 1  mean return"] * 2
    assert lines[-1] in ("(right)", "(wrong)")


def test_the_notebook_trains_and_shows_before_and_after(capsys):
    notebook = read_json(EXAMPLES / "train_in_a_notebook.ipynb")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    stored = [
        "".join(text for o in cell["outputs"] for text in o.get("text", [])) for cell in cells
    ]
    assert sum("--- turn 3" in text and "called CORRECT" in text for text in stored) == 2
    assert any(text.startswith("step  1") and "step 20" in text for text in stored)
    assert "image/png" in cells[-1]["outputs"][0]["data"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells)
    for long, short in (("STEPS = 20", "STEPS = 2"), ("held_out[:100]", "held_out[:8]")):
        assert long in code
        code = code.replace(long, short)
    matplotlib.use("Agg")
    space = {}
    exec(compile(code, "train_in_a_notebook.ipynb", "exec"), space)
    assert capsys.readouterr().out.count("--- turn 3") == 2
    assert len(space["mean_returns"]) == 2
    pairs = zip(space["policy"].parameters(), policies(1)[0].parameters(), strict=True)
    assert any(not torch.equal(now, before) for now, before in pairs)
    assert len(space["before"]) == len(space["after"]) == 8 * 8 * 3
    assert sum(space["reliability"](space["after"])[2]) == len(space["after"])
