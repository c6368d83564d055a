"""Engine requests, and the scores that a plain forward pass gives their completions."""

import random
from collections.abc import Sequence
from typing import Any

import torch

from svr_lightning.core.types import Decoding
from svr_lightning.engines.base import Engine, Output, Request
from tests.models import VOCABULARY


def finish(engine: Engine, count: int) -> dict[int, Output]:
    """Step until ``count`` completions have finished."""
    outputs = {}
    for _ in range(1000):
        if len(outputs) == count:
            return outputs
        outputs |= engine.step()
    raise AssertionError(f"{len(outputs)} of {count} requests finished")


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCABULARY) for _ in range(length))


def ask(index: int = 0, length: int = 9, **sampling: Any) -> Request:
    limit, seed = sampling.pop("max_tokens", 12), sampling.pop("seed", index)
    decoding = Decoding(max_completion_tokens=limit, **{"temperature": 1.0, **sampling})
    return Request(id=index, prompt_ids=prompt(length, index), sampling=decoding, seed=seed)


def mixed(count: int = 14) -> list[Request]:
    """Requests of many lengths, greedy and sampled."""
    rng = random.Random(7)
    return [
        ask(
            index,
            length=rng.randint(1, 40),
            max_tokens=rng.randint(1, 25),
            temperature=rng.choice([0.0, 0.7, 1.3]),
        )
        for index in range(count)
    ]


@torch.no_grad()
def plain_scores(model: Any, request: Request, tokens: Sequence[int]) -> torch.Tensor:
    """[L, V] scores of the completion's positions in one forward pass over the whole sequence."""
    ids = torch.tensor([[*request.prompt_ids, *tokens]])
    return model(input_ids=ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1].float()
