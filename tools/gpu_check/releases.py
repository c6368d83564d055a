"""Which installed releases are others than the package, or one of its libraries, asks for."""

import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def untested(versions: Mapping[str, str | None]) -> list[str]:
    """A line for each release that is not what the package or another of ``versions`` asks for.

    Args:
        versions: of installed packages by name; anything but a number stands for none.
    """
    lines = []
    for who, text in (*_of_project(), *_of_libraries(versions)):
        wanted = Requirement(text)
        found = versions.get(wanted.name) or ""
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if applies and found[:1].isdigit() and not wanted.specifier.contains(found, True):
            lines.append(f"{wanted.name} {found}, where {who} asks for {wanted.specifier}")
    return lines


def _of_project() -> Iterator[tuple[str, str]]:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    for extra, texts in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for text in texts:
            yield f"{project['name']}[{extra}]" if extra else project["name"], text


def _of_libraries(names: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    for name in names:
        if name == "svr-lightning":  # its file says what this checkout asks for
            continue
        try:
            texts = requires(name) or []
        except PackageNotFoundError:
            continue
        for text in texts:
            yield name, text
