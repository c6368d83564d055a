"""Starts the engine that the parts sample from."""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, cast

from svr_lightning.engines.base import Engine, Output, Request, SamplingParams
from svr_lightning.errors import ConfigError, typed_line
from tools.bench.workloads import TEMPERATURE, release
from tools.gpu_check.settings import Emit, Settings, SkippedError

MAX_SEQUENCES = 128
"""Sequences that vLLM runs at the same time."""


def start_engine(
    emit: Emit,
    settings: Settings,
    model: Any,
    *,
    sleep_level: int,
    stop_token_ids: tuple[int, ...] = (),
    max_model_len: int,
) -> Engine:
    """Start the engine as training does; if vLLM fails, try simpler settings and report them.

    Raises:
        SkippedError: if vLLM is not there, or of a release that is not served.
        RuntimeError: if vLLM cannot be started at all.
    """
    if settings.engine == "transformers":
        from svr_lightning.engines.transformers import TransformersEngine

        plain = TransformersEngine()
        plain.start(model, stop_token_ids, max_model_len)
        emit("engine", "transformers")
        return plain
    if find_spec("vllm") is None:
        raise SkippedError("vLLM is not installed; --engine transformers measures that engine")
    ways = [(sleep_level, False), (sleep_level, True)]
    if settings.device == "cpu":
        ways = [(0, True)]
    elif sleep_level:
        ways.append((0, True))
    failure = ""
    for number, (level, eager) in enumerate(ways, start=1):
        engine: Engine = _vllm(level, eager)
        started = time.perf_counter()
        try:
            engine.start(model, stop_token_ids, max_model_len)
        except Exception as error:
            failure = typed_line(error)  # the error itself would keep what vLLM has allocated
        else:
            emit("engine", "vllm", note=_way(level, eager))
            emit("start", time.perf_counter() - started, "s")
            return engine
        emit(f"start_failed_{number}", None, note=f"{_way(level, eager)}: {failure}")
        release(settings.device)
    raise RuntimeError(f"vLLM does not start: {failure}")


def _vllm(sleep_level: int, eager: bool) -> Any:
    from svr_lightning.engines.vllm import VLLMEngine

    options: dict[str, Any] = {"max_num_seqs": MAX_SEQUENCES}
    if eager:
        options["enforce_eager"] = True
    try:
        return VLLMEngine(gpu_memory_utilization=0.4, sleep_level=sleep_level, options=options)  # type: ignore[arg-type]
    except ConfigError as error:
        raise SkippedError(str(error)) from error


def _way(sleep_level: int, eager: bool) -> str:
    return f"sleep level {sleep_level}, {'eager' if eager else 'compiled, with CUDA graphs'}"


def complete(
    engine: Engine, prompts: list[tuple[int, ...]], max_tokens: int, seed: int
) -> list[Output]:
    """One completion per prompt, in the order of the prompts."""
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(
            max_tokens=max_tokens, temperature=TEMPERATURE, seed=seed + number
        )
        engine.submit(Request(id=number, prompt_ids=prompt, sampling=sampling))
    outputs: list[Output] = []
    while len(outputs) < len(prompts):
        outputs += cast(Sequence[Output], engine.step())  # it reads tokens and writes tokens
    return sorted(outputs, key=lambda output: output.id)
