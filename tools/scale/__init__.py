"""Step time, idle places and staleness of a training, simulated without running it."""
