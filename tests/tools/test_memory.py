"""The computed memory of a training step."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from svr_lightning.policy.config import LoRAConfig
from tests.commands import ROOT, ran
from tools import memory
from tools.bench.workloads import GIB
from tools.memory import Plan, Usage, fit, plan_of, resolve, usage


def tiny(**changes: object) -> Plan:
    plan = Plan(
        policy="random:qwen3_5",
        device="cuda",
        precision="bf16-true",
        ranks=4,
        zero=True,
        lora=None,
        checkpointing=True,
        sequences=2,
        prompt=40,
        completion=24,
        micro_batches=2,
        reference=True,
        engine_share=0.4,
        sleeps=False,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_peak_of_a_fresh_process_is_within_a_tenth_of_the_computed_one():
    configs = ["--config", "gsm8k", "--config", "hardware/cpu_smoke"]
    arguments = [*configs, "--model.policy.gradient_checkpointing", "true"]
    # The allocator returns freed memory at once, so that what is resident is what is in use.
    trimmed = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = ran(sys.executable, "-m", "tests.tools.memory_of_a_step", *arguments, **trimmed)
    measured = int(done.stdout.split()[-1])
    assert usage(plan_of(resolve(arguments))).training == pytest.approx(measured, rel=0.1)


def test_every_shipped_configuration_fits_its_card_and_the_page_says_so():
    pytest.importorskip("peft")
    for run, layer, _, found in memory.shipped():
        assert found.fits, (run, layer, found)
        text = (ROOT / "configs" / "hardware" / f"{layer}.yaml").read_text(encoding="utf-8")
        in_pieces = found.left < memory.CARDS[layer] / 10  # and so of no use
        assert not in_pieces or "PYTORCH_ALLOC_CONF=expandable_segments:True" in text
    page = memory.DOCS.read_text(encoding="utf-8")
    assert memory.with_table(page) == page, "run python -m tools.memory"


def test_zero_shards_masters_moments_and_gradients_over_the_ranks():
    one, four = usage(tiny(ranks=1)), usage(tiny())
    count = one.parameters
    assert (one.weights, one.reference) == (2 * count, 2 * count)
    assert (one.optimizer, four.optimizer) == (12 * count, 3 * count)
    # bf16: the sum, those of this micro-batch, and a bucket.
    buffer = 2 * memory.BUCKET
    assert (one.gradients, four.gradients) == (4 * count + buffer, count + buffer)
    assert one.micro_batch == four.micro_batch


def test_adapters_alone_have_gradients_and_moments():
    pytest.importorskip("peft")
    plain = tiny(zero=False, ranks=1, precision="bf16-mixed")
    without, adapted = usage(plain), usage(replace(plain, lora=LoRAConfig(r=4)))
    trained = adapted.parameters - without.parameters
    assert 0 < trained < without.parameters
    assert adapted.weights == without.weights + 4 * trained
    assert (adapted.reference, adapted.gradients) == (0, 4 * trained)
    assert 8 * trained < adapted.optimizer < 8 * trained + 4 * 200


def test_a_card_is_filled_by_the_higher_of_rollout_and_update():
    taken = {"weights": 2, "reference": 1, "optimizer": 1, "gradients": 1, "micro_batch": 3}
    used = Usage(parameters=0, step=2 * GIB, **{name: n * GIB for name, n in taken.items()})
    # At rest 4 and the engine's 10; in the update 4 + 1 + 3 and the engine's.
    assert fit(tiny(engine_share=0.5), used, 20.0) == (10.0, 18.0, 14.0, 2.0, False)
    assert fit(tiny(engine_share=0.5, sleeps=True), used, 20.0) == (10.0, 8.0, 14.0, 6.0, True)


@pytest.mark.parametrize(("share", "fits"), [(0.0, True), (0.24, False), (0.25, True)])
def test_a_share_without_room_for_the_engines_cache_does_not_fit(share, fits):
    rest = ("weights", "reference", "optimizer", "gradients", "micro_batch", "step")
    used = Usage(parameters=2 * GIB, **dict.fromkeys(rest, 0))
    # 4 GiB of weights in bf16: a share of a quarter leaves 1 GiB of 5.
    assert fit(tiny(engine_share=share), used, 20.0).fits is fits
