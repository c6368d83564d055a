"""Subcommands that read files and need no trainer: one module each, named for its command.

A module has ``add_arguments(parser)`` and ``run(options)``, which returns the exit code. What is
wrong with the command line or the files is a :class:`ConfigError`, printed as one line.
"""

import argparse
import re
import sys
from importlib import import_module
from typing import NoReturn

from svr_lightning.cli.checks import did_you_mean
from svr_lightning.errors import ConfigError

USER_FAULT = 2
"""Exit code for a fault of the configuration, the data or the command line."""


class _Parser(argparse.ArgumentParser):
    """A parser that says in one line what it does not understand."""

    def error(self, message: str) -> NoReturn:
        """Raise a :class:`ConfigError` with the flag that may have been meant."""
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        flags = re.findall(r"--[\w-]+", self.format_usage())
        hint = did_you_mean(unknown.group(1), flags) if unknown else ""
        raise ConfigError(f"{message}{hint or f'; see `{self.prog} --help`'}")


def parser_of(name: str) -> argparse.ArgumentParser:
    """The argument parser of the command ``name``."""
    module = import_module(f"{__package__}.{name}")
    parser = _Parser(
        prog=f"svr_lightning {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def run(name: str, arguments: list[str]) -> int:
    """Run the command ``name``; 0 is success."""
    try:
        options = parser_of(name).parse_args(arguments)
        return int(import_module(f"{__package__}.{name}").run(options))
    except (ConfigError, OSError) as error:
        return fail(str(error), f"svr_lightning {name}")


def fail(message: str, program: str = "svr_lightning") -> int:
    """Print one line on standard error; returns the exit code."""
    print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr)
    return USER_FAULT
