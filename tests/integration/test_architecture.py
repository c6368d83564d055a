"""The walk of docs/extending.md: a traced run calls its functions in their order."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tests.commands import ROOT
from tests.pages import page, section
from tests.small_fit import data, module, trainer

TEXT = section(page("docs/extending.md"), "## One problem, from its row to the loss")
STEPS = [
    (str(ROOT / file), name)
    for name, file in re.findall(r"^\d+\. \[`([\w.]+)`\]\(\.\./(\S+?)\)", TEXT, re.MULTILINE)
]
"""File and name of each numbered step."""


def test_a_run_calls_the_functions_of_the_walk_in_its_order(tmp_path: Path) -> None:
    assert len(STEPS) == len(re.findall(r"^\d+\. ", TEXT, re.MULTILINE)) == 16
    made: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        step = (frame.f_code.co_filename, frame.f_code.co_qualname)
        if event == "call" and step in STEPS:
            made.append(step)

    sys.setprofile(profile)
    try:
        trainer(tmp_path, max_steps=1).fit(module(), data())
    finally:
        sys.setprofile(None)
    calls = iter(made)
    assert [name for file, name in STEPS if (file, name) not in calls] == []  # a subsequence
