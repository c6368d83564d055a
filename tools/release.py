"""``make release``: build the package, check it as a user would meet it, and say what is missing.

Version and changelog agree, source and wheel build, ``twine check`` passes where it is installed,
and the wheel works in an environment of its own, outside of the checkout. Nothing is published.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUESTION = ("--config", "countdown_tiny", "--question", "9 2 6 = 5")


def version() -> str:
    """The version, which three files state alike.

    Raises:
        SystemExit: naming what differs, or the release that the changelog lacks.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = str(project["version"])
    patterns = {
        "svr_lightning/__init__.py": r'^__version__ = "(.+)"$',
        "CITATION.cff": r"^version: (.+)$",
        "CHANGELOG.md": rf"^## ({re.escape(found)})$",
    }
    for name, pattern in patterns.items():
        stated = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        if not stated or stated[1] != found:
            sys.exit(f"release: {name}: does not state version {found} of pyproject.toml")
    return found


def pending() -> list[str]:
    """What a person has to decide before this version is published."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = changes.partition("## Unreleased")[2].partition("\n## ")[0].strip()
    return [
        *(["CHANGELOG.md has changes under Unreleased: give them a version"] * bool(unreleased)),
        *(
            ["pyproject.toml has no project.urls: add the repository's address"]
            * ("urls" not in project)
        ),
        *(["twine is not installed: pip install twine"] * (find_spec("twine") is None)),
    ]


def call(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a command, which has to succeed; what it printed."""
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False, env=os.environ
    )
    if done.returncode != 0:
        sys.exit(f"release: {' '.join(map(str, words))}\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def main() -> None:
    """Build, check, install elsewhere."""
    found = version()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        if find_spec("twine"):
            call(sys.executable, "-m", "twine", "check", "--strict", wheel)
        # Dependencies come from this environment; the package itself does not.
        venv.create(folder / "venv", with_pip=True, system_site_packages=False)
        python = folder / "venv" / "bin" / "python"
        site = call(python, "-c", "import site; print(site.getsitepackages()[0])").strip()
        call(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
        here = call(sys.executable, "-c", "import site; print(*site.getsitepackages(), sep='\\n')")
        (Path(site) / "below.pth").write_text(here)
        svr = folder / "venv" / "bin" / "svr"
        if found not in call(svr, "--version", cwd=folder):
            sys.exit(f"release: the installed command does not say {found}")
        if "answer: (9-2)-6" not in call(svr, "predict", *QUESTION, cwd=folder):
            sys.exit("release: the installed policy does not answer as README says")
    print(f"release: {found} builds, installs elsewhere and answers")
    for line in pending():
        print(f"release: to do: {line}")


if __name__ == "__main__":
    main()
