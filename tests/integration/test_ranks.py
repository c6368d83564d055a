"""Two processes train what one does: under DDP, under ZeRO-2, through accumulation and resuming."""

import sys

import pytest
import torch

from svr_lightning.errors import ConfigError
from svr_lightning.training.distributed import (
    SVRDeepSpeedStrategy,
    check_precision,
    resolve_strategy,
)
from tests import forked
from tests.commands import SMALL, TINY, embedded, flags, jsonl, refused
from tests.faults.runs import MEASURED
from tests.rank_trainings import CLIP, LORA, LR, Seen, train
from tests.tolerance import assert_same_steps


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[Seen]:
    """What each of two processes saw in the trainings of ``tests.rank_trainings``."""
    pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp("ranks")
    forked.finish_ranks(folder, str(folder), module="tests.rank_trainings")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Seen:
    """The same training on one process."""
    return train(tmp_path_factory.mktemp("alone"))


def furthest(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """The largest difference between two states of the same weights."""
    assert left.keys() == right.keys()
    return max(float((left[k].float() - right[k].float()).abs().max()) for k in left)


WAYS = ["ddp", "zero2 accumulated"]


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_end_with_the_weights_of_one(ranks, alone, way):
    assert furthest(ranks[0][way]["weights"], ranks[1][way]["weights"]) == 0
    for state in ("weights", "reference"):
        assert_same_steps(
            ranks[1][way][state], alone[state], alone["sizes"], 3 * LR, alone["rounding"]
        )


def test_one_process_goes_on_with_what_two_have_begun(ranks, alone, tmp_path):
    """From eight micro-batches of one sequence per step to one of all."""
    checkpoint = ranks[0]["ddp cut"]["folder"] / "checkpoints" / "last.ckpt"
    resumed = train(tmp_path, resume=str(checkpoint))
    for state in ("weights", "reference"):
        assert_same_steps(resumed[state], alone[state], alone["sizes"], 3 * LR, alone["rounding"])


def test_two_processes_end_with_the_adapters_of_one(ranks, tmp_path):
    pytest.importorskip("peft")
    one = train(tmp_path, lora=LORA)
    found = [seen["adapters"]["weights"] for seen in ranks]
    assert furthest(*found) == 0
    assert_same_steps(found[1], one["weights"], one["sizes"], 3 * LR, one["rounding"])


@pytest.mark.parametrize("way", WAYS)
def test_every_step_is_logged_once_with_the_norm_of_the_whole_gradient(ranks, alone, way):
    assert len(alone["norms"]) == 3
    assert ranks[0][way]["norms"] == pytest.approx(alone["norms"], abs=0, rel=alone["rounding"])
    keys = [row[:2] for row in alone["lines"]]
    logged = [row[:2] for row in ranks[0][way]["lines"]]
    assert [row for row in logged if row[1] != "time/wait"] == keys
    assert logged.count(["1", "time/wait"]) == 1  # for the other process
    # Clipping acts at every step, and would not on a gradient divided once more by 4.
    assert all(CLIP < norm < 4 * CLIP for norm in alone["norms"])


@pytest.mark.parametrize("way", WAYS)
def test_a_step_logs_the_mean_over_the_processes(ranks, alone, way):
    def kl(seen):
        # Of the second step: in the first, policy and reference are the same.
        (value,) = [row[2] for row in seen["lines"] if row[:2] == ["2", "train/kl"]]
        return float(value)

    # Each process has other sequences, whose own means differ by more than this.
    assert kl(ranks[0][way]) == pytest.approx(kl(alone), rel=0.01)
    assert kl(alone) > 0


def test_no_process_keeps_a_gradient_after_its_step(ranks):
    for seen in ranks:
        assert [seen[way]["held"] for way in WAYS] == [[]] * len(WAYS)


def test_two_processes_sample_what_one_does(ranks, alone):
    shares = [ranks[rank]["ddp"]["rollouts"] for rank in range(2)]
    assert [len(share) for share in shares] == [8, 8]  # 2 problems x G 2 x 2 turns
    assert shares[0] | shares[1] == alone["rollouts"]


def test_an_engine_is_told_its_rank_and_its_gpu_under_slurm_too(ranks):
    for rank, seen in enumerate(ranks):
        before, within, after = seen["ddp"]["environment"]
        assert before == after  # whatever other libraries left there
        gpu = str(2 + rank)  # not the number of the process on its machine
        assert within == {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": gpu}


def test_zero2_goes_on_between_two_rollouts_as_if_it_had_not_stopped(ranks):
    for seen in ranks:
        whole, resumed = seen["whole"], seen["resumed"]
        assert furthest(whole["weights"], resumed["weights"]) == 0
        assert furthest(whole["reference"], resumed["reference"]) == 0
        assert furthest(whole["weights"], whole["reference"]) > 1e-4
    rows = [
        [row for row in ranks[0][name]["lines"] if not row[1].startswith(MEASURED)]
        for name in ("whole", "resumed")
    ]
    assert rows[0] == rows[1]


def test_a_sharded_checkpoint_is_evaluated_without_its_reference(ranks):
    for seen in ranks:
        assert furthest(seen["validated"]["weights"], seen["whole"]["weights"]) == 0
        assert seen["validated"]["reference"] is None


def test_bf16_weights_have_fp32_masters_that_hold_more_than_bf16_can(ranks):
    for seen in ranks:
        bf16 = seen["bf16"]
        assert bf16["types"] == bf16["reference_types"] == {torch.bfloat16}
        assert bf16["masters"].dtype == torch.float32
        assert set(bf16["moments"]) == {torch.float32}
        assert (bf16["masters"] != bf16["masters"].bfloat16()).float().mean() > 0.9
        assert bf16["frequencies"].dtype == torch.float32
    # Each process holds its own half.
    assert ranks[0]["bf16"]["masters"].shape == ranks[1]["bf16"]["masters"].shape
    assert not torch.equal(ranks[0]["bf16"]["masters"], ranks[1]["bf16"]["masters"])


def test_an_infinite_gradient_on_one_rank_stops_both_before_the_update(ranks):
    for seen in ranks:
        before, after = seen["infinite"]["before"], seen["infinite"]["after"]
        assert "the gradient of optimizer step 2 is not finite" in seen["infinite"]["cause"]
        assert furthest(before["weights"], after["weights"]) == 0
        for part in ("masters", "moments"):
            pairs = zip(before[part], after[part], strict=True)
            assert all(torch.equal(left, right) for left, right in pairs)
        assert before["schedule"] == after["schedule"] == 1


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed_stage_2"])
def test_a_strategy_named_as_lightnings_is_our_own(name):
    pytest.importorskip("deepspeed")
    strategy = resolve_strategy(name)
    assert type(strategy) is SVRDeepSpeedStrategy
    zero = strategy.config["zero_optimization"]
    assert (zero["stage"], zero["overlap_comm"], zero["contiguous_gradients"]) == (2, False, True)
    assert resolve_strategy("ddp") == "ddp"


def test_lightnings_own_object_and_sharded_weights_are_refused():
    pytest.importorskip("deepspeed")
    from lightning.pytorch.strategies import DeepSpeedStrategy, ModelParallelStrategy

    objects = (DeepSpeedStrategy(), ModelParallelStrategy())
    for strategy in ("fsdp", "deepspeed_stage_3", "deepspeed_stage_2_offload", *objects):
        with pytest.raises(ConfigError, match="use deepspeed_stage_2 or SVRDeepSpeedStrategy, wit"):
            resolve_strategy(strategy)


def test_an_evaluation_under_deepspeed_needs_neither_training_data_nor_an_optimizer(tmp_path):
    pytest.importorskip("deepspeed")
    settings = {
        "trainer.strategy": "deepspeed_stage_2",
        "data.test": embedded(2),
        "data.train": "{name: gone, task: countdown, path: ./gone.jsonl}",
        "model.optimizer.lr": "1e9",
        "trainer.default_root_dir": tmp_path / "run",
    }
    log = tmp_path / "log"
    process = forked.start(log, "test", *SMALL, *flags(settings))
    assert forked.wait(process) == 0, log.read_text()[-2000:]
    assert len(jsonl(tmp_path / "run" / "eval" / "test" / "samples.jsonl")) == 2


def test_without_deepspeed_its_strategy_is_one_line_that_says_what_to_install(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    options = ("--trainer.default_root_dir", tmp_path, "--trainer.strategy", "deepspeed_stage_2")
    line = refused(capsys, "fit", *TINY, *options)
    assert line.startswith("trainer.strategy: DeepSpeed is not installed")
    assert "pip install 'deepspeed>=0.19.8,<0.20', add --config hardware/1gpu" in line
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    line = refused(capsys, "fit", "--config", "gsm8k")  # whose strategy is DeepSpeed's too
    assert "no GPU" in line
    assert line.endswith("neither vLLM nor DeepSpeed, add --config hardware/cpu_smoke")


@pytest.mark.parametrize(
    ("precision", "sharded", "instead"),
    [
        ("bf16-true", False, "bf16-mixed"),
        ("16-mixed", False, "bf16-mixed"),
        ("16-true", True, "bf16-true"),
    ],
)
def test_what_loses_updates_is_refused(precision, sharded, instead):
    message = f"trainer.precision={precision} would lose updates.*; use {instead}"
    with pytest.raises(ConfigError, match=message):
        check_precision(precision, sharded=sharded)
    check_precision(instead, sharded=sharded)
