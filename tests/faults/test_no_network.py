"""Without a network the embedded default runs, and what needs one says so in a line."""

import socket
import time
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.errors import ConfigError
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.policy import Policy
from tests.commands import SMALL


@pytest.fixture(autouse=True)
def no_network(monkeypatch) -> list[Any]:
    """Every attempt to reach another machine fails at once; returns the attempts."""
    attempts = []

    def refuse(*arguments, **_):
        attempts.append(arguments)
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return attempts


def test_the_embedded_default_never_asks_for_one(tmp_path, no_network):
    assert main(["validate", *SMALL, "--trainer.default_root_dir", str(tmp_path)]) == 0
    assert no_network == []


def test_a_name_without_an_owner_is_no_policy_on_the_hub():
    with pytest.raises(ConfigError, match="'mine' is not a folder; give a checkpoint folder or a"):
        Policy.load(PolicyConfig(path="mine"))


def test_a_policy_on_the_hub_is_one_line_that_names_it(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)  # the hub's client would wait and try again
    line = (
        r"^model.policy.path='nobody/nothing': the tokenizer cannot be read \(.*\); there is no "
        r"such folder here; of a hub id, check the spelling and the network, for which "
        r"HF_HUB_OFFLINE=1 does not wait\Z"
    )
    with pytest.raises(ConfigError, match=line):
        Policy.load(PolicyConfig(path="nobody/nothing"))
