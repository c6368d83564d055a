"""Training samples with made-up tokens."""

import random

from svr_lightning.core.types import Sample
from tests.models import VOCABULARY

TEMPERATURE = 0.9


def sample(
    prompt: tuple[int, ...] = (5, 6, 7),
    completion: tuple[int, ...] = (8, 9),
    advantage: float = 1.0,
    group: str = "g",
    version: int = 0,
) -> Sample:
    return Sample(
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=tuple(-0.1 * (i + 1) for i in range(len(completion))),
        advantage=advantage,
        group_id=group,
        policy_version=version,
    )


def rollout(count: int = 8, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high)))

    return [
        sample(ids(1, 12), ids(1, 9), advantage=rng.gauss(0, 1), group=f"g{i // 4}")
        for i in range(count)
    ]
