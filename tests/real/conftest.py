"""SmolLM2-135M-Instruct as a folder, made once for all tests of this folder."""

from pathlib import Path
from typing import Any

import pytest

from experiments.real.model import make, missing_package
from svr_lightning.policy.config import PolicyConfig
from svr_lightning.policy.policy import Policy


@pytest.fixture(scope="package")
def model_folder(tmp_path_factory) -> Path:
    """The converted model."""
    if reason := missing_package():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("real") / "model"
    make("smollm2", folder)
    return folder


@pytest.fixture(scope="package")
def policy(model_folder: Path) -> tuple[Any, Any]:
    """The model in fp32 and its tokenizer, as a run loads them."""
    loaded = Policy.load(PolicyConfig(path=str(model_folder)))
    return loaded.model.eval(), loaded.renderer.tokenizer
