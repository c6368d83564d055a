"""What several tests share."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

_LONG_FIRST = ("vllm", "gpu", "real", "adapters", "faults", "e2e", "tools", "integration", "core")
BENCHMARKS = Path(__file__).resolve().parent / "benchmarks"
"""Thirty rows of each benchmark, made for these tests in the form of the data sets."""
REAL_BENCHMARKS = Path(__file__).resolve().parents[2] / "shared" / "data"
"""The data sets themselves, where they lie beside the checkout."""


@pytest.fixture(
    scope="session", params=[BENCHMARKS, *filter(Path.is_dir, [REAL_BENCHMARKS])], ids=str
)
def benchmarks(request) -> Path:
    """A folder with a file of rows for each benchmark."""
    return Path(request.param)


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
