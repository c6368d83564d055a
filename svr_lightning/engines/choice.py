"""Which engine samples if a configuration names none."""

from importlib.util import find_spec

from svr_lightning.engines.base import Engine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.engines.vllm import VLLMEngine


def choose_engine(device_type: str) -> tuple[Engine, str]:
    """VLLM if it is installed and the policy is on a GPU, else the transformers engine.

    Args:
        device_type: where the policy trains, ``cuda`` or ``cpu``.

    Returns:
        The engine, and why this one in a few words.

    Raises:
        ConfigError: if the vLLM that would be chosen is of a release that is not supported.
    """
    if device_type != "cuda":
        return TransformersEngine(), "transformers, since the policy is not on a GPU"
    if find_spec("vllm") is None:
        return TransformersEngine(), "transformers, since vLLM is not installed; it is slower"
    return VLLMEngine(), "vLLM, in the training process"
