"""The memory of a training step, computed without a GPU."""
