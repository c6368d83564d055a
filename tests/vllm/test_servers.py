"""Rollouts on two vLLM servers: those of vLLM in this process, also when one dies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from transformers import AutoModelForCausalLM

from svr_lightning.engines.base import Engine, Output
from svr_lightning.engines.servers import ServersEngine
from svr_lightning.engines.vllm import CPU_BATCHED_TOKENS, VLLMEngine
from svr_lightning.policy.config import PolicyConfig
from tests import small_fit
from tests.scripted import TOKENIZER
from tests.tolerance import of_logprobs
from tests.vllm.conftest import kept_alive
from tests.vllm.serving import VLLMServer

STEPS = 5
AS_IN_PROCESS = (
    "--logprobs-mode",
    "processed_logprobs",
    "--enable-scale-out",
    "--max-num-seqs",
    "64",
    "--no-enable-chunked-prefill",
    "--max-num-batched-tokens",
    str(CPU_BATCHED_TOKENS),
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    """The embedded policy with an output layer of its own, equal to its embedding at first."""
    folder = tmp_path_factory.mktemp("policy")
    model = AutoModelForCausalLM.from_pretrained(TOKENIZER.name_or_path)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def servers(policy: Path, tmp_path_factory) -> Iterator[list[VLLMServer]]:
    folder = tmp_path_factory.mktemp("servers")
    both = [VLLMServer(policy, "p", folder / f"{n}.log", *AS_IN_PROCESS) for n in range(2)]
    for server in both:
        server.start()
    try:
        for server in both:
            server.wait()
        yield both
    finally:
        for server in both:
            server.kill()


class Drawn(Callback):
    """Keeps each step's turns, by problem, sample and turn."""

    def __init__(self) -> None:
        self.steps = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        groups = sorted(batch.groups, key=lambda group: group.problem.id)
        trajectories = [one for group in groups for one in group.trajectories]
        self.steps.append([turn.sampled for one in trajectories for turn in one.turns])


def trained(
    policy: Path, engine: Engine, folder: Path, steps: int = STEPS, **changes: Any
) -> tuple[Drawn, Any]:
    """What the rollouts of some steps drew, and the policy in the end."""
    sizes = {"max_prompt_tokens": 512, "max_model_len": 1024}
    settings = {"policy": PolicyConfig(path=str(policy), **sizes), **changes}
    module = small_fit.module(engine=engine, **settings)
    drawn = Drawn()
    fitting = small_fit.trainer(folder, drawn, max_epochs=-1, max_steps=steps)
    fitting.fit(module, datamodule=small_fit.data())
    assert len(drawn.steps) == steps
    return drawn, module.policy


@pytest.fixture(scope="module")
def in_process(policy: Path, tmp_path_factory) -> tuple[Drawn, Any]:
    """The training on vLLM in this process."""
    return trained(policy, kept_alive(VLLMEngine()), tmp_path_factory.mktemp("in_process"))


@torch.no_grad()
def assert_equal(found: tuple[Drawn, Any], expected: tuple[Drawn, Any]) -> None:
    """Every token of every step, log-probabilities but for the rounding of another batch, and the
    trained weights in every bit, since the update does not read the engine's log-probabilities.
    """
    model = expected[1]
    for there, here in zip(found[0].steps, expected[0].steps, strict=True):
        assert [one.token_ids for one in there] == [one.token_ids for one in here]
        longest = max((one.token_ids for one in here), key=len)
        allowed = of_logprobs(model, model(torch.tensor([longest])).logits[0])
        for one, other in zip(there, here, strict=True):
            gap = torch.tensor(one.logprobs) - torch.tensor(other.logprobs)
            assert gap.abs().max() < allowed
    pairs = zip(found[1].parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


class Struck(ServersEngine):
    """In step two a server is killed while it completes requests; it is up again in step four."""

    def __init__(self, servers: list[VLLMServer], folder: Path) -> None:
        super().__init__([server.url for server in servers], str(folder))
        self._server, self._killed = servers[1], False
        self.counts = []
        """Servers that have taken each step's weights."""

    def sync(self, model: Any, version: int) -> None:
        if version + 1 == 4:
            self._server.start()
            self._server.wait()
        super().sync(model, version)
        self.counts.append(len(self.in_use))

    def step(self) -> list[Output]:
        if self.version + 1 == 2 and not self._killed:
            self._killed = True
            self._server.kill()
        return super().step()


def test_steps_through_two_servers_are_those_of_the_engine_in_the_process_also_when_one_dies(
    policy, servers, in_process, tmp_path
):
    engine = Struck(servers, tmp_path / "weights")
    with pytest.warns(UserWarning, match="is left out") as warned:
        found = trained(policy, engine, tmp_path)
    assert_equal(found, in_process)
    messages = [str(one.message) for one in warned if "is left out" in str(one.message)]
    assert {message.split()[0] for message in messages} == {servers[1].url}
    assert engine.counts == [2, 2, 1, 2, 2]
    assert engine.max_batch == 2 * 64
    assert list((tmp_path / "weights").iterdir()) == []
