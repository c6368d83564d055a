"""The embedded policy behind the project's server, on vLLM in the server's own process."""

from svr_lightning.engines.vllm import VLLMEngine
from tests.served import Embedded
from tests.vllm.conftest import kept_alive


def test_greedy_answers_are_those_of_an_evaluation_turn_by_turn() -> None:
    policy = Embedded(kept_alive(VLLMEngine()), problems=8)
    records = policy.evaluated()
    with policy.served() as url:
        policy.assert_answers_are(records, url)
