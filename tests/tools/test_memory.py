"""The computed memory of a training step."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools import memory
from tools.memory import Plan, Usage, fit, plan_of, resolve, usage

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30


def layers(*names: str) -> list[str]:
    return [part for name in names for part in ("--config", str(ROOT / "configs" / name))]


CPU = layers("gsm8k.yaml", "hardware/cpu_smoke.yaml")


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
        reference_dtype=None,
        engine_share=0.4,
        sleeps=False,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


# --- against a process ------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_peak_of_a_fresh_process_is_within_a_tenth_of_the_computed_one() -> None:
    arguments = [*CPU, "--model.policy.gradient_checkpointing", "true"]
    # The allocator returns freed memory at once, so that what is resident is what is in use.
    trimmed = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.memory_of_a_step", *arguments],
        cwd=ROOT,
        env={**os.environ, **trimmed, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    measured = int(done.stdout.split()[-1])
    assert usage(plan_of(resolve(arguments))).training == pytest.approx(measured, rel=0.1)


# --- what ships ------------------------------------------------------------


def test_every_shipped_configuration_fits_its_card_and_the_page_says_so() -> None:
    pytest.importorskip("peft")
    found = {(run, layer): fits for run, layer, _, fits in memory.shipped()}
    assert {name: fits.spare for name, fits in found.items() if not fits.fits} == {}
    for (_, layer), fits in found.items():  # free memory in pieces is of no use
        text = (ROOT / "configs" / "hardware" / f"{layer}.yaml").read_text(encoding="utf-8")
        card = memory.CARDS[memory.HARDWARE[layer]]
        assert fits.spare > card / 10 or "PYTORCH_ALLOC_CONF=expandable_segments:True" in text
    page = memory.DOCS.read_text(encoding="utf-8")
    assert memory.with_table(page) == page, "run python -m tools.memory"


def test_a_plan_is_what_the_configuration_says() -> None:
    plan = plan_of(resolve(layers("math.yaml", "hardware/4gpu_zero2.yaml")))
    # 16 problems x G 8 over 4 ranks: 32 sequences in 4 micro-batches of 8.
    assert (plan.ranks, plan.sequences, plan.micro_batches) == (4, 8, 4)
    assert (plan.prompt, plan.completion, plan.checkpointing) == (4096, 2048, True)
    assert plan.zero
    assert (plan.engine_share, plan.sleeps, plan.lora) == (0.4, False, None)
    plan = plan_of(resolve(layers("gsm8k.yaml", "hardware/1gpu_24gb.yaml")))
    assert (plan.lora, plan.zero) == ((32, "all-linear"), False)


# --- worked out by hand ------------------------------------------------------------


def test_zero_shards_masters_moments_and_gradients_over_the_ranks() -> None:
    one, four = usage(tiny(ranks=1)), usage(tiny())
    count = one.parameters
    assert (one.weights, one.reference) == (2 * count, 2 * count)
    assert (one.optimizer, four.optimizer) == (12 * count, 3 * count)
    # bf16: the sum, those of this micro-batch, and a bucket.
    buffer = 2 * memory.BUCKET
    assert (one.gradients, four.gradients) == (4 * count + buffer, count + buffer)
    assert one.micro_batch == four.micro_batch


def test_without_zero_weights_gradients_and_both_moments_are_in_fp32() -> None:
    used = usage(tiny(zero=False, ranks=1, precision="bf16-mixed", reference_dtype="bfloat16"))
    count = used.parameters
    assert (used.weights, used.gradients, used.reference) == (4 * count, 4 * count, 2 * count)
    steps = used.optimizer - 8 * count
    assert 0 < steps < 4 * 100  # a counter for each of fewer than a hundred tensors


def test_adapters_alone_have_gradients_and_moments() -> None:
    pytest.importorskip("peft")
    plain = tiny(zero=False, ranks=1, precision="bf16-mixed")
    without, adapted = usage(plain), usage(replace(plain, lora=(4, "all-linear")))
    trained = adapted.parameters - without.parameters
    assert 0 < trained < without.parameters
    assert adapted.weights == without.weights + 4 * trained
    assert (adapted.reference, adapted.gradients) == (0, 4 * trained)
    assert 8 * trained < adapted.optimizer < 8 * trained + 4 * 200


def test_a_card_is_filled_by_the_higher_of_rollout_and_update() -> None:
    taken = {"weights": 2, "reference": 1, "optimizer": 1, "gradients": 1, "micro_batch": 3}
    used = Usage(parameters=0, step=2 * GIB, **{name: n * GIB for name, n in taken.items()})
    awake = fit(tiny(engine_share=0.5), used, 20.0)
    # At rest 4 and the engine's 10; in the update 4 + 1 + 3 and the engine's.
    assert (awake.rollout, awake.update, awake.spare, awake.fits) == (14.0, 18.0, 2.0, False)
    asleep = fit(tiny(engine_share=0.5, sleeps=True), used, 20.0)
    assert (asleep.rollout, asleep.update, asleep.spare, asleep.fits) == (14.0, 8.0, 6.0, True)


def test_a_share_without_room_for_the_engines_cache_does_not_fit() -> None:
    nothing = dict.fromkeys(
        ("weights", "reference", "optimizer", "gradients", "micro_batch", "step"), 0
    )
    used = Usage(parameters=2 * GIB, **nothing)
    # 4 GiB of weights in bf16: a share of a quarter leaves 1 GiB of 5.
    assert fit(tiny(engine_share=0.25), used, 20.0).fits
    narrow = fit(tiny(engine_share=0.24), used, 20.0)
    assert narrow.cache == pytest.approx(0.8)
    assert not narrow.fits
    assert fit(tiny(engine_share=0.0), used, 20.0).fits
