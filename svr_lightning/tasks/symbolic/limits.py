"""Time and memory of the worker process, and its first word."""

CPU_SECONDS = 0.6
"""Processor time of one answer: the kernel then ends the worker."""
WALL_SECONDS = 10.0
"""Of one answer, on a machine so busy that the processor time is not used up by then."""
START_SECONDS = 120.0
"""For the worker to be ready."""
MEMORY = 256 * 2**20
"""Bytes of address space beyond what the worker has when it is ready."""
READY = b"ready\n"
