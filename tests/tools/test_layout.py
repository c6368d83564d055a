"""The tools use the package; the package never uses the tools."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(
    p for folder in ("svr_lightning", "callbacks") for p in (ROOT / folder).rglob("*.py")
)


def imported(source: str) -> set[str]:
    """The top-level names of every import in a source, wherever it stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names


def test_imports_inside_functions_are_seen() -> None:
    assert imported("def f():\n    from tools.bench import step\n    import os.path") == {
        "tools",
        "os",
    }


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_that_ships_imports_tools_or_tests(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not imported(source) & {"tools", "tests"}
    assert '"tools.' not in source  # nor by name


def test_the_wheel_holds_packages_of_svr_lightning_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["setuptools"]["packages"]
    assert packages
    assert {name.split(".")[0] for name in packages} == {"svr_lightning"}
