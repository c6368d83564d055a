"""Bounds on what a test may use: processor time, which other work does not change, and files."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 20.0
"""A megabyte takes a fraction of a second in linear time, and hours in quadratic time."""


@contextmanager
def bounded_processor_time(seconds: float = SECONDS) -> Iterator[None]:
    """Fail if the block takes more processor time of this process than ``seconds``."""
    start = time.process_time()
    yield
    used = time.process_time() - start
    assert used < seconds, f"{used:.1f} s of processor time"


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """The operating system itself refuses to write on, in the midst of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
