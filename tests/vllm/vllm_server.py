"""vLLM's own API server, its engine process forked.

vLLM spawns that process where a policy runs on a CPU, and it then imports everything once more.
The arguments are those of ``vllm serve``; what answers is the same server.
"""

import multiprocessing
import os
import runpy
import sys

import torch
import vllm.v1.engine.core
import vllm.v1.engine.utils  # noqa: F401
from vllm.entrypoints.openai import api_server
from vllm.utils import system_utils


def _fork() -> multiprocessing.context.BaseContext:
    return multiprocessing.get_context("fork")


if __name__ == "__main__":
    os.setsid()  # so that a signal reaches the engine process too
    torch.compiler.set_stance("force_eager")  # compiling costs more than it saves
    spawning = system_utils.get_mp_context
    for module in list(sys.modules.values()):
        if vars(module).get("get_mp_context") is spawning:
            module.get_mp_context = _fork
    sys.argv[0] = api_server.__file__
    runpy.run_path(api_server.__file__, run_name="__main__")
