"""The bundle for machines without network, packed and installed by a pip with made-up wheels."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "tools" / "bundle.sh"
TRANSFER = 60 << 20
"""Bytes that one transfer to such a machine may hold, the checkout included."""
PYTHON = f"""#!{sys.executable}
import os, pathlib, shutil, sys
words = sys.argv[1:]
after = dict(zip(words, words[1:]))
if words[:3] == ["-m", "pip", "download"]:
    for wheel in pathlib.Path(os.environ["WHEELS"], pathlib.Path(after["--dest"]).name).iterdir():
        shutil.copy(wheel, after["--dest"])
elif words[:3] == ["-m", "pip", "install"]:
    os.makedirs(after["--target"])
    for wheel in words[words.index(after["--target"]) + 1:]:
        shutil.copy(wheel, after["--target"])
elif words[0] == "-":
    os.execv(sys.executable, [sys.executable, *words])
"""


def run(tmp_path: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"WHEELS": str(tmp_path / "wheels")}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", *command], env=environment, capture_output=True, text=True, check=False
    )


def prepare(tmp_path: Path, requirement: str = "numpy", size: int = 0, second: str = "b") -> None:
    for folder, name in (("base", "a"), ("vllm", second)):
        (tmp_path / "wheels" / folder).mkdir(parents=True)
        path = tmp_path / "wheels" / folder / f"{name}-1-py3-none-any.whl"
        with ZipFile(path, "w") as wheel:
            needs = f"Name: {name}\nRequires-Dist: {requirement}\n"
            wheel.writestr(f"{name}-1.dist-info/METADATA", needs)
            wheel.writestr("made.bin", bytes(size))
    (tmp_path / "python3").write_text(PYTHON)
    (tmp_path / "python3").chmod(0o755)


def test_a_part_and_the_checkout_fit_into_one_transfer():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    tracked = sum((ROOT / name).lstat().st_size for name in listed if (ROOT / name).is_file())
    (part,) = re.findall(r"split --bytes (\d+)M", BUNDLE.read_text(encoding="utf-8"))
    assert tracked + (int(part) << 20) < TRANSFER


def test_parts_carried_elsewhere_are_joined_and_installed_set_by_set_unless_damaged(tmp_path):
    prepare(tmp_path, size=50 << 20)
    packed = run(tmp_path, str(BUNDLE), str(tmp_path / "bundle"))
    assert packed.returncode == 0, packed.stderr
    there = shutil.move(tmp_path / "bundle", tmp_path / "there")
    names = sorted(path.name for path in there.iterdir())
    assert names == ["base.00", "base.01", "install.sh", "vllm.00", "vllm.01"]
    assert all(part.stat().st_size <= 42 << 20 for part in there.iterdir())
    for part in there.glob("vllm.*"):
        part.rename(tmp_path / part.name)  # not carried yet
    installed = run(tmp_path, str(there / "install.sh"), "base")
    assert installed.returncode == 0, installed.stderr
    assert [path.name for path in (there / "site").iterdir()] == ["a-1-py3-none-any.whl"]
    (there / "base.00").write_bytes(b"")
    damaged = run(tmp_path, str(there / "install.sh"), "base")
    assert damaged.returncode != 0
    assert "base.00" in damaged.stdout + damaged.stderr


@pytest.mark.parametrize(
    ("requirement", "second", "fault"),
    [("another>=2", "b", "a needs another>=2"), ("numpy", "numpy", "numpy is packed twice")],
)
def test_what_is_missing_or_there_already_is_named(tmp_path, requirement, second, fault):
    prepare(tmp_path, requirement, second=second)
    refused = run(tmp_path, str(BUNDLE), str(tmp_path / "bundle"))
    assert refused.returncode != 0
    assert fault in refused.stderr
