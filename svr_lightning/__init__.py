"""Self-Verifying Refinement: policies that judge their own answers.

::

    Problem --prompts--> Prompt --engine--> Completion --parsing--> Turn(answer, SelfCheck)
       |                    ^                                          |
       |                    '---- the draft, v, c and q <--------------'   (no label enters here)
       '--graders--> y_t --rewards--> R --credit--> Sample(advantage) --losses--> loss --> logs

Layers, which import only from those to their right (CONTRIBUTING.md has all): ``cli`` -
``training`` - ``policy``, ``evaluation`` - ``rollout`` - ``engines``, ``tasks``, ``recipes`` -
``core``.
The names in ``__init__.pyi`` are the stable public surface, for type checkers, editors and at run
time; importing the package needs no torch, GPU or network.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME = {name: home for home, name in re.findall(r"from svr_lightning\.(\S+) import (\w+)", _STUB)}
"""The module of each public name."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
