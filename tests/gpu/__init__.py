"""Whether training and inference work on a GPU, and how fast: ``make gpu``, or pytest -m gpu.

On a machine without CUDA the same tests run in small on the processor, so that they are known to
work. Each figure is added to one JSON file the moment it is known: a test that hangs or a machine
that goes away loses nothing.
"""
