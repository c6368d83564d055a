"""The structure of the source: imports run one way, and files and functions stay small."""

import ast
import io
import os
import shutil
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.commands import ROOT, ran

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_LEVELS = 9
MAX_ROOMS = 15
MAX_TOKENS = {
    "svr_lightning callbacks": 131_400,
    "tests": 186_700,
    "tools experiments": 36_000,
}
"""Of the Python files in some folders together. Layout, comments and docstrings are free, so no
formatting pays and an explanation costs nothing. The slack is for contributors; a release takes
back what is left of it."""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@cache
def files() -> dict[str, Path]:
    """Every module of the package by its dotted name, the callbacks included."""
    found = {}
    for top in ("svr_lightning", "callbacks"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


class WithoutTypes(ast.NodeTransformer):
    """Takes out what only a type checker reads: an annotation may name what uses the module."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        types_only = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if types_only else node


def room_of(module: str) -> str:
    """The folder of a module, or the module itself where it lies in no folder."""
    parts = module.split(".")
    return ".".join(parts[1:2]) or parts[0]


def names(module: str) -> Iterator[str]:
    """What a module imports when it runs, also within functions."""
    tree = ast.parse(files()[module].read_text(encoding="utf-8"))
    for node in ast.walk(WithoutTypes().visit(tree)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = ".".join([*([room_of(module)] if node.level else []), node.module or ""])
            yield from (source, *(f"{source}.{alias.name}" for alias in node.names))


@cache
def module_graph() -> dict[str, set[str]]:
    """Which modules of this package each module imports."""
    known = files().keys() - {"svr_lightning"}
    return {module: (known & set(names(module))) - {module} for module in files()}


@cache
def room_graph() -> dict[str, set[str]]:
    graph = {room_of(module): set() for module in files()}
    for module, targets in module_graph().items():
        graph[room_of(module)] |= {room_of(target) for target in targets} - {room_of(module)}
    return graph


@pytest.mark.parametrize("graph", [module_graph, room_graph], ids=["files", "folders"])
def test_no_import_goes_round_in_a_circle(graph):
    assert callable(graph)
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_package_has_few_rooms_on_few_levels():
    graph = room_graph()
    levels = {}
    for room in TopologicalSorter(graph).static_order():
        levels[room] = 1 + max((levels[below] for below in graph[room]), default=0)
    assert max(levels.values()) <= MAX_LEVELS, levels
    folders = {room_of(name) for name, path in files().items() if path.name == "__init__.py"}
    assert len(folders - {"svr_lightning"}) <= MAX_ROOMS, sorted(folders)


def test_no_file_is_long():
    lengths = {name: len(path.read_text().splitlines()) for name, path in files().items()}
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def token_count(text: str) -> int:
    """Tokens of a source text, without layout, comments and docstrings."""
    count = 0
    statement_begins = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in LAYOUT:
            statement_begins |= token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        elif token.type != tokenize.STRING or not statement_begins:
            statement_begins = False
            count += 1
    return count


def test_layout_comments_and_docstrings_are_not_counted():
    assert token_count('"""What it is."""\n\nx = f(  # why\n    1,\n)\n') == 7  # x = f ( 1 , )


@pytest.mark.parametrize("folders", MAX_TOKENS)
def test_the_whole_does_not_grow(folders):
    paths = [path for name in folders.split() for path in (ROOT / name).rglob("*.py")]
    count = sum(token_count(path.read_text(encoding="utf-8")) for path in paths)
    assert count <= MAX_TOKENS[folders], (
        f"the Python files under {folders} have {count:,} tokens, and the limit is "
        f"{MAX_TOKENS[folders]:,}: remove or share code, or raise the limit in this file and say "
        'why in the commit (CONTRIBUTING.md, "How a change is reviewed")'
    )


def test_no_function_is_long():
    long = {}
    for module, path in files().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{module}.{node.name}"] = lines
    assert long == {}


def test_the_package_imports_neither_tools_nor_tests():
    others = {"tools", "tests", "examples", "experiments"}
    found = {name for module in files() for name in names(module)}
    assert {name for name in found if name.split(".")[0] in others} == set()


def test_recordings_are_read_without_torch():
    files = sorted((ROOT / "svr_lightning" / "analysis").glob("*.py"))
    names = [f"svr_lightning.analysis.{file.stem}" for file in files]
    heavy = "{'torch', 'torchmetrics', 'lightning', 'transformers'}"
    code = f"import sys, {', '.join(names)}; print({heavy} & set(sys.modules))"
    done = ran(sys.executable, "-c", code)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_lint_installs_its_own_environment_once_and_never_that_of_the_tests(tmp_path):
    def commands():
        return ran("make", "--dry-run", "lint", f"VENV={tmp_path}").stdout

    assert "[lint]" in commands()
    assert "vllm" not in commands()
    (tmp_path / ".lint").touch()
    os.utime(tmp_path / ".lint", (0, 0))  # older than pyproject.toml
    assert "pip install" not in commands()
    assert "ruff check" in commands()
