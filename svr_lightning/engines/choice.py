"""Which engine samples where a configuration names none."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from svr_lightning.engines.transformers import TransformersEngine

if TYPE_CHECKING:
    from svr_lightning.engines.base import Engine


def choose_engine(device_type: str) -> tuple["Engine", str]:
    """VLLM where it is installed and the policy is on a GPU, else the transformers engine.

    Args:
        device_type: where the policy trains, as torch names it.

    Returns:
        The engine, and in a few words why this one.

    Raises:
        ConfigError: if the vLLM that would be chosen is of a release that is not supported.
    """
    if device_type != "cuda":
        return TransformersEngine(), "transformers, since the policy is not on a GPU"
    if find_spec("vllm") is None:
        return TransformersEngine(), "transformers, since vLLM is not installed; it is slower"
    from svr_lightning.engines.vllm import VLLMEngine

    return VLLMEngine(), "vLLM, in the training process"
