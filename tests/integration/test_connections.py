"""Connections to a server of models."""

import asyncio
import json

import pytest

from svr_lightning.clients.connections import Connections, Retries


async def opened(*, kept: bool, at_once: int, rounds: int) -> int:
    """How many connections a server sees while each request is answered with its own body."""
    count, waiting = 0, asyncio.Barrier(at_once)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        while head := (await reader.readuntil(b"\r\n\r\n")).lower():
            body = await reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
            await waiting.wait()  # until as many requests are there
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:  # the connection was closed
            writer.close()

    async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connections = Connections(at_once, Retries(tries=1, timeout=5.0), kept=kept)
        for _ in range(rounds):
            sent = [{"n": number} for number in range(at_once)]
            asked = (connections.exchange(url, data, json.loads) for data in sent)
            assert await asyncio.gather(*asked) == sent
        await connections.close()
    return count


@pytest.mark.parametrize(("kept", "connections"), [(True, 9), (False, 27)])
def test_a_connection_serves_one_request_after_another_if_it_is_kept(kept, connections):
    assert asyncio.run(opened(kept=kept, at_once=9, rounds=3)) == connections
