"""What several tests share."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

_LONG_FIRST = ("vllm", "gpu", "real", "adapters", "faults", "e2e", "tools", "integration", "core")
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real benchmark problems beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real benchmark problems are not at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="module", autouse=True)
def _freed() -> Iterator[None]:
    """Trainers refer to themselves: without a collection their models would pile up."""
    yield
    gc.collect()
    gc.freeze()  # what is left is there to stay: the next file's collection need not look at it


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the figures of ``tests/gpu`` go."""
    parser.addoption("--gpu-report", help="JSON file that the tests of a GPU add their figures to")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that no worker is left alone with one at the end."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Where a file comes by how long its folder's take; doctests come last."""
    folder = item.path.parent.name
    return _LONG_FIRST.index(folder) if folder in _LONG_FIRST else len(_LONG_FIRST)
