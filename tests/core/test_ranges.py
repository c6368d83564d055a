"""Ranges are declared at the field, and hold whoever makes the object."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from msgspec import Meta

from svr_lightning.callbacks import RolloutLog
from svr_lightning.control.controller import Controller
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.ranges import (
    ConfigError,
    Count,
    FieldError,
    NotNegative,
    Share,
    check_arguments,
    check_fields,
    require_field,
)
from svr_lightning.core.rewards import RewardWeights
from svr_lightning.core.stopping import (
    Confident,
    FixedTurns,
    Majority,
    Posterior,
    RepeatedAnswer,
)
from svr_lightning.core.types import Decoding
from svr_lightning.engines.openai import OpenAIEngine
from svr_lightning.policy.config import LoRAConfig, PolicyConfig
from svr_lightning.recipes.igrpo import IGRPO
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.recipes.scrpo import ScRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.training.config import EvaluationConfig, OptimizerConfig, ReferenceConfig
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.module import SVRModule
from svr_lightning.training.sources import DataSource

Part = Annotated[float, Meta(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    count: Count = 1
    share: Share | None = None
    pair: tuple[Part, Part] = (0.0, 0.5)
    level: Literal["low", "high"] = "low"
    free: float = 0.0
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class More(Settings):
    level: Literal["low", "high"] = "high"  # declared again
    temperature: "NotNegative" = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        require_field(self, "count", self.count != 3, "must not be three")


def refusal(kind: Any, **values: Any) -> str:
    with pytest.raises(FieldError) as refused:
        kind(**values)
    assert isinstance(refused.value, ConfigError)
    assert isinstance(refused.value, ValueError)
    return str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "count=0 must be at least 1"),
        ({"count": 2**31}, "count=2147483648 must be at most 2.14748e+09"),
        ({"count": math.nan}, "count=nan must be int, got float"),
        ({"count": "3"}, "count='3' must be int, got str"),
        ({"count": 2.5}, "count=2.5 must be int, got float"),
        ({"count": True}, "count=True must be int, got bool"),
        ({"count": None}, "count=None must be int, got null"),
        ({"share": -0.1}, "share=-0.1 must be at least 0"),
        ({"share": 1.1}, "share=1.1 must be at most 1"),
        ({"pair": (0.5, 1.0)}, "pair=(0.5, 1.0) must be below 1"),
        ({"level": "middle"}, "level='middle' must be one of low, high"),
    ],
)
def test_an_object_with_a_field_out_of_range_cannot_be_made(values, message):
    assert refusal(Settings, **values) == message
    assert refusal(lambda **changes: replace(Settings(), **changes), **values) == message


def test_the_ends_of_a_range_and_none_are_as_declared():
    assert Settings(share=0.0).share == 0.0
    assert Settings(share=1.0).share == 1.0
    assert Settings(share=None).share is None
    assert Settings(pair=(0.0, 0.999)).pair == (0.0, 0.999)
    assert Settings(share=1).share == 1
    assert Settings(share=np.float64(0.5)).share == 0.5
    assert Settings(free=-5.0).free == -5.0


def test_a_subclass_inherits_ranges_and_adds_its_own():
    assert refusal(More, count=0) == "count=0 must be at least 1"
    assert refusal(More, count=3) == "count=3 must not be three"
    assert refusal(More, share=2) == "share=2 must be at most 1"
    assert refusal(More, temperature=-1) == "temperature=-1 must be at least 0"


def test_arguments_of_a_function_are_held_to_their_ranges():
    class Engine:
        @check_arguments
        def __init__(self, name: str, size: Count = 8, *, share: Share = 0.5) -> None:
            self.size = size

    assert Engine("a", 3).size == 3
    with pytest.raises(ConfigError, match=r"^size=0 must be at least 1$"):
        Engine("a", 0)
    with pytest.raises(ConfigError, match=r"^share=2 must be at most 1$"):
        Engine("a", share=2)
    with pytest.raises(TypeError, match="missing a required argument: 'name'"):
        Engine()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Decoding(top_p=0.0), "top_p=0.0 must be above 0"),
        (lambda: EvaluationConfig(temperature=1e-39), "temperature=1e-39 must be 0, or at least"),
        (lambda: LoRAConfig(r=0), "r=0 must be at least 1"),
        (lambda: PolicyConfig(max_model_len=4096), "max_prompt_tokens=4096 must be below max_mod"),
        (lambda: PolicyConfig(lora="r"), "lora='r' must be svr_lightning.policy.config.LoRA"),
        (lambda: SVR(custom_reward="my.reward"), "custom_reward='my.reward' must be a function"),
        (lambda: Confident(threshold=None), "threshold=None must be float, got null"),
        (lambda: OptimizerConfig(lr=0.0), "lr=0.0 must be above 0"),
        (lambda: ReferenceConfig(every=-1), "every=-1 must be at least 0"),
        (lambda: SVR(scale_rewards="mean"), "scale_rewards='mean' must be one of group, none"),
        (lambda: OpenAIEngine("http://h", "m", timeout=math.nan), "timeout=nan must be above 0"),
        (lambda: RewardWeights(cal=math.nan), "cal=nan must be at least -1e+06"),
        (lambda: RewardWeights(alpha=3.0), "alpha=3.0 must be at most 1"),
        (lambda: LossSpec(clip_eps=0.0), "clip_eps=0.0 must be above 0"),
        (lambda: LossSpec(clip_eps_high=-1.0), "clip_eps_high=-1.0 must be above 0"),
        (lambda: LossSpec(ratio="tokens"), "ratio='tokens' must be one of token, sequence"),
        (lambda: SVR(horizon=0), "horizon=0 must be at least 1"),
        (lambda: SVRPlus(optimised=0), "optimised=0 must be at least 1"),
        (lambda: IGRPO(drafts=0), "drafts=0 must be at least 1"),
        (lambda: MLMTRL(horizon=4), "horizon=4 must be odd"),
        (lambda: ScRPO(min_variance=0.3), "min_variance=0.3 must be at most 0.25"),
        (lambda: Confident(threshold=1.5), "threshold=1.5 must lie in [0, 1]; the paper's is 0.85"),
        (
            lambda: Confident(score="answer_logprob"),
            "threshold=0.85 of answer_logprob must be a mean log-probability, at most 0",
        ),
        (lambda: Majority(certainty=0.4), "certainty=0.4 must be at least 0.5"),
        (lambda: FixedTurns(turns=0), "turns=0 must be at least 1"),
        (lambda: RepeatedAnswer(times=1), "times=1 must be at least 2"),
        (lambda: Posterior(threshold=1.0), "threshold=1.0 must be below 1"),
        (lambda: Confident(needs_correct="yes"), "needs_correct='yes' must be bool, got str"),
        (lambda: Controller(str, "countdwn"), "unknown task 'countdwn'"),
        (lambda: Controller(str, None), "task=None must be str | svr_lightning.tasks.base.Task"),
        (lambda: SVRModule(resample="always"), "resample='always' must be one of"),
        (lambda: SVRModule(policy="x"), "policy='x' must be PolicyConfig"),
        (lambda: SVRDataModule(train="x"), "train='x' must be svr_lightning.training.sources.Da"),
        (lambda: Decoding(temperature=math.inf), "temperature=inf must be at most 1e+09"),
        (lambda: RolloutLog(every=-1), "every=-1 must be at least 0"),
        (
            lambda: DataSource(name="../x", task="math", path="x"),
            "name='../x' must be made of lett",
        ),
    ],
)
def test_every_settings_object_of_the_package_holds_its_ranges(make, message):
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value).startswith(message)
