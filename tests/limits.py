"""Bounds on the processor time of a test, which other work on the machine does not change."""

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
