"""Subcommands that read files and need no trainer: one module each, named for its command.

A module has ``add_arguments(parser)`` and ``run(options)``, which returns the exit code. A fault of
the user's is a :class:`ConfigError`, shown as one line.
"""

import argparse
import sys
from importlib import import_module

from svr_lightning.errors import ConfigError

COMMANDS = ("sweep", "tune", "vote", "report", "regrade")
"""In the order in which the help lists them."""
USER_FAULT = 2
"""Exit code for a fault of the files or the command line."""


def parser_of(name: str) -> argparse.ArgumentParser:
    """The argument parser of the command ``name``."""
    module = import_module(f"{__package__}.{name}")
    parser = argparse.ArgumentParser(
        prog=f"svr_lightning {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def run(name: str, arguments: list[str]) -> int:
    """Run the command ``name``; 0 is success."""
    options = parser_of(name).parse_args(arguments)
    try:
        return int(import_module(f"{__package__}.{name}").run(options))
    except (ConfigError, OSError) as error:
        line = " ".join(str(error).split())
        print(f"svr_lightning {name}: error: {line}", file=sys.stderr)
        return USER_FAULT
