"""What several tests share."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real benchmark problems beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real benchmark problems are not at {SHARED_DATA}")
    return SHARED_DATA


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test first, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: item.path.parts[-2:] != ("vllm", "test_vllm_fit.py"))
