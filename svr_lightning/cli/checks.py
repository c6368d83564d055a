"""Checks of a training command that need no torch and take a tenth of a second.

Commands, keys on the command line and in configuration files, and files that are not there. What
is not checked here is left to the real parser, which takes ten seconds to say so.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from svr_lightning.cli.keys import Key, flat, known_keys
from svr_lightning.errors import ConfigError, one_line, require

_CONFIG = ("--config", "-c")
_OTHER_FLAGS = ("print_config", "help", "h", "help-all")
_DATA_FILES = (".jsonl", ".json", ".csv", ".parquet")
TYPES = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
    "None": "null",
    "NoneType": "null",
}
"""Types in a user's words."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'NAME'?`` if something known is close to ``name``, else nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def check_command_line(command: str, arguments: Sequence[str]) -> None:
    """Check the keys and files that a training command names.

    Raises:
        ConfigError: naming the first key or file that cannot be used.
    """
    keys = known_keys(command)
    values: dict[str, Any] = {}
    for flag, value in _flags(arguments):
        if flag in _CONFIG:
            for path, found in _settings(_read_config(value)):
                _check_key(path, found, keys, f"{value}: ")
                values[path] = found
        elif flag.startswith("--"):
            name = flag[2:].rstrip("+")
            if name not in _OTHER_FLAGS:
                _check_key(name, value or None, keys)
                values[name] = value
    _check_files(values)


def _flags(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag with its value, "" where another flag follows."""
    for index, argument in enumerate(arguments):
        if argument.startswith("-") and not argument[1:2].isdigit():
            flag, equals, value = argument.partition("=")
            following = arguments[index + 1 : index + 2]
            if not equals and following and not following[0].startswith("--"):
                value = following[0]
            yield flag, value


def _read_config(value: str) -> Mapping[str, Any]:
    """The content of a configuration file; empty for a text or an address."""
    if "://" in value or any(character in value for character in "{}:\n"):
        return {}
    path = Path(value)
    if not path.is_file():
        near = path.parent.glob("*.yaml") if path.parent.is_dir() else ()
        raise ConfigError(
            f"--config {value}: there is no such file{did_you_mean(value, map(str, near))}"
        )
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--config {value}: not UTF-8 text ({error}); save the file as UTF-8"
        ) from error
    except (OSError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config {value}: not a YAML file ({one_line(error)})") from error
    if found is None:
        return {}
    require(
        isinstance(found, dict), f"--config {value}: must hold keys such as model, data, trainer"
    )
    return {str(key): item for key, item in found.items()}


def _settings(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a configuration, sections included, with its value."""
    for name, value in config.items():
        yield f"{prefix}{name}", value
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{name}.")


def _check_key(path: str, value: Any, keys: Mapping[str, Key], where: str = "") -> None:
    """Refuse a dotted key that leaves the known ones, and a value of another plain type.

    Below an open key anything may stand.
    """
    below, parts = keys, path.split(".")
    for depth, part in enumerate(parts):
        if part == "help" and depth:
            return
        if part not in below:
            raise ConfigError(f"{where}{_unknown(parts, depth, below, keys)}")
        kind, below = below[part].type, below[part].below
        if not below:
            if depth + 1 == len(parts):
                _check_type(path, value, kind, where)
            return


def _unknown(
    parts: Sequence[str], depth: int, below: Mapping[str, Key], keys: Mapping[str, Key]
) -> str:
    """That there is no key ``parts[depth]`` among those ``below``, and which one may be meant.

    Names are compared without the sections that they are in, which all keys there share.
    """
    prefix = "".join(f"{part}." for part in parts[:depth])
    near = difflib.get_close_matches(parts[depth], below, n=1)
    meant = [prefix + name for name in near]
    if not meant:
        elsewhere = {name.split(".")[-1]: name for name, _ in reversed([*flat(keys)])}
        meant = [elsewhere[name] for name in difflib.get_close_matches(parts[-1], elsewhere, n=1)]
    hint = f"; did you mean {meant[0]!r}?" if meant else ""
    if not hint and len(below) <= 12:
        hint = f"; known: {', '.join(below)}"
    return f"there is no key {prefix + parts[depth]!r}{hint}"


def _check_type(path: str, value: Any, kind: str, where: str) -> None:
    """Refuse a value that no part of an annotation like ``int | None`` can mean."""
    names = [name for name in re.findall(r"\w+", kind) if name not in ("Optional", "Union")]
    if value is None or not names or not {"int", "float", "bool", "None"} >= set(names):
        return
    if isinstance(value, str):
        try:
            value = yaml.safe_load(value)
            value = float(value) if isinstance(value, str) else value  # 1e-4 is text in YAML 1.1
        except (ValueError, yaml.YAMLError):
            pass
    numbers = not isinstance(value, bool) and isinstance(value, int | float)
    if value is not None and not numbers and not ("bool" in names and isinstance(value, bool)):
        wanted = one_of([TYPES[name] for name in names])
        raise ConfigError(f"{where}{path}={one_line(value)}: must be {wanted}")


def one_of(options: Sequence[str]) -> str:
    """``a, b or c``."""
    *rest, last = dict.fromkeys(options)
    return f"{', '.join(rest)} or {last}" if rest else last


def _check_files(values: Mapping[str, Any]) -> None:
    """Refuse a policy's folder, a checkpoint or a data file that is not there."""
    policy = values.get("model.policy.path")
    if isinstance(policy, str) and _is_local(policy):
        require(
            Path(policy).is_dir(),
            f"model.policy.path={policy!r} is not a folder; give the folder of a saved policy, or "
            "a hub id such as Qwen/Qwen3-4B",
        )
    checkpoint = values.get("ckpt_path")
    if isinstance(checkpoint, str) and checkpoint not in ("", "last", "best", "null", "hpc"):
        require(
            "://" in checkpoint or Path(checkpoint).exists(),
            f"--ckpt_path {checkpoint}: there is no such file; give a checkpoint, or last",
        )
    for part in ("train", "predict"):
        path = values.get(f"data.{part}.path")
        if isinstance(path, str) and path.endswith(_DATA_FILES) and "://" not in path:
            require(Path(path).is_file(), f"data.{part}.path={path!r}: there is no such file")


def _is_local(path: str) -> bool:
    """Whether a policy's path can only be a folder: no hub id starts or continues like it."""
    if ":" in path:
        return False
    first, *rest = Path(path).parts or ("",)
    return (
        path.startswith((".", "/", "~", "\\"))
        or len(rest) > 1
        or (bool(rest) and Path(first).is_dir() and not Path(path).is_dir())
    )


# --- questions for predict ----------------------------------------------------------------------


def with_questions(command: str, arguments: list[str]) -> list[str]:
    """The arguments with ``--question`` and ``--questions`` as entries of ``data.questions``."""
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in ("--question", "--questions"):
            rest.append(word)
            continue
        require(command == "predict", f"{flag} is for predict; {command} takes data sets")
        value = value if equals else next(words, "")
        questions = read_questions(value) if flag == "--questions" else [value]
        rest += ["--data.questions+", f"[{', '.join(map(_quoted, questions))}]"]
    return rest


def _quoted(text: str) -> str:
    """A text as the parser reads it back, which takes ``- a`` for a list and ``null`` for none."""
    plain = (c if c == " " or (c.isascii() and c.isalnum()) else f"\\U{ord(c):08X}" for c in text)
    return f'"{"".join(plain)}"'


def read_questions(path: str) -> list[str]:
    """The questions of a text file, one per line, or of a ``.jsonl`` with "question" in each row.

    Raises:
        ConfigError: naming the file and the line that cannot be used.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"--questions {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--questions {path}: cannot be read as UTF-8 text ({error})") from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    require(bool(numbered), f"--questions {path}: there are no questions in it")
    if not path.endswith((".jsonl", ".json")):
        return [line for _, line in numbered]
    questions = []
    for number, line in numbered:
        try:
            question = json.loads(line)["question"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f'--questions {path}:{number}: must be a JSON object with "question"'
            ) from error
        require(
            isinstance(question, str) and bool(question.strip()),
            f'--questions {path}:{number}: "question" must be a text',
        )
        questions.append(question)
    return questions
