"""Checks of a training command that need no torch and take a tenth of a second.

Commands, keys on the command line and in configuration files, and files that are not there. What
is not checked here is left to the real parser, which takes ten seconds to say so.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from svr_lightning.cli.keys import Key, flat, known_keys
from svr_lightning.errors import ConfigError, one_line, require

_CONFIG = ("--config", "-c")
_OTHER_FLAGS = ("print_config", "help", "h", "help-all")
_OLD_SERVER_FLAGS = ("--engine", "--base-url", "--model-name")
_DATA_FILES = (".jsonl", ".json", ".csv", ".parquet")


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
                _check_key(path, keys, f"{value}: ")
                values[path] = found
        elif flag in _OLD_SERVER_FLAGS:
            raise ConfigError(
                f"{flag} {value}: an engine is given as --model.engine; for a server: "
                "--model.engine OpenAIEngine --model.engine.base_url URL "
                "--model.engine.model_name NAME"
            )
        elif flag.startswith("--"):
            name = flag[2:].rstrip("+")
            if name not in _OTHER_FLAGS:
                _check_key(name, keys)
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


def _check_key(path: str, keys: Mapping[str, Key], where: str = "") -> None:
    """Refuse a dotted key that leaves the known ones; below an open key anything may stand."""
    below, parts = keys, path.split(".")
    for depth, part in enumerate(parts):
        if part == "help" and depth:
            return
        if part not in below:
            prefix = ".".join(parts[:depth])
            here = [f"{prefix}.{name}" if prefix else name for name in below]
            tried = ".".join(parts[: depth + 1])
            everywhere = [name for name, _ in flat(keys)]
            same = [name for name in everywhere if name.split(".")[-1] == part]
            hint = did_you_mean(tried, here) or (
                f"; did you mean {same[0]!r}?" if same else did_you_mean(path, everywhere)
            )
            if not hint and len(here) <= 12:
                hint = f"; known: {', '.join(here)}"
            raise ConfigError(f"{where}there is no key {tried!r}{hint}")
        below = below[part].below
        if not below:
            return


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
            name = values.get(f"data.{part}.name")
            replaced = values.get("data.local_files")
            if not (isinstance(replaced, Mapping) and name in replaced):
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
