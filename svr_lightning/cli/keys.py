"""The keys of a configuration, read from source text: importing the classes takes ten seconds.

``model`` has the parameters of ``SVRModule``, ``data`` those of ``SVRDataModule``, ``trainer``
those of Lightning's ``Trainer``. A parameter whose type is a dataclass has that class's fields
below it. What lies below any other parameter is left to the real parser.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

SECTIONS = {
    "trainer": ("svr_lightning.training.trainer", "SVRTrainer"),
    "model": ("svr_lightning.training.module", "SVRModule"),
    "data": ("svr_lightning.training.data", "SVRDataModule"),
}
_NOT_KEYS = {"self", "model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders"}


@dataclass(frozen=True, slots=True)
class Key:
    """One parameter: its type and default as they are written, and the keys below it."""

    type: str
    default: str
    below: Mapping[str, "Key"]
    """Empty where anything may stand below it, or nothing."""


@cache
def known_keys(command: str) -> dict[str, Key]:
    """Every section and top-level key of the training command ``command``."""
    keys = {section: Key("", "", _members(*home)) for section, home in SECTIONS.items()}
    trainer = _find("lightning.pytorch.trainer.trainer", "Trainer")
    method = _method(trainer[1], command) if trainer else None
    options = _arguments(method, "") if method else {}
    plain = Key("", "", {})
    return {**keys, **options, "seed_everything": Key("int", "42", {}), "config": plain}


def flat(keys: Mapping[str, Key], prefix: str = "") -> Iterator[tuple[str, Key]]:
    """Every key without keys below it, by its dotted name."""
    for name, key in keys.items():
        if key.below:
            yield from flat(key.below, f"{prefix}{name}.")
        else:
            yield prefix + name, key


@cache
def _tree(module: str) -> ast.Module | None:
    """The syntax tree of a module, None where its file cannot be found."""
    root, *rest = module.split(".")
    spec = find_spec(root)  # of the package alone: a submodule's spec would import its parents
    for folder in (spec.submodule_search_locations if spec else None) or ():
        base = Path(folder).joinpath(*rest)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return ast.parse(path.read_text(encoding="utf-8"))
    return None


def _find(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """The class that ``name`` stands for in a module, and the module that defines it."""
    tree = _tree(module)
    for node in tree.body if tree else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module != module:
                    return _find(node.module, alias.name)
    return None


def _members(module: str, name: str) -> dict[str, Key]:
    """The parameters of a class or the fields of a dataclass, those of its bases included."""
    found = _find(module, name) if module else None
    if found is None:
        return {}
    module, node = found
    initializer = _method(node, "__init__")
    keys: dict[str, Key] = {}
    if initializer is None or initializer.args.kwarg is not None:
        for base in node.bases:
            if isinstance(base, ast.Name):
                keys |= _members(module, base.id)
    if initializer is not None:
        return keys | _arguments(initializer, module)
    return keys | {
        field.target.id: _key(field.annotation, field.value, module)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _arguments(function: ast.FunctionDef, module: str) -> dict[str, Key]:
    given = function.args
    named = [*given.args, *given.kwonlyargs]
    defaults: list[ast.expr | None] = [None] * (len(given.args) - len(given.defaults))
    defaults += [*given.defaults, *given.kw_defaults]
    return {
        argument.arg: _key(argument.annotation, default, module)
        for argument, default in zip(named, defaults, strict=True)
        if argument.arg not in _NOT_KEYS
    }


def _key(annotation: ast.expr | None, default: ast.expr | None, module: str) -> Key:
    kind = ast.unparse(annotation) if annotation else ""
    below: dict[str, Key] = {}
    for option in kind.split("|"):
        if _is_dataclass(module, option.strip()):
            below |= _members(module, option.strip())
    return Key(kind, ast.unparse(default) if default else "", below)


def _is_dataclass(module: str, name: str) -> bool:
    """Whether a type is a dataclass, and no abstract one, of which class_path names a subclass."""
    found = _find(module, name) if module and name.isidentifier() else None
    if found is None or any(ast.unparse(base) == "ABC" for base in found[1].bases):
        return False
    return any("dataclass" in ast.unparse(decorator) for decorator in found[1].decorator_list)


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    found = (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == name)
    return next(found, None)
