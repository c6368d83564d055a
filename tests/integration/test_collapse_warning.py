"""A training warns once that its policy has collapsed, also one that was resumed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import Decoding
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.logs import WINDOW, rollout_stats
from tests.small_fit import data, module, trainer

NAMES = ("verdict/correct", "would_stop", "confidence/spread", "auroc")
START = dict(zip((f"train/{name}" for name in NAMES), (0.9, 0.7, 0.2, 0.5), strict=True))
DOUBT = dict(zip(START, (0.1, 0.01, 0.1, 0.5), strict=True))
END = 2 * WINDOW
"""The first rollout at which a whole window lies behind the start."""


def fit(
    folder: Path,
    seen: Sequence[dict[str, float]],
    monkeypatch: pytest.MonkeyPatch,
    resumed: Path | None = None,
    before: int = 0,
) -> Path:
    """Train one step for each rollout of which such statistics are ``seen``; the checkpoint."""
    rollouts = iter(seen)

    def stats(groups: Sequence[Group], rule: StopRule) -> dict[str, float]:
        return rollout_stats(groups, rule) | next(rollouts)

    monkeypatch.setattr("svr_lightning.training.module.rollout_stats", stats)
    recipe = SVR(group_size=2, horizon=1, length_scale=92, loss=LossSpec(beta=0.0))
    model = module(recipe=recipe, sampling=Decoding(max_completion_tokens=4))
    limits: dict[str, Any] = {"max_steps": before + len(seen), "max_epochs": -1}
    run = trainer(folder, **limits)
    run.fit(model, data(problems_per_step=1), ckpt_path=resumed)
    assert next(rollouts, None) is None
    run.save_checkpoint(folder / f"{run.global_step}.ckpt")
    return folder / f"{run.global_step}.ckpt"


def warnings(found: pytest.WarningsRecorder) -> list[str]:
    """The beginning of each warning of a collapse."""
    messages = [str(one.message) for one in found]
    return [said.partition(" into")[0] for said in messages if "has collapsed" in said]


def test_a_run_resumed_in_collapse_keeps_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    cut = WINDOW + 2
    path = fit(tmp_path, [START] * WINDOW + [DOUBT] * 2, monkeypatch)
    fit(tmp_path, [DOUBT] * (WINDOW + 3), monkeypatch, resumed=path, before=cut)
    assert warnings(recwarn) == [f"optimizer step {END}: self-verification has collapsed"]
