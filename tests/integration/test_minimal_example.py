"""The two examples in plain PyTorch, and the notebook, held against the trainer."""

import json
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from svr_lightning import tiny
from svr_lightning.core.schedule import warmup_stable_decay
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.config import (
    OptimizerConfig,
    PolicyConfig,
    ReferenceConfig,
    SamplingConfig,
)
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.module import SVRModule
from svr_lightning.training.sources import DataSource
from svr_lightning.training.trainer import SVRTrainer
from tests.tolerance import assert_same_first_step

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("minimal_svr", "svr_from_scratch")
SHIPPED = Path(tiny.__file__).parent / "countdown_policy"
SEED = 42


@pytest.fixture(scope="module", params=NAMES)
def minimal(request: pytest.FixtureRequest) -> ModuleType:
    spec = spec_from_file_location(request.param, EXAMPLES / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(minimal: ModuleType, data: SVRDataModule, folder: Path) -> SVRModule:
    """The module after one optimizer step of the real trainer, in two micro-batches."""
    module = SVRModule(
        policy=PolicyConfig(max_prompt_tokens=512, max_model_len=1024),
        recipe=SVR(
            group_size=minimal.GROUP,
            horizon=minimal.HORIZON,
            length_scale=minimal.LENGTH_SCALE,
            loss=minimal.LOSS,
        ),
        sampling=SamplingConfig(
            temperature=minimal.TEMPERATURE, max_completion_tokens=minimal.MAX_TOKENS
        ),
        optimizer=OptimizerConfig(
            lr=minimal.LR,
            weight_decay=minimal.WEIGHT_DECAY,
            betas=minimal.BETAS,
            gradient_clip_val=minimal.CLIP,
        ),
        reference=ReferenceConfig(every=0),
        resample="off",
        micro_batch_size=8,
        seed=SEED,
    )
    trainer = SVRTrainer(
        default_root_dir=str(folder),
        accelerator="cpu",
        devices=1,
        max_steps=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    return module


def test_the_example_and_the_trainer_take_the_same_first_step(
    minimal: ModuleType, tmp_path: Path
) -> None:
    data = SVRDataModule(
        train=DataSource(name="train", task="countdown", path="embedded:countdown-tiny"),
        problems_per_step=2,
        seed=SEED,
    )
    problems = next(iter(data.train_dataloader()))
    module = trained(minimal, data, tmp_path)
    assert [group.problem for group in module.groups] == problems
    assert (minimal.GROUP, minimal.HORIZON) == (8, 3)

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    policy, reference, start = (AutoModelForCausalLM.from_pretrained(SHIPPED) for _ in range(3))
    optimizer = minimal.make_optimizer(policy, minimal.LR * warmup_stable_decay(0, total_steps=1))
    samples = (
        minimal.make_engine(policy, tokenizer) if hasattr(minimal, "make_engine") else [tokenizer]
    )
    mean_return = minimal.train_step(policy, reference, *samples, optimizer, problems, SEED, 0)

    returns = [value for group in module.groups for value in group.returns]
    assert mean_return == pytest.approx(sum(returns) / len(returns), rel=1e-12)
    assert len(set(returns)) > 1  # otherwise there was nothing to learn
    lr = minimal.LR * warmup_stable_decay(0, total_steps=1)
    samples_per_step = 2 * minimal.GROUP
    assert_same_first_step(policy, module, lr, 1024, samples_per_step * 1024)
    pairs = zip(policy.parameters(), start.parameters(), strict=True)
    assert max((now - before).abs().max().item() for now, before in pairs) > lr / 2


def test_the_example_runs_from_the_command_line(
    minimal: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if hasattr(minimal, "RECIPE"):
        monkeypatch.setattr(minimal, "RECIPE", replace(minimal.RECIPE, group_size=2))
    monkeypatch.setattr(minimal, "GROUP", 2)
    monkeypatch.setattr(sys, "argv", ["example.py", "--steps", "2", "--problems", "1"])
    minimal.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line[:19] for line in lines] == ["step 1  mean return", "step 2  mean return"]


def test_the_example_stays_short_enough_to_read_at_a_sitting(minimal: ModuleType) -> None:
    assert minimal.__file__ is not None
    assert len(Path(minimal.__file__).read_text().splitlines()) < 200


def test_the_notebook_trains_and_draws_a_reliability_diagram() -> None:
    notebook = json.loads((EXAMPLES / "train_in_a_notebook.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
    code = "\n\n".join("".join(cell["source"]) for cell in cells)
    for long, short in (("STEPS = 20", "STEPS = 2"), ("held_out[:100]", "held_out[:8]")):
        assert long in code
        code = code.replace(long, short)
    matplotlib.use("Agg")
    space: dict[str, Any] = {}
    exec(compile(code, "train_in_a_notebook.ipynb", "exec"), space)
    assert len(space["mean_returns"]) == 2
    start = AutoModelForCausalLM.from_pretrained(SHIPPED)
    pairs = zip(space["policy"].parameters(), start.parameters(), strict=True)
    assert any(not torch.equal(now, before) for now, before in pairs)
    confidence, accuracy = space["points"]
    assert len(confidence) == len(accuracy) > 0
    assert all(0 <= value <= 1 for value in [*confidence, *accuracy])
    (line,) = [one for one in space["axes"].lines if len(one.get_xdata()) == len(confidence)]
    assert list(line.get_ydata()) == accuracy
