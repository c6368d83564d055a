"""Ports that tests are given are theirs."""

from pathlib import Path

from tests.forked import free_port

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_two_ports_differ_and_lie_where_no_outgoing_connection_is_given_one():
    first = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    ports = {free_port() for _ in range(5)}
    assert len(ports) == 5
    assert max(ports) < first
