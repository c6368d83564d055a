"""The command ``svr``: chooses what runs, and imports only what that needs."""

import argparse
import os
import re
import signal
import sys
from contextvars import copy_context
from importlib import import_module
from typing import NoReturn

from svr_lightning.cli.messages import explain
from svr_lightning.errors import ConfigError, did_you_mean, error_line, program
from svr_lightning.files import check_folder, config_file

USER_FAULT = 2
"""Exit code for a fault of the configuration, the data or the command line."""

TRAINING = {
    "warmstart": "teach a policy the form of self-checked turns on its own answers",
    "fit": "train, and compare before and after on held-out problems",
    "validate": "adaptive inference on the validation sets",
    "test": "adaptive inference on the test sets",
    "predict": "answer questions of your own, turn by turn",
    "export": "write a checkpoint's policy as a folder for other programs",
}
READING = {
    "replay": "every fixed budget, threshold and vote from one recording",
    "certify": "a threshold with guaranteed error rates on new problems",
    "report": "figures, tables and a page to read",
}
SERVING = {"serve": "a chat server that refines each answer until a rule stops it"}


def _listed(commands: dict[str, str]) -> str:
    return "\n".join(f"  {name:<9} {text}" for name, text in commands.items())


_HELP = """usage: {program} [-h] [--version] COMMAND ...

Self-Verifying Refinement: train policies that judge their own answers and
stop when they are confident.

{}

From recorded samples, without a model:

{}

For other programs:

{}

Configurations are given by name or as files; later ones win, then flags:

  {program} fit --config countdown_tiny
  {program} fit --config gsm8k --config hardware/1gpu --trainer.max_steps 100
  {program} test --config countdown_tiny --record
  {program} predict --config countdown_tiny --question "3 5 8 = 16"

validate, test and predict also run a policy behind a server with the OpenAI
protocol. Its key is in OPENAI_API_KEY or in the variable that
--model.engine.api_key_env names:

  {program} test --config gsm8k --model.engine OpenAIEngine \\
      --model.engine.base_url http://127.0.0.1:8000/v1 \\
      --model.engine.model_name NAME

`COMMAND --help` explains a command.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 is success, 2 a fault of the configuration or the data."""
    _open_closed_streams()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads the output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    except (ConfigError, ImportError, OSError, RuntimeError) as error:
        if (message := explain(error)) is None:
            raise
        print(error_line(message), file=sys.stderr)
        return USER_FAULT
    return code


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        commands = map(_listed, (TRAINING, READING, SERVING))
        print(_HELP.format(*commands, program=program()), end="")
        return 0
    command, *rest = arguments
    if command == "--version":
        from svr_lightning import __version__

        print(__version__)
        return 0
    if command in READING | SERVING:
        return read_files(command, rest)
    if command not in TRAINING:
        known = [*TRAINING, *READING, *SERVING]
        raise ConfigError(
            f"unknown command {command!r}{did_you_mean(command, known)}; "
            f"commands: {', '.join(known)}"
        )
    _train(command, rest)
    return 0


def _open_closed_streams() -> None:
    """Open closed standard streams on /dev/null, before other files take their descriptors."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            if nowhere > 2:
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, mode))


# --- commands that need Lightning ---------------------------------------------------------------


def _train(command: str, arguments: list[str]) -> None:
    """Find the configurations, then import torch and Lightning, and run."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read when tokenizers is imported
    arguments = _spelled_out(arguments)
    from svr_lightning.cli.training import run

    try:
        # The parser keeps a reference to itself, and so to the model, in a context variable.
        copy_context().run(run, command, TRAINING[command], arguments)
    except SystemExit as end:
        interrupt = end.__context__  # Lightning ends an interrupted run with 1
        if isinstance(interrupt, KeyboardInterrupt) and interrupt.args:
            raise SystemExit(128 + interrupt.args[0]) from interrupt
        raise


_LAYERS = ("-c", "--config", "--data.train", "--data.val", "--data.test")


def _spelled_out(arguments: list[str]) -> list[str]:
    """The arguments with each short option as a key, and each configuration as a path or text.

    Configurations come first, so that flags win over them wherever they stand. A whole data set is
    a configuration too: it replaces the one before it. Another path alone keeps the name, the task
    and the split.
    """
    words = iter(arguments)
    configs: list[str] = []
    flags: list[str] = []
    last: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if word == "--record":
            flags.append("--model.evaluation.adaptive=false")
        elif flag.split(".")[0] == "--stop":
            flags.append(f"--model.evaluation.{word.removeprefix('--')}")
        elif flag in _LAYERS:
            value = value if equals else next(words, "")
            layers = configs
            if flag.startswith("--data."):
                layers, value = flags, f"data: {{{flag.removeprefix('--data.')}: {value}}}"
            text = re.search(r"[{}:\n]", value)
            layers += ("--config", value if text else str(config_file(value)))
        elif flag == "--data.questions_task":  # a training set behind it brings no other
            last = [f"{flag}={value if equals else next(words, '')}"]
        elif flag == "--data.train.path":
            # Other rows: what was chosen of the earlier ones does not apply.
            of_others = ("subset", "revision", "select", "limit", "columns")
            flags += [*(f"--data.train.{key}=null" for key in of_others), word]
        else:
            flags.append(word)
    return [*configs, *flags, *last]


# --- commands that need no trainer --------------------------------------------------------------
# One module each, named for its command, with ``add_arguments(parser)`` and ``run(options)``.


class _Parser(argparse.ArgumentParser):
    """A parser that says in one line what it does not understand."""

    def error(self, message: str) -> NoReturn:
        """Raise a :class:`ConfigError` with the flag that may have been meant."""
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        flags = re.findall(r"--[\w.-]+", self.format_usage())
        hint = did_you_mean(unknown[1], flags) if unknown else ""
        raise ConfigError(f"{message}{hint or f'; see `{self.prog} --help`'}")


def parser_of(name: str) -> argparse.ArgumentParser:
    """The argument parser of the command ``name``."""
    module = import_module(f"{__package__}.{name}")
    parser = _Parser(
        prog=f"{program()} {name}",
        description=re.sub(r"\bsvr(?= [a-z])", program(), module.__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def read_files(name: str, arguments: list[str]) -> int:
    """Run the command ``name``; 0 is success.

    Raises:
        ConfigError: for a fault that the user can fix.
    """
    options = parser_of(name).parse_args(arguments)
    for option in ("out", "write"):  # a fault is reported now, not after the work
        if folder := getattr(options, option, None):
            check_folder(folder, f"--{option} {folder}")
    return int(import_module(f"{__package__}.{name}").run(options))
