"""A training, whole, on vLLM."""

import json
from pathlib import Path

from tests import forked
from tests.commands import TINY, logged
from tests.vllm.conftest import rounding

STEPS = 3
HELD_OUT = (
    "[{name: held_out, task: countdown, path: 'embedded:countdown-tiny', split: test, limit: 12}]"
)


def test_the_embedded_policy_trains_on_vllm(tmp_path: Path) -> None:
    command = [
        *("fit", *TINY),
        *("--trainer.default_root_dir", str(tmp_path), "--model.micro_batch_size", "48"),
        *("--model.engine", "svr_lightning.engines.vllm.VLLMEngine"),
        *("--trainer.enable_progress_bar", "false", "--trainer.max_steps", str(STEPS)),
        *("--data.test", HELD_OUT, "--trainer.limit_val_batches", "0"),
    ]
    log = tmp_path / "log"
    assert forked.wait(forked.start(log, *command)) == 0, log.read_text()[-3000:]
    for name in ("before", "after"):
        results = json.loads((tmp_path / "eval" / name / "results.json").read_text())
        assert results["datasets"]["held_out"]["n"] == 12
    values = logged(tmp_path)
    # Every step was sampled by the very weights that it trained.
    assert len(values["engine/logprob_diff"]) == STEPS
    assert max(values["engine/logprob_diff"].values()) < rounding(tmp_path)
    assert all(share > 0.5 for share in values["engine/changed_frac"].values())
