"""The process that compares answers: ``python -m svr_lightning.tasks.symbolic.worker``.

A request is a line of JSON, ``[answer, reference]``, on standard input; the reply is ``1`` or
``0`` on standard output, ``m`` where memory ran out. Before the first request the process gives up
what it does not need (:func:`lock_down`), and each request is ended by the kernel, with the
process, once it has used up its processor time.
"""

import builtins
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from svr_lightning.tasks.symbolic.equality import equal_answers
from svr_lightning.tasks.symbolic.limits import CPU_SECONDS, MEMORY, READY

_FORBIDDEN = ("exec", "compile", "import", "open", "socket.", "subprocess.", "os.", "ctypes.")
# One pair per kind of answer: what sympy imports late is imported before files are out of reach.
_WARM_UP = (
    (r"\sin^2 x + \cos^2 x + \log_2 8", r"1 + \ln e^3"),
    (r"\left|x-1\right| + \lfloor 2.5 \rfloor + \lceil x \rceil + \sqrt[3]{2+i}", "x"),
    (r"\binom{n}{2} + n! + \arctan x + \tanh x + e^{2 i x} + (-1)^n", "n"),
    (r"(x-1)^{\frac{1}{2}} (1+\sqrt{2})^{-3} \cot 2 \sec 2 \csc 2", "1"),
    (r"\begin{pmatrix} 1 & \frac{2}{x} \end{pmatrix}", r"\begin{bmatrix} 1 & 2/x \end{bmatrix}"),
    (r"x \in (-\infty, \pi] \cup \{4\}", r"\{4\} \cup (-\infty, \pi]"),
    (r"y = 2x \pm 1, x > 2", r"50\%"),
    ("0^{-1} + 5! + \\binom{5}{2}", r"\infty - \infty"),
)


def lock_down() -> None:
    """Give up files, network, other programs and the means of running text as code, for good.

    An audit hook refuses to compile or run code, whoever asks for it and by whatever name, and to
    open anything; the kernel's limits do the same to files and processes, and bound memory.
    """
    files = max(map(int, os.listdir("/proc/self/fd"))) + 1 if Path("/proc/self/fd").is_dir() else 16
    limits = {
        resource.RLIMIT_NOFILE: files,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: _address_space() + MEMORY,
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))
    for name in ("eval", "exec", "compile", "open", "input"):
        setattr(builtins, name, _refuse)
    sys.addaudithook(_audit)


def serve(requests: Any, reply: Callable[[bytes], Any]) -> None:
    """Answer requests until there are none; a time limit ends the process instead."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in requests:
        answer, reference = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            verdict = b"1\n" if equal_answers(answer, reference) else b"0\n"
        except MemoryError:
            verdict = b"m\n"
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply(verdict)


def main() -> None:
    """Move the channel away from the standard streams, warm up, lock down, serve."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for answer, reference in _WARM_UP:
        equal_answers(answer, reference)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)
    sys.setrecursionlimit(1500)
    lock_down()
    replies.write(READY)
    serve(requests, replies.write)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise PermissionError("not allowed where answers of a model are compared")


def _audit(event: str, _: Any) -> None:
    if event.startswith(_FORBIDDEN):
        _refuse()


def _address_space() -> int:
    """Bytes of address space in use; 0.75 GiB where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 3 * 2**28
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
