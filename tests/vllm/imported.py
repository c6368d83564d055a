"""What vLLM's engine and server import when they start, for processes that are forked."""

from svr_lightning.engines.vllm_process import prepare_environment

prepare_environment()

import vllm.entrypoints.llm  # noqa: E402
import vllm.entrypoints.openai.api_server  # noqa: E402
import vllm.v1.worker.cpu_worker  # noqa: F401, E402
