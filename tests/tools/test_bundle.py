"""The bundle for machines without network, packed and installed by a pip with made-up wheels."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "tools" / "bundle.sh"
TRANSFER = 60 << 20
"""Bytes that one transfer to such a machine may hold, the checkout included."""


def test_a_part_and_the_checkout_fit_into_one_transfer():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    tracked = sum((ROOT / name).lstat().st_size for name in listed if (ROOT / name).is_file())
    (part,) = re.findall(r"split --bytes (\d+)M", BUNDLE.read_text(encoding="utf-8"))
    assert tracked + (int(part) << 20) < TRANSFER
