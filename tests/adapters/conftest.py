"""A test of an adapter is left out where its library is missing; ``make test`` has all of them."""

from importlib.util import find_spec

LIBRARIES = {"trl": "test_trl.py", "inspect_ai": "test_inspect.py", "lm_eval": "test_lm_eval.py"}
collect_ignore = [test for library, test in LIBRARIES.items() if find_spec(library) is None]
