"""What holds of every engine that samples in this process.

A module of tests imports these and has a fixture ``engine``: one that is started, with :data:`STOP`
as its only stop token, and synced.
"""

from collections.abc import Sequence

from svr_lightning.core.types import Decoding, FinishReason
from svr_lightning.engines.base import Engine, Output, Request
from tests.requests import ask, finish, mixed, prompt

STOP = 7


def run(engine: Engine, requests: Sequence[Request]) -> dict[int, Output]:
    for request in requests:
        engine.submit(request)
    return finish(engine, len(requests))


def tokens(outputs: dict[int, Output]) -> dict[int, tuple[int, ...]]:
    return {index: outputs[index].token_ids for index in sorted(outputs)}


def long(count: int = 12) -> list[Request]:
    """Requests of which some meet the stop token before their limit and some do not."""
    return [ask(index, max_tokens=60, temperature=1.5) for index in range(count)]


def test_a_completion_depends_on_its_own_seed_and_not_on_its_batch_mates(engine: Engine) -> None:
    together = tokens(run(engine, mixed()))
    for request in mixed():
        assert tokens(run(engine, [request])) == {request.id: together[request.id]}
    assert tokens(run(engine, mixed()[::-1])) == together


def test_equal_seeds_give_equal_tokens_and_different_seeds_do_not(engine: Engine) -> None:
    sampling = Decoding(max_completion_tokens=12, temperature=1.0)
    requests = [
        Request(id=index, prompt_ids=prompt(9), sampling=sampling, seed=seed)
        for index, seed in enumerate([1, 1, 2, 2**63 - 1])
    ]
    one, again, two, large = tokens(run(engine, requests)).values()
    assert one == again
    assert len({one, two, large}) == 3


def test_only_the_likeliest_token_left_is_greedy_decoding(engine: Engine) -> None:
    greedy = tokens(run(engine, [ask(i, temperature=0.0) for i in range(4)]))
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}):
        assert tokens(run(engine, [ask(i, temperature=1.4, **narrow) for i in range(4)])) == greedy


def test_a_sampled_stop_token_belongs_to_the_completion(engine: Engine) -> None:
    outputs = run(engine, long()).values()
    stopped = [o for o in outputs if o.finish_reason is FinishReason.STOP]
    cut = [o for o in outputs if o.finish_reason is FinishReason.LENGTH]
    assert stopped
    assert cut
    assert all(o.token_ids[-1] == STOP and o.token_ids.count(STOP) == 1 for o in stopped)
    assert all(len(o.token_ids) == 60 and STOP not in o.token_ids for o in cut)
    assert all(len(o.logprobs) == len(o.token_ids) for o in outputs)


def test_a_stop_token_in_the_last_place_allowed_is_still_a_stop(engine: Engine) -> None:
    outputs = run(engine, long()).values()
    stopped = next(o for o in outputs if o.finish_reason is FinishReason.STOP)
    length = len(stopped.token_ids)
    exact, short = (
        run(engine, [ask(stopped.id, max_tokens=limit, temperature=1.5)])[stopped.id]
        for limit in (length, length - 1)
    )
    assert exact.finish_reason is FinishReason.STOP
    assert (short.finish_reason, short.token_ids) == (FinishReason.LENGTH, stopped.token_ids[:-1])


def test_requests_may_arrive_between_steps(engine: Engine) -> None:
    outputs: dict[int, Output] = {}
    for request in mixed():
        engine.submit(request)
        outputs |= {output.id: output for output in engine.step()}
    outputs |= finish(engine, len(mixed()) - len(outputs))
    assert tokens(outputs) == tokens(run(engine, mixed()))


def test_cancelling_drops_what_is_queued_and_what_runs(engine: Engine) -> None:
    expected = tokens(run(engine, [ask(3)]))
    for request in mixed():
        engine.submit(request)
    engine.step()
    engine.cancel()
    assert engine.step() == []
    assert tokens(run(engine, [ask(3)])) == expected


def test_a_dropped_request_leaves_the_others_alone(engine: Engine) -> None:
    expected = tokens(run(engine, mixed()))
    for request in mixed():
        engine.submit(request)
    engine.step()
    ended = {output.id: output for output in engine.step()}
    gone = max(mixed(), key=lambda request: request.sampling.max_completion_tokens).id
    engine.drop(gone)
    outputs = finish(engine, len(mixed()) - 1 - len(ended)) | ended
    assert engine.step() == []
    assert tokens(outputs) == {i: found for i, found in expected.items() if i != gone}
