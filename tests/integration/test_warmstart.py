"""``svr warmstart`` from end to end, on the embedded word problems."""

import fcntl
import os
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from svr_lightning.__main__ import main
from svr_lightning.core.metrics import auroc
from svr_lightning.core.prompts import AnswerStyle
from svr_lightning.core.types import Problem
from svr_lightning.training.warmstart import freeze_lower_layers, shuffled, split
from tests.commands import ROOT, jsonl, read_json, refused, write_jsonl
from tests.faults.runs import wait_for
from tests.forked import start, wait
from tests.real.vowels import Vowels

CONFIG = ("--config", str(ROOT / "configs" / "arithmetic_tiny.yaml"))


def words(folder: Path, limit: int = 72) -> list[str]:
    """A warm start of a few seconds: one epoch of about 80 turns."""
    return [
        "warmstart",
        *CONFIG,
        f"--data.train.limit={limit}",
        f"--trainer.default_root_dir={folder}",
        "--start.held_out=40",
        "--start.samples=2",
        "--start.batch=1",
        "--start.passes=1",
        "--start.rate=1e-3",
        "--model.sampling.max_completion_tokens=28",  # cuts a few turns off
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An uninterrupted warm start."""
    folder = tmp_path_factory.mktemp("warmstart") / "whole"
    process = start(folder.with_suffix(".log"), *words(folder))
    assert wait(process) == 0
    return folder


def test_it_leaves_a_policy_its_samples_and_what_it_did(whole):
    said = whole.with_suffix(".log").read_text()
    facts = read_json(whole / "warmstart.json")
    records = jsonl(whole / "eval" / "plain" / "samples.jsonl")
    answers = [turn for record in records for turn in record["turns"]]
    assert facts["problems"] == len(records)
    assert facts["answers"] == len(answers) == 2 * len(records)
    assert facts["solved"] == pytest.approx(sum(turn["correct"] for turn in answers) / len(answers))
    assert facts["steps"] == facts["turns"]
    held_out = facts["held_out"]
    for name, shown in (
        ("right", "right"),
        ("form", "form kept"),
        ("auroc_confidence", "AUROC of the stated confidence"),
        ("auroc_logprob_mean", "AUROC of the log-probability, mean"),
        ("auroc_logprob_sum", "AUROC of the log-probability, sum"),
    ):
        (line,) = [row for row in said.splitlines() if shown in row and row.startswith("  ")][-1:]
        assert f"{held_out[name]:.3f}" in line
    assert "40 held-out problems" in said
    assert f"start.passes makes {facts['steps']} steps" in said
    assert "minutes" in said
    assert not [*whole.glob("*.ckpt")]


def test_held_out_turns_that_were_cut_off_rank_last(whole):
    facts = read_json(whole / "warmstart.json")["held_out"]
    turns = [one["turns"][0] for one in jsonl(whole / "eval" / "held_out" / "samples.jsonl")]
    results = read_json(whole / "eval" / "held_out" / "results.json")
    assert results["config"]["protocol"]["max_turns"] == 1
    kept = np.array([not turn["truncated"] for turn in turns])
    assert facts["form"] == kept.mean() < 1
    right = np.array([turn["correct"] for turn in turns])
    tokenize = AutoTokenizer.from_pretrained(whole / "policy").tokenize
    sums = [
        turn["solution_logprob"] * len(tokenize(turn["text"].partition("<self_check>")[0]))
        for turn in turns
    ]
    stated = [turn["confidence"] for turn in turns]
    for name, scores in (("confidence", stated), ("logprob_sum", sums)):
        ranked = np.where(kept, scores, -np.inf)
        assert facts[f"auroc_{name}"] == pytest.approx(auroc(ranked, right))


def test_the_policy_runs_with_the_prompts_that_it_was_taught(whole, capsys):
    policy = str(whole / "policy")
    question = "Tom has 3 pens. Tom buys 4 pens. How many pens does Tom have?"
    run = ["predict", "--config", f"{policy}/svr.json", f"--model.policy.path={policy}"]
    assert main([*run, f"--question={question}", "--model.evaluation.max_turns=1"]) == 0
    assert "turn 1" in capsys.readouterr().out


@pytest.mark.parametrize("moment", ["sampling", "training"])
def test_killed_and_started_again_it_ends_like_one_that_was_not(whole, tmp_path, capsys, moment):
    folder = tmp_path / "killed"
    log = folder.with_suffix(".log")
    process = start(log, *words(folder))
    if moment == "sampling":
        wait_for(folder / "eval" / "plain" / ".journal-0.jsonl", process, '"id"')
    else:
        wait_for(log, process, "step 60/")  # behind the checkpoint of step 50
    process.kill()
    assert wait(process) == -signal.SIGKILL
    assert not (folder / "policy").exists()
    for checkpoint in folder.glob("*.ckpt"):
        saved = checkpoint.read_bytes()
        checkpoint.write_bytes(saved[:-99])
        assert f"checkpoint {checkpoint} is damaged" in refused(capsys, *words(folder))
        checkpoint.write_bytes(saved)
    assert wait(start(log, *words(folder))) == 0
    one, other = (load_file(path / "policy" / "model.safetensors") for path in (whole, folder))
    assert all(torch.equal(one[name], other[name]) for name in one)
    facts, again = (read_json(path / "warmstart.json") for path in (whole, folder))
    for name in ("solved", "turns", "steps", "loss", "held_out"):
        assert facts[name] == again[name]


def test_only_the_upper_layers_move(whole):
    before = load_file(ROOT / "svr_lightning" / "tiny" / "arithmetic_policy" / "model.safetensors")
    after = load_file(whole / "policy" / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name].float(), after[name])}
    # Of three layers the upper half is two.
    assert {name.split(".")[2] for name in moved} == {"1", "2"}


def test_nothing_of_a_cluster_is_on_both_sides():
    problems = [
        Problem(id=str(i), task="math", question="?", reference="1", cluster=cluster)
        for i, cluster in enumerate("aabbccddee")
    ]
    training, held_out = split(problems, 3, seed=1)
    assert len(held_out) == 3
    assert {p.cluster for p in training}.isdisjoint(p.cluster for p in held_out)
    assert split(problems, 3, seed=1) == (training, held_out)
    assert any(split(problems, 3, seed=seed)[1] != held_out for seed in (2, 3))


def test_every_pass_has_each_turn_once_in_an_order_of_its_own():
    turns: Any = list(range(20))
    passes = shuffled(turns, seed=1)
    first, second = ([next(passes) for _ in turns] for _ in range(2))
    assert sorted(first) == sorted(second) == turns
    assert len({tuple(turns), tuple(first), tuple(second)}) == 3
    assert list(islice(shuffled(turns, seed=1), 20)) == first


class Listed(Vowels):
    """A task whose prompts show no place for an answer."""

    style = AnswerStyle(role="You sort.", request="a list", reminder="a list", draft_limit=99)


def test_what_cannot_be_taught_is_refused_in_one_line(tmp_path, capsys):
    base = words(tmp_path / "run")
    assert "start.held_out=40 of 12 problems" in refused(capsys, *words(tmp_path / "run", 12))
    few = refused(capsys, *base, "--model.sampling.max_completion_tokens=3")
    assert "0 right and 0 wrong ones" in few
    assert "the first answer ends with '" in few
    assert "ask for no self-check" in refused(capsys, *base, "--model.recipe=GRPO")
    rows = write_jsonl(tmp_path / "rows.jsonl", ({"id": i, "question": f"q{i}"} for i in range(20)))
    task = f"{Listed.__module__}.{Listed.__qualname__}"
    source = f"--data.train={{name: lists, task: {task}, path: {rows}}}"
    for trial in ("--trainer.fast_dev_run=true", "--trainer.limit_train_batches=1"):
        assert "set data.train.limit and start.passes" in refused(capsys, *base, trial)
    assert "without a YOUR_ANSWER" in refused(capsys, *base, source)
    (tmp_path / "other" / "policy").mkdir(parents=True)
    assert "holds another run" in refused(capsys, *words(tmp_path / "other"))


def test_it_refuses_slow_and_wrong_kernels_as_every_training_does(tmp_path, capsys, monkeypatch):
    trains = []
    monkeypatch.setattr(
        "svr_lightning.policy.policy.use_kernels", lambda *_, **options: trains.append(options)
    )
    refused(capsys, *words(tmp_path), "--model.sampling.max_completion_tokens=3")
    assert trains == [{"trains": True}]


def test_it_has_its_folder_to_itself(tmp_path, capsys):
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert "another process is training in this folder" in refused(capsys, *words(tmp_path))
    os.close(holder)


def test_all_weights_train_at_a_share_of_one():
    model = torch.nn.Linear(2, 2)
    freeze_lower_layers(model, 1.0)
    assert all(weight.requires_grad for weight in model.parameters())
