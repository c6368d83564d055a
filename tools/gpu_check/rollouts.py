"""Speed of SVR's rollouts: pipelined turns against a barrier after each turn."""

from collections.abc import Mapping
from typing import Any

import torch

from svr_lightning.core.types import Problem
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Decoding
from svr_lightning.rollout.rendering import Renderer
from tools.bench.workloads import LockStep, Rollout, roll_out, seconds
from tools.gpu_check.flops import BANDWIDTHS, decode_bytes
from tools.gpu_check.models import END, build_tokenizer, question, random_model, shapes
from tools.gpu_check.serving import TRAJECTORIES, start_engine
from tools.gpu_check.settings import Emit


def run(emit: Emit, device: str) -> None:
    """Roll out the same problems both ways, and compare with the bound of memory bandwidth."""
    small = device == "cpu"
    shape = shapes(small)["hybrid"]
    tokenizer = build_tokenizer(shape.dims["vocab_size"])
    model = random_model(shape, device)
    limit = 2048 if small else 8192
    stop = (tokenizer.convert_tokens_to_ids(END),)
    engine = start_engine(emit, model, eager=False, max_model_len=limit, stop_token_ids=stop)
    engine.sync(model, 0)
    renderer = Renderer(tokenizer, max_prompt_tokens=limit // 2, max_model_len=limit)
    size = 2 if small else 8
    problems = [
        Problem(id=f"problem-{n}", task="gsm8k", question=question(n), reference=str(n))
        for n in range(2 if small else TRAJECTORIES // size)
    ]

    def measure(way: Any, tokens: int) -> Rollout:
        decoding = Decoding(max_completion_tokens=tokens, temperature=0.9)
        recipe, median = SVR(group_size=size, horizon=3), 8 if small else 300
        return roll_out(way, renderer, recipe, problems, decoding, median=median, device=device)

    measure(engine, 8)  # first uses cost extra
    found = {
        name: measure(way, 24 if small else 1200)
        for name, way in (("pipelined", engine), ("lock_step", LockStep(engine)))
    }
    for name, rollout in found.items():
        _report(emit, name, rollout, engine.max_batch)
    speedup = found["lock_step"].seconds / found["pipelined"].seconds
    emit("speedup", speedup, note="pipelined over lock-step")
    _bandwidth(emit, model, found, device, engine.dtype.itemsize)


def _report(emit: Emit, name: str, rollout: Rollout, most: int) -> None:
    count = len(rollout.trajectories)
    emit(f"{name}.seconds", rollout.seconds, "s", f"{count} trajectories of 3 turns")
    emit(f"{name}.tokens", rollout.tokens / rollout.seconds, "tokens/s", "sampled")
    emit(f"{name}.steps", rollout.steps, note="engine steps")
    places = rollout.steps * min(count, most)
    emit(f"{name}.idle", 1 - rollout.tokens / places, note="share of places without a token")


def _bandwidth(
    emit: Emit, model: Any, found: Mapping[str, Rollout], device: str, width: int
) -> None:
    """Compare the rollouts with the time that moving their bytes takes, ``width`` per number."""
    measured = copy_bandwidth(device)
    emit("bandwidth", measured / 1e9, "GB/s", "of a copy: bytes read and written")
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    bandwidth = BANDWIDTHS.get(name)
    emit("bandwidth_stated", bandwidth / 1e9 if bandwidth else None, "GB/s", f"for {name}")
    weights = width * sum(p.numel() for p in model.parameters())
    for label, rollout in found.items():
        contexts = [
            len(turn.sampled.prompt_ids) + position
            for trajectory in rollout.trajectories
            for turn in trajectory.turns
            for position in range(len(turn.sampled.token_ids))
        ]
        moved = weights * rollout.steps + decode_bytes(model, contexts, width)
        bound = moved / measured
        emit(f"{label}.bound", rollout.tokens / bound, "tokens/s", "weights at each step, caches")
        emit(f"{label}.share_of_bound", bound / rollout.seconds)


def copy_bandwidth(device: str) -> float:
    """Bytes per second, read and written, of a copy within the device's memory."""
    size = 2**26 if device == "cpu" else 2**31
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.numel() / min(seconds(lambda: target.copy_(source), device) for _ in range(5))
