"""Programs in processes of their own, forked from one that has imported what they need.

A new interpreter takes four seconds of processor time to import torch, Lightning and the rest, and
three more for vLLM; a fork of one that has takes none. The parent holds nothing but imports, so
that what runs in a fork starts as it would in a new interpreter. What a program starts itself is a
new interpreter.
"""

import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
FIRST_PORT = 20_000
PORTS_OF_A_WORKER = 1_000
BLOCKS = 12
"""All below 32,768, where Linux begins to give ports to outgoing connections."""
_PORTS = []
METHOD = "forkserver"
_FORKS = multiprocessing.get_context(METHOD)
_FORKS.set_forkserver_preload(["svr_lightning.cli.training", "tests.vllm.imported"])
"""The second is passed over where vLLM is missing."""


def start(
    log: Path, *arguments: str, module: str = "svr_lightning", **environment: str
) -> BaseProcess:
    """``python -m MODULE ARGUMENTS`` on one thread, what it prints appended to ``log``.

    Modules are found where this process finds them.
    """
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    variables |= environment
    process = _FORKS.Process(target=_run, args=(module, arguments, log, variables))
    process.start()
    return process


def wait(process: BaseProcess, timeout: float = 600) -> int:
    """The exit code of a process: minus the signal's number, where one ended it."""
    process.join(timeout)
    assert process.exitcode is not None, f"process {process.pid} still runs"
    return process.exitcode


def free_port() -> int:
    """A port that nobody but a server of this test is given, however late it begins to listen.

    It lies below the ports of outgoing connections, in a block of this worker of pytest-xdist. A
    socket keeps it from other runs of the tests. Who sets SO_REUSEADDR, as torch does, can listen
    there all the same.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = FIRST_PORT + worker % BLOCKS * PORTS_OF_A_WORKER
    for port in range(first, first + PORTS_OF_A_WORKER):
        holder = socket.socket()
        try:
            holder.bind(("", port))
        except OSError:  # held by this test run or by another one
            holder.close()
            continue
        # Set before, another one could bind it too.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _PORTS.append(holder)
        return port
    raise RuntimeError(f"no port of {first} to {first + PORTS_OF_A_WORKER - 1} is free")


def slurm(task: int, tasks: int) -> dict[str, str]:
    """What SLURM tells one of the tasks of a job on one node, and other launchers do not."""
    settings = {"JOB_ID": 4711, "JOB_NAME": "svr", "NODELIST": "127.0.0.1", "NTASKS": tasks}
    settings |= {"NTASKS_PER_NODE": tasks, "NNODES": 1, "NODEID": 0, "PROCID": task}
    return {f"SLURM_{name}": str(value) for name, value in (settings | {"LOCALID": task}).items()}


def finish_ranks(folder: Path, *arguments: str, module: str) -> None:
    """Run a module as two processes that torch joins; both have to succeed."""
    shared = {"WORLD_SIZE": "2", "NODE_RANK": "0"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    logs = [folder / f"{rank}.log" for rank in range(2)]
    processes = [
        start(log, *arguments, module=module, **shared, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank, log in enumerate(logs)
    ]
    codes = [wait(process) for process in processes]
    assert codes == [0, 0], [log.read_text()[-2000:] for log in logs]


def _run(module: str, arguments: tuple[str, ...], log: Path, variables: Mapping[str, str]) -> None:
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(variables)
    torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))  # was read when it was imported
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
