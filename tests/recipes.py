"""Recipes without an engine: a function writes the completions, and every prompt is kept."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from jsonargparse import ArgumentParser

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.parsing import parse_self_check
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import (
    Completion,
    Ending,
    FinishReason,
    Message,
    Problem,
    Sample,
    Trajectory,
    Turn,
)
from svr_lightning.recipes.base import Group, Recipe
from svr_lightning.recipes.dialogues import PromptRequest
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.grpo_mt import GRPOMT
from svr_lightning.recipes.igrpo import IGRPO
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.recipes.murphy import Murphy
from svr_lightning.recipes.oracle import Oracle
from svr_lightning.recipes.rlcr import RLCR
from svr_lightning.recipes.scrpo import ScRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.rollout.collect import run_rollout
from svr_lightning.rollout.driver import Job
from svr_lightning.tasks import get_task
from tests.scripted import says

RIGHT = "<think>xx</think>\n<answer>8+4-2</answer>"
WRONG = "<think>xx</think>\n<answer>8+4*2</answer>"
TEXTS = {"R": RIGHT, "W": WRONG}

NO_THINKING = "<answer>8+4-2</answer>"
THREE_TURNS = [
    [
        f"{WRONG}\n<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>",
        f"{NO_THINKING}\n<self_check>VERDICT: CORRECT; CONFIDENCE: 0.8</self_check>",
        f"{RIGHT}\n<self_check>VERDICT: INCORRECT; CONFIDENCE: 0.4</self_check>",
    ],
    [
        f"{WRONG}\n<self_check>VERDICT: INCORRECT; CONFIDENCE: 0.2</self_check>",
        f"{WRONG}\n<self_check>VERDICT: UNSURE; CONFIDENCE: 0.5</self_check>",
        RIGHT,
    ],
]
"""What two trajectories say whose turns differ in every term. With alpha = 0 they earn

    ==========  ==============================  ===========================================
    turn        solution                        self-check
    ==========  ==============================  ===========================================
    first, 1    0.4 form                        .5 (1 - .81) - .8 * .9 + .4     = -0.225
    first, 2    1 + .3, no form         = 1.3   .5 (1 - .04) + .3 * .8 + .4     =  1.12
    first, 3    1 + .3 + .4             = 1.7   .5 (1 - .36) + .4               =  0.72
    second, 1   0.4 form                        .5 (1 - .04) + .2 + .4          =  1.08
    second, 2   -.3 + .4                = 0.1   .5 (1 - .25) + .4               =  0.775
    second, 3   1 + .3 + .4             = 1.7   .5 (1 - .25) - .4, no block     = -0.025
    ==========  ==============================  ===========================================
"""

Write = Callable[[int, int, list[Message]], str]
"""From a rollout's number, its prompt's number and the prompt to a completion."""


def layered(configs: Iterable[dict[str, Any]]) -> Recipe:
    """The recipe of configurations, each on top of those before it."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--recipe", type=Recipe)
    found = None
    for config in configs:
        if recipe := config.get("model", {}).get("recipe"):
            found = parser.parse_object({"recipe": recipe}, found)
    return parser.instantiate_classes(found).recipe


def ten(name: str = "p") -> Problem:
    """The problem that RIGHT solves."""
    return get_task("countdown").from_row({"id": name, "nums": [8, 4, 2], "target": 10})


def completion(text: str, truncated: bool = False) -> Completion:
    """A completion of one token per character."""
    return Completion(
        prompt_ids=(1,),
        token_ids=tuple(map(ord, text)),
        logprobs=(-1.0,) * len(text),
        text=text,
        finish_reason=FinishReason.LENGTH if truncated else FinishReason.STOP,
        policy_version=0,
    )


def single_turn(problem: Problem, text: str) -> Trajectory:
    """A trajectory that wrote ``text`` and returned it."""
    reading = get_task(problem.task).read(text)
    turn = Turn(index=1, completion=completion(text), check=parse_self_check(text), reading=reading)
    return Trajectory(problem=problem, sample=0, turns=(turn,), ending=Ending(1, 1, False))


def messages_of(request: Any) -> list[Message]:
    """The prompt of what a rollout asks for, which may come with a limit."""
    return list(request.messages if isinstance(request, PromptRequest) else request)


def answered(rollout: Any, write: Callable[[int, Any], Completion]) -> Any:
    """What a rollout returns; ``write`` completes its requests, from the turn's place and each."""
    place, requested = 0, next(rollout)
    while True:
        try:
            requested = rollout.send([write(place, one) for one in requested])
        except StopIteration as end:
            return end.value
        place += 1


class Actors:
    """Stands in for the driver: runs rollouts one after the other."""

    def __init__(self, write: Write, place: SeedContext | None = None) -> None:
        self.seeds = place or SeedContext()
        self.prompts = []
        self.limits = []
        self._write = write

    def run(self, jobs: Iterable[Job]) -> list[Any]:
        return [self._play(job) for job in jobs]

    def _play(self, job: Job) -> Any:
        before = len(self.prompts)

        def write(_: int, request: Any) -> Completion:
            count, messages = len(self.prompts) - before, messages_of(request)
            self.prompts.append(messages)
            self.limits.append(getattr(request, "max_completion_tokens", None))
            return completion(self._write(job.sample, count, messages))

        return answered(job.rollout, write)


def play(
    recipe: Recipe,
    write: Write,
    problem: Problem | None = None,
    place: SeedContext | None = None,
) -> tuple[Group, Actors]:
    """A problem's group as the trainer makes it, and who wrote it."""
    actors = Actors(write, place)
    (group,) = run_rollout([problem or ten()], recipe, actors)
    return group, actors


def scripts(*rows: str) -> Write:
    """Rollout i writes ``rows[i]``, letter by letter: R right, W wrong."""
    return lambda rollout, prompt, _: TEXTS[rows[rollout][prompt]]


def texts(samples: Sequence[Sample]) -> list[str]:
    """What the samples' completions say."""
    return ["".join(map(chr, sample.completion_ids)) for sample in samples]


def advantages(samples: Sequence[Sample]) -> list[float]:
    """What the samples' completions are weighed by."""
    return [sample.advantage for sample in samples]


# recipe: prompts per problem, optimised samples per problem, turns of evaluation with T_max = 10
RECIPES = {
    "svr": (SVR(), 8, 10),
    "svr_proper": (SVR(proper=True), 8, 10),
    "svr_turns": (SVRPlus(sections=False, proper=False), 8, 10),
    "svr_plus": (SVRPlus(), 16, 10),
    "svr_plus_matched": (SVRPlus(optimised=8), 8, 10),
    "svr_plus_exact": (SVRPlus(exact_check=0.1), 40, 10),
    "svr_plus_whole": (SVRPlus(turns="all", sections=False, proper=False), 24, 10),
    "svr_verdict": (SVR(interface="verdict"), 8, 10),
    "svr_confidence": (SVR(interface="confidence"), 8, 10),
    "grpo": (GRPO(), 24, 1),
    "gspo": (GRPO(loss=LossSpec(ratio="sequence")), 24, 1),
    "grpo_mt": (GRPOMT(), 24, 10),
    "igrpo": (IGRPO(), 12, 1),
    "murphy": (Murphy(), 24, 10),
    "murphy_tree": (Murphy(shape="tree"), 24, 10),
    "mlmt_rl": (MLMTRL(), 24, 9),
    "scrpo": (ScRPO(), 24, 10),
    "oracle": (Oracle(), 8, 10),
    "rlcr": (RLCR(), 24, 10),
    "rlcr_log": (RLCR(score="log"), 24, 10),
    "rlcr_turns": (RLCR(group_size=8, horizon=3), 8, 10),
}


each_recipe = pytest.mark.parametrize("name", RECIPES)


def mixed(rollout: int, prompt: int, _: list[Message]) -> str:
    """Some right, some wrong, no two alike."""
    answer = ["8+4-2", "\\boxed{42}", "8+4*2"][(rollout + prompt) % 3]
    return says(answer, "CORRECT", round(0.01 * rollout + 0.003 * prompt, 3))
