"""The device, the report, and a policy of real shape with random weights."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.policy import Policy, save_policy
from tests.gpu.report import Figures, describe_machine

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""The tests run in full size on ``cuda``, in small on ``cpu``."""


@pytest.fixture(scope="session")
def report(request, tmp_path_factory) -> Path:
    """The file of figures; ``--gpu-report`` keeps what it holds and adds to it."""
    given = request.config.getoption("--gpu-report")
    path = Path(given).resolve() if given else tmp_path_factory.mktemp("gpu") / "gpu.json"
    describe_machine(path, DEVICE)
    return path


@pytest.fixture
def figures(request, report: Path) -> Iterator[Figures]:
    """Adds to the entry of the test, and in the end how long it took."""
    found, began = Figures(report, request.node.name), time.perf_counter()
    yield found
    found("seconds", round(time.perf_counter() - began, 1), "s")


@pytest.fixture(scope="session")
def policy(tmp_path_factory) -> Policy:
    """Qwen3.5-2B's shape at full depth, saved under the names of its own checkpoints."""
    return save_policy(tmp_path_factory.mktemp("policy"), DEVICE)


@pytest.fixture(scope="session")
def shallow(tmp_path_factory) -> Policy:
    """The same with four layers."""
    return save_policy(tmp_path_factory.mktemp("shallow"), DEVICE, layers=4)
