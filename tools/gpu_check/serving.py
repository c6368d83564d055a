"""The vLLM engine that the parts sample from, as a training starts it."""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, cast

from svr_lightning.engines.base import Output, Request, SamplingParams
from svr_lightning.errors import ConfigError
from tools.bench.workloads import TEMPERATURE
from tools.gpu_check.settings import Emit, SkippedError

TRAJECTORIES = 128
"""Of an optimizer step of the shipped configurations."""


def start_engine(
    emit: Emit,
    model: Any,
    *,
    eager: bool,
    max_model_len: int,
    sleep_level: int = 0,
    stop_token_ids: tuple[int, ...] = (),
) -> Any:
    """Start vLLM and report how long that took.

    Args:
        emit: takes the figures.
        model: the trainer's.
        eager: neither compile nor capture graphs, so that a cold machine starts within seconds.
        max_model_len: of prompt and completion.
        sleep_level: the deepest that is used.
        stop_token_ids: end a completion.

    Raises:
        SkippedError: if vLLM is not there, or of a release that is not served.
    """
    if find_spec("vllm") is None:
        raise SkippedError("vLLM is not installed")
    from svr_lightning.engines.vllm import VLLMEngine

    options = {"enforce_eager": True} if eager else {}
    try:
        engine = VLLMEngine(sleep_level=cast(Any, sleep_level), options=options)
    except ConfigError as error:
        raise SkippedError(str(error)) from error
    engine.trajectories = TRAJECTORIES
    started = time.perf_counter()
    engine.start(model, stop_token_ids, max_model_len)
    way = "eager" if eager else "its default: compiled, with CUDA graphs where there is CUDA"
    emit("start", time.perf_counter() - started, "s", way)
    emit("sequences", engine.max_batch, note="that run at the same time")
    return engine


def complete(
    engine: Any, prompts: list[tuple[int, ...]], max_tokens: int, seed: int
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
