"""The bundle for machines without network, packed and installed by a pip with made-up wheels."""

import re

from tests.commands import ROOT, ran

BUNDLE = ROOT / "tools" / "bundle.sh"
TRANSFER = 60 << 20
"""Bytes that one transfer to such a machine may hold, the checkout included."""


def test_a_part_and_the_checkout_fit_into_one_transfer():
    done = ran("git", "ls-files", "-z")
    assert done.returncode == 0, done.stderr
    listed = done.stdout.split("\0")
    tracked = sum((ROOT / name).lstat().st_size for name in listed if (ROOT / name).is_file())
    (part,) = re.findall(r"split --bytes (\d+)M", BUNDLE.read_text(encoding="utf-8"))
    assert tracked + (int(part) << 20) < TRANSFER
