"""Tests with TRL are left out where it is missing; ``make test`` has it."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("trl") else ["test_trl.py"]
