"""Ports that tests are given are theirs."""

import socket
from pathlib import Path

from tests.forked import free_port

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_two_ports_differ_and_lie_where_no_outgoing_connection_is_given_one():
    first = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    ports = {free_port() for _ in range(5)}
    assert len(ports) == 5
    assert max(ports) < first


def test_each_worker_has_a_block_of_its_own(monkeypatch):
    ports = []
    for worker in ("gw0", "gw1", "gw7"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        ports.append(free_port() // 1_000)
    assert ports == [20, 21, 27]


def test_a_server_that_reuses_addresses_can_listen_at_a_port_that_is_kept():
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[1] >= 20_000
