"""What a run logs about its speed follows from what it did."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.profilers import SimpleProfiler

from svr_lightning.core.types import FinishReason
from svr_lightning.engines.base import Output, Request, SamplingParams
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.training.flops import forward_flops, peak_flops, update_flops, utilization
from svr_lightning.training.logs import CSVLog, StepLog
from svr_lightning.training.serving import MeteredEngine, PolicyEngine
from tests.models import tiny_hybrid, tiny_qwen3
from tests.small_fit import data, module, trainer


class Slow:
    """An engine with two places; a completion of n tokens takes n steps once it has one."""

    max_batch = 2
    preemptions: int | None = None

    def __init__(self) -> None:
        self.left: list[list[int]] = []

    def submit(self, request: Request) -> None:
        self.left.append([request.id, request.sampling.max_tokens])

    def step(self) -> list[Output]:
        for one in self.left[: self.max_batch]:
            one[1] -= 1
        ended = [number for number, left in self.left if not left]
        self.left = [one for one in self.left if one[1]]
        return [
            Output(
                id=number,
                token_ids=(5,) * LENGTHS[number],
                logprobs=(0.0,) * LENGTHS[number],
                finish_reason=FinishReason.LENGTH,
                version=0,
            )
            for number in ended
        ]


LENGTHS = (1, 3, 4)


def test_tokens_steps_and_fill_of_an_engine() -> None:
    engine = MeteredEngine(Slow())
    for number, length in enumerate(LENGTHS):
        sampling = SamplingParams(max_tokens=length, temperature=0.0, seed=0)
        engine.submit(Request(id=number, messages=(), prompt_ids=(1,), sampling=sampling))
    ended = [output.id for _ in range(5) for output in engine.step()]
    assert ended == [0, 1, 2]
    # Three steps with both places taken, of which one was queued for; then two with one.
    assert engine.stats(seconds=2.0) == {
        "speed/rollout": 4.0,
        "engine/steps": 5.0,
        "engine/batch_fill": pytest.approx(8 / 10),
    }
    assert engine.max_batch == 2


def test_preemptions_are_those_of_the_rollout() -> None:
    slow = Slow()
    slow.preemptions = 3
    engine = MeteredEngine(slow)
    slow.preemptions += 2
    assert engine.stats(seconds=1.0)["engine/preemptions"] == 2.0


class Seen(Callback):
    """Tokens that were sampled, and tokens that learned, in each step."""

    def __init__(self) -> None:
        self.sampled: list[int] = []
        self.learned: list[int] = []
        self.flops: list[float] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        groups = pl_module.groups
        turns = [t.completion for g in groups for one in g.trajectories for t in one.turns]
        self.sampled.append(sum(len(c.token_ids) for c in turns))
        samples = [sample for g in groups for sample in g.samples]
        lengths = [len(s.prompt_ids) + len(s.completion_ids) for s in samples]
        scored = [len(s.completion_ids) for s in samples]
        self.flops.append(4 * forward_flops(pl_module.policy, lengths, scored))
        self.learned.append(sum(len(s.prompt_ids) + len(s.completion_ids) for s in samples))


def test_a_training_logs_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("flops", "logs"):  # as if this machine had a known GPU
        monkeypatch.setattr(f"svr_lightning.training.{place}.peak_flops", lambda _: 1e12)
    seen = Seen()
    fit = trainer(tmp_path, seen, max_steps=2, logger=[CSVLog(tmp_path)])
    model = module(micro_batch_size=8)
    fit.fit(model, datamodule=data())
    with (tmp_path / "metrics.csv").open(newline="") as stream:
        values = {(row["key"], int(row["step"])): row["value"] for row in csv.DictReader(stream)}

    def logged(key: str, step: int) -> float:
        return float(values[key, step])

    for step in (1, 2):
        sampled = logged("speed/rollout", step) * logged("time/rollout", step)
        assert sampled == pytest.approx(seen.sampled[step - 1])
        learned = logged("speed/update", step) * logged("time/update", step)
        assert learned == pytest.approx(seen.learned[step - 1])
        done = logged("speed/mfu", step) * logged("time/update", step) * 1e12
        assert done == pytest.approx(seen.flops[step - 1])
        # Two turns of 64 tokens at most, one token a step.
        assert 2 <= logged("engine/steps", step) <= 130
        assert 0 < logged("engine/batch_fill", step) <= 1
        assert 0.1 < logged("memory/peak", step) < 64
    assert logged("memory/peak", 2) >= logged("memory/peak", 1)


@pytest.fixture
def gpu_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, on a machine whose GPU always has work for three seconds."""
    clock = [0.0]

    def wait() -> None:
        clock[0] += 3

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    return clock


def test_an_update_on_a_gpu_ends_when_the_gpu_has_done_it(
    gpu_clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svr_lightning.training.logs.peak_flops", lambda _: 1e12)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 0)
    gpu_clock[0] += 7  # a validation, before the update begins
    log = StepLog()
    log.add(30, 1.5e12, {}, {})
    gpu_clock[0] += 2
    found = log.values(torch.device("cuda"))
    assert (found["time/update"], found["speed/update"], found["speed/mfu"]) == (5, 6, 0.3)


def test_a_sync_on_a_gpu_takes_from_the_end_of_earlier_work_to_its_own_end(
    gpu_clock: list[float],
) -> None:
    sizes = {"stop_token_ids": (), "max_model_len": 512}
    serving = PolicyEngine(tiny_qwen3(), TransformersEngine(), device_type="cuda", **sizes)
    with serving.sampling(0) as seconds:
        assert (seconds, gpu_clock) == (3, [6])


# Floating-point operations


def test_the_flops_of_a_dense_model_are_those_worked_out_by_hand() -> None:
    model = tiny_qwen3(
        vocab_size=10,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
    )
    # Matrices: q 64, k 32, v 32, o 64, three of 128 in the MLP: 576. Two sequences of 3 and 5
    # tokens, 1 and 2 of them completion.
    layers = 2 * 576 * (3 + 5)
    head = 2 * 8 * 10 * (1 + 2)
    attention = 2 * 2 * 4 * (9 + 25)
    assert forward_flops(model, [3, 5], [1, 2]) == layers + head + attention == 10240


def test_the_flops_of_a_hybrid_count_its_recurrent_states() -> None:
    # Linear layers: qkv 2048, z 1024, a and b 256, out 1024, MLP 4608: 8960, three times. Full
    # attention, its query gated: 2048 + 512 + 512 + 1024 + 4608 = 8704.
    matrices = 2 * (3 * 8960 + 8704) * 2
    states = 6 * 4 * 8 * 8 * 2 * 3
    found = forward_flops(tiny_hybrid(), [2], [1])
    assert found == matrices + 2 * 32 * 40 + 2 * 2 * 16 * 4 + states == 154368


def test_the_share_of_the_peak_is_the_one_worked_out_by_hand() -> None:
    model, lengths, scored = tiny_hybrid(), [2], [1]
    flops = update_flops(model, lengths, scored, reference=True)
    assert flops == 4 * 154368
    assert update_flops(model, lengths, scored, reference=False) == 3 * 154368
    assert utilization(flops, seconds=2.0, peak=1e6) == pytest.approx(4 * 0.154368 / 2)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A800-SXM4-80GB", 312e12),
        ("NVIDIA GeForce RTX 3060", None),
    ],
)
def test_boards_of_one_chip_have_peaks_of_their_own(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(torch.device("cuda", 0)) == peak
    assert peak_flops(torch.device("cpu")) is None


# Profilers


def test_lightnings_profilers_know_the_rollout(tmp_path: Path) -> None:
    simple = SimpleProfiler(dirpath=tmp_path, filename="simple")
    trainer(tmp_path, max_steps=1, profiler=simple).fit(module(), datamodule=data())
    table = (tmp_path / "fit-simple.txt").read_text()
    assert "rollout" in table
    assert "run_training_batch" in table
