"""The bundle for a machine without network, packed and run with a pip that makes up its wheels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

BUNDLE = Path(__file__).resolve().parents[2] / "tools" / "gpu_check" / "bundle.sh"
PYTHON = f"""#!{sys.executable}
import os, shutil, sys
words = sys.argv[1:]
after = dict(zip(words, words[1:]))
folder = after.get("--dest") or after.get("--target")
if words[:3] == ["-m", "pip", "download"]:
    if "--no-binary" in words:
        open(folder + "/causal_conv1d-1.tar.gz", "w").close()
    else:
        shutil.copy(os.environ["WHEEL"], folder)
elif words[-1].endswith(".tar.gz"):
    sys.exit("no compiler")
elif words[:3] == ["-m", "pip", "install"]:
    shutil.copytree("wheels", folder)
elif words[:2] == ["-m", "tools.gpu_check"]:
    print("checks with", *words[4:], "in", os.getcwd())
elif words[0] == "-":
    os.execv(sys.executable, [sys.executable, *words])
"""


def run(tmp_path: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"WHEEL": str(tmp_path / "made-1-py3-none-any.whl")}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", *command], env=environment, capture_output=True, text=True, check=False
    )


def prepare(tmp_path: Path, requirement: str, size: int = 0) -> None:
    with ZipFile(tmp_path / "made-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("made-1.dist-info/METADATA", f"Name: made\nRequires-Dist: {requirement}\n")
        wheel.writestr("made.bin", bytes(size))
    for name, script in (("python3", PYTHON), ("nvcc", "#!/bin/sh\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)


def test_parts_carried_to_another_folder_are_joined_and_installed_once(tmp_path: Path) -> None:
    prepare(tmp_path, "torch", size=60 << 20)
    packed = run(tmp_path, str(BUNDLE), str(tmp_path / "bundle"))
    assert packed.returncode == 0, packed.stderr
    parts = sorted((tmp_path / "bundle").glob("part.*"))
    assert len(parts) > 1
    assert all(part.stat().st_size < 56 << 20 for part in parts)
    there = tmp_path / "there"
    shutil.move(tmp_path / "bundle", there)
    for failed in ("no compiler\nrun.sh: causal-conv1d was not compiled\n", ""):
        checked = run(tmp_path, str(there / "run.sh"), "--parts", "fit")
        assert checked.returncode == 0, checked.stderr
        assert checked.stderr == failed  # and the second time nothing is installed
        assert checked.stdout == f"checks with --parts fit in {there / 'checkout'}\n"
    wheel = "made-1-py3-none-any.whl"
    assert (there / "site" / wheel).read_bytes() == (tmp_path / wheel).read_bytes()
    assert (there / "checkout" / "tools" / "gpu_check" / "part.py").is_file()


def test_a_part_that_was_damaged_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path, "torch")
    assert run(tmp_path, str(BUNDLE), str(tmp_path / "bundle")).returncode == 0
    (tmp_path / "bundle" / "part.00").write_bytes(b"")
    refused = run(tmp_path, str(tmp_path / "bundle" / "run.sh"))
    assert refused.returncode != 0
    assert "part.00" in refused.stdout + refused.stderr


@pytest.mark.parametrize("folder", [(), ("bundle",)])
def test_a_missing_folder_or_requirement_is_named(tmp_path: Path, folder: tuple[str, ...]) -> None:
    prepare(tmp_path, "another>=2")
    refused = run(tmp_path, str(BUNDLE), *(str(tmp_path / name) for name in folder))
    assert refused.returncode != 0
    assert ("made needs another>=2" if folder else "usage:") in refused.stderr
