"""What every engine that reads tokens keeps to, as tests over a fixture ``engine``.

A file of tests imports all of them. The engine serves a tiny model and stops at ``STOP``.
"""

from collections.abc import Sequence

from svr_lightning.core.types import Decoding, FinishReason
from svr_lightning.engines.base import Engine, Output, Request
from tests.requests import ask, finish, mixed, prompt

STOP = 7


def run(engine: Engine, requests: Sequence[Request]) -> dict[int, Output]:
    """Complete requests that are submitted together."""
    for request in requests:
        engine.submit(request)
    return finish(engine, len(requests))


def tokens(outputs: dict[int, Output]) -> dict[int, tuple[int, ...]]:
    return {index: output.token_ids for index, output in outputs.items()}


def test_a_completion_depends_on_its_own_seed_and_not_on_its_batch_mates(engine):
    together = tokens(run(engine, mixed()))
    assert tokens(run(engine, mixed()[::-1])) == together
    for request in mixed():
        assert tokens(run(engine, [request])) == {request.id: together[request.id]}


def test_equal_seeds_give_equal_tokens_and_different_seeds_do_not(engine):
    sampling = Decoding(max_completion_tokens=12, temperature=1.0)
    requests = [
        Request(id=index, prompt_ids=prompt(9), sampling=sampling, seed=seed)
        for index, seed in enumerate([1, 1, 2, 2**63 - 1])
    ]
    one, again, two, large = (tokens(run(engine, requests))[i] for i in range(4))
    assert one == again
    assert len({one, two, large}) == 3


def test_only_the_likeliest_token_left_is_greedy_decoding(engine):
    greedy = tokens(run(engine, [ask(i, temperature=0.0) for i in range(4)]))
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}):
        assert tokens(run(engine, [ask(i, temperature=1.4, **narrow) for i in range(4)])) == greedy


def test_requests_may_arrive_between_steps(engine):
    outputs = {}
    for request in mixed():
        engine.submit(request)
        outputs |= engine.step()
    outputs |= finish(engine, 14 - len(outputs))
    assert tokens(outputs) == tokens(run(engine, mixed()))


def test_cancelling_drops_what_is_queued_and_what_runs(engine):
    assert engine.step() == {}
    expected = run(engine, [ask(3)])[3]
    for request in mixed():
        engine.submit(request)
    engine.step()
    engine.cancel()
    assert engine.step() == {}
    assert run(engine, [ask(3)])[3] == expected


def test_a_dropped_request_leaves_the_others_alone(engine):
    requests = [ask(index, max_tokens=12 + index) for index in range(6)]
    expected = tokens(run(engine, requests))
    for request in requests:
        engine.submit(request)
    engine.step()
    longest = sorted(expected, key=lambda index: len(expected[index]))[-2:]
    for gone in longest:
        engine.drop(gone)
    assert tokens(finish(engine, 4)) == {i: t for i, t in expected.items() if i not in longest}
    assert engine.step() == {}


def test_a_stop_token_ends_a_completion_and_belongs_to_it_also_in_the_last_place_allowed(
    engine,
):
    outputs = run(engine, [ask(i, max_tokens=60, temperature=1.5) for i in range(12)])
    stopped = {i: o for i, o in outputs.items() if o.finish_reason is FinishReason.STOP}
    cut = [o for o in outputs.values() if o.finish_reason is FinishReason.LENGTH]
    assert stopped
    assert cut
    assert all(o.token_ids[-1] == STOP and o.token_ids.count(STOP) == 1 for o in stopped.values())
    assert all(len(o.token_ids) == 60 and STOP not in o.token_ids for o in cut)
    assert all(len(o.logprobs) == len(o.token_ids) for o in outputs.values())
    index, first = next(iter(stopped.items()))
    length = len(first.token_ids)
    exact, short = (
        run(engine, [ask(index, max_tokens=limit, temperature=1.5)])[index]
        for limit in (length, length - 1)
    )
    assert exact.finish_reason is FinishReason.STOP
    assert exact.token_ids == first.token_ids
    assert short.finish_reason is FinishReason.LENGTH
    assert short.token_ids == exact.token_ids[:-1]
