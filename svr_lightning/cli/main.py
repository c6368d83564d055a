"""``python -m svr_lightning``: chooses the command; imports what it needs and no more."""

import argparse
import os
import re
import sys
from contextvars import copy_context
from importlib import import_module
from typing import NoReturn

from svr_lightning.cli.checks import check_command_line, did_you_mean, with_questions
from svr_lightning.cli.keys import flat, known_keys
from svr_lightning.errors import ConfigError, printable
from svr_lightning.files import check_folder

USER_FAULT = 2
"""Exit code for a fault of the configuration, the data or the command line."""

TRAINING = {
    "fit": "train, with validations and a comparison before and after on held-out problems",
    "validate": "adaptive inference on the validation sets",
    "test": "adaptive inference on the test sets",
    "predict": "answer questions of your own, turn by turn",
}
READING = {
    "replay": "every fixed budget, threshold and vote from one recording",
    "certify": "a threshold with guaranteed error rates on new problems",
    "report": "figures, tables and a page to read",
    "regrade": "grade recorded samples with another grader",
}
SERVING = {"serve": "a chat-completions server that refines each answer until a rule stops it"}


def _listed(commands: dict[str, str]) -> str:
    return "\n".join(f"  {name:<9} {text}" for name, text in commands.items())


HELP = f"""usage: python -m svr_lightning [-h] [--version] COMMAND ...

Self-Verifying Refinement: train policies that judge their own answers and stop when they are
confident.

{_listed(TRAINING)}

From recorded samples, without a model:

{_listed(READING)}

For other programs:

{_listed(SERVING)}

  python -m svr_lightning fit --config configs/countdown_tiny.yaml
  python -m svr_lightning fit --config configs/gsm8k.yaml --config configs/hardware/cpu_smoke.yaml
  python -m svr_lightning predict --config configs/countdown_tiny.yaml \\
      --question "3 5 8 = 16"

validate, test and predict also run a policy behind a server that speaks the OpenAI protocol. Its
key is in OPENAI_API_KEY or in the variable that --model.engine.api_key_env names:

  python -m svr_lightning test --config configs/gsm8k.yaml --model.engine OpenAIEngine \\
      --model.engine.base_url http://127.0.0.1:8000/v1 --model.engine.model_name NAME

`COMMAND --help` explains a command.
"""
_HELP_OF_TRAINING = """usage: python -m svr_lightning {command} [--config FILE] [--KEY VALUE] ...

{about}.

  --config FILE       a configuration file; may be repeated; later files and flags win
  --KEY VALUE         one key of the configuration: --trainer.max_steps 4
  --ckpt_path WHAT    {checkpoint}
{extra}  --print_config      print the resolved configuration and stop
  --help-all          every key with its type and an explanation (takes ten seconds)

Keys are written out in full. Environment variables set none of them.

{keys}
"""
_QUESTIONS = """\
  --question TEXT     a question to answer; may be given several times
  --questions FILE    questions in a file: one per line, or .jsonl with "question" in each row
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 is success, 2 a fault of the configuration or the data."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    command, *rest = arguments
    if command == "--version":
        from svr_lightning import __version__

        print(__version__)
        return 0
    if command in READING | SERVING:
        return read_files(command, rest)
    if command in ("sweep", "vote"):
        return fail(f"{command} is now a part of replay: give it the evaluation's folder")
    if command not in TRAINING:
        known = [*TRAINING, *READING, *SERVING]
        hint = did_you_mean(command, known)
        return fail(f"unknown command {command!r}{hint}; commands: {', '.join(known)}")
    if "-h" in rest or "--help" in rest:
        print(_help_of(command), end="")
        return 0
    return _train(command, rest)


def _train(command: str, arguments: list[str]) -> int:
    """Do the quick checks, then import torch and Lightning, and run."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read when tokenizers is imported
    try:
        arguments = with_questions(command, arguments)
        check_command_line(command, arguments)
    except ConfigError as error:
        return fail(str(error))
    from svr_lightning.cli.training import run

    # The parser keeps a reference to itself, and so to the model, in a context variable.
    message = copy_context().run(run, command, arguments)
    return 0 if message is None else fail(message)


def _help_of(command: str) -> str:
    """The help of a training command, without importing what it runs."""
    found = dict(flat(known_keys(command)))
    keys = []
    for name, key in found.items():
        if "." in name:
            default = f" = {key.default}" if key.default and "(" not in key.default else ""
            keys.append(f"  --{name}{default}")
    return _HELP_OF_TRAINING.format(
        command=command,
        about=TRAINING[command][0].upper() + TRAINING[command][1:],
        checkpoint=f"{'resume a run' if command == 'fit' else 'weights'}: last, best or a file",
        extra=_QUESTIONS if command == "predict" else "",
        keys="\n".join(keys),
    )


# --- commands that need no trainer --------------------------------------------------------------
# One module each, named for its command, with ``add_arguments(parser)`` and ``run(options)``.


class _Parser(argparse.ArgumentParser):
    """A parser that says in one line what it does not understand."""

    def error(self, message: str) -> NoReturn:
        """Raise a :class:`ConfigError` with the flag that may have been meant."""
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        if unknown and unknown.group(1) in ("--samples", "--votes"):
            message = f"{unknown.group(1)}: evaluations are given as folders, without an option"
            raise ConfigError(f"{message}; see `{self.prog} --help`")
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


def read_files(name: str, arguments: list[str]) -> int:
    """Run the command ``name``; 0 is success."""
    try:
        options = parser_of(name).parse_args(arguments)
        for option in ("out", "write"):  # noticed now, not after the work
            if folder := getattr(options, option, None):
                check_folder(folder, f"--{option} {folder}")
        return int(import_module(f"{__package__}.{name}").run(options))
    except ConfigError as error:
        return fail(str(error), f"svr_lightning {name}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = f"{where}cannot be used ({error.strerror or error}); give another file or folder"
        return fail(reason, f"svr_lightning {name}")


def fail(message: str, program: str = "svr_lightning") -> int:
    """Print one line on standard error; returns the exit code."""
    print(f"{program}: error: {printable(message)}", file=sys.stderr)
    return USER_FAULT
