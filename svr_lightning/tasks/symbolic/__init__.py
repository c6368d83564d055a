"""Whether two answers are mathematically equal, decided in a worker process that can be killed.

``tokens`` and ``bounded`` limit what is read, ``expressions`` reads numbers and terms, ``answers``
lists, sets, intervals, relations and matrices, ``equality`` compares them, ``worker`` is the
process and ``client`` talks to it. Only the worker imports sympy. Nothing here evaluates text:
:mod:`sympy` is given objects, never strings.
"""
