r"""A task of your own whose answers are programs: each runs in a process that gives up its rights.

A row of the data set::

    {"inputs": [[3, 1, 2], []], "outputs": [[1, 2, 3], []]}

and in a configuration, with this file in a folder of PYTHONPATH::

    data:
      train:
        name: sorting
        task: sorting_task.Sorting
        path: sorting.jsonl
"""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from svr_lightning.core.prompts import AnswerStyle
from svr_lightning.core.types import Problem
from svr_lightning.tasks import GradingError, Task

MEMORY = 256 * 2**20
MAX_PROGRAM = 10_000
MAX_OUTPUT = 100_000

# Runs a program in a fresh interpreter. If started by root, the process first becomes the user
# nobody; then it permanently limits files, sockets, processes, memory and CPU time. As another user
# it could still send signals to that user's processes: train in a container.
SANDBOX = r"""
import json, os, resource, sys
request = json.load(sys.stdin)
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for name, limit in request["limits"].items():
    resource.setrlimit(getattr(resource, name), (limit, limit))
space = {"__builtins__": __builtins__}
exec(request["program"], space)
print(json.dumps([space["solve"](each) for each in request["inputs"]]))
"""


class Sorting(Task):
    """A Python function ``solve(xs)`` in the last ``<answer>`` block that sorts lists."""

    style = AnswerStyle(
        role="You are a careful programmer who audits your own work.",
        request="<answer>def solve(xs): ...</answer>",
        reminder="<answer>...</answer>",
        draft_limit=900,
    )
    columns = (("inputs",), ("outputs",))
    timeout = 2.0  # seconds of one program, its start included

    def from_row(self, row: Mapping[str, Any]) -> Problem:
        """Read ``inputs`` and ``outputs``."""
        inputs, outputs = row.get("inputs"), row.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
            raise ValueError("fields 'inputs' and 'outputs' must be lists of lists")
        return Problem(
            id=str(row.get("id") or ""),
            task=self.name,
            question=f"Write solve(xs), which sorts a list. solve({inputs[0]}) is {outputs[0]}.",
            reference=outputs,
            payload={"inputs": inputs},
        )

    def extract_answer(self, completion: str) -> str | None:
        """The program in the last ``<answer>`` block."""
        _, opened, rest = completion.rpartition("<answer>")
        program, closed, _ = rest.partition("</answer>")
        return program.strip() or None if opened and closed else None

    def grade(self, completion: str, problem: Problem) -> bool:
        """Whether the program's outputs equal the reference, which the program never sees.

        Raises:
            GradingError: if no process could be started.
        """
        program = self.extract_answer(completion)
        if program is None or len(program) > MAX_PROGRAM:
            return False
        outputs = self._run(program, problem.payload["inputs"])
        return outputs is not None and outputs == problem.reference

    def _run(self, program: str, inputs: list[Any]) -> Any:
        """What the program returns for each input; None if it fails, hangs or prints too much."""
        limits = {
            "RLIMIT_CPU": math.ceil(self.timeout),
            "RLIMIT_AS": MEMORY,
            "RLIMIT_FSIZE": MAX_OUTPUT,
            "RLIMIT_NOFILE": 0,
            "RLIMIT_NPROC": 0,
        }
        request = json.dumps({"program": program, "inputs": inputs, "limits": limits})
        with tempfile.TemporaryFile() as output:  # of bounded size, as a pipe would not be
            try:
                done = subprocess.run(  # noqa: S603 - the program is data, not a command
                    [sys.executable, "-I", "-S", "-c", SANDBOX],
                    input=request.encode(),
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    timeout=self.timeout,
                    env={},
                    cwd="/",
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return None
            except OSError as error:
                raise GradingError(f"the sandbox did not start: {error}") from error
            output.seek(0)
            text = output.read(MAX_OUTPUT) if done.returncode == 0 else b""
        try:
            return json.loads(text.decode().splitlines()[-1])
        except (ValueError, IndexError, RecursionError):
            return None
