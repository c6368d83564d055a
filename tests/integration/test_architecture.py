"""The walks of docs/extending.md: a traced run calls their functions in their order."""

import re
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from tests.chat_server import SURE, ChatServer, completion
from tests.commands import ROOT
from tests.pages import page, section
from tests.served import chat, in_front_of, serving
from tests.small_fit import data, module, trainer

PAGE = page("docs/extending.md")


def walk(heading: str) -> list[tuple[str, str]]:
    """File and name of each numbered step under a heading."""
    text = section(PAGE, f"## {heading}")
    steps = re.findall(r"^\d+\. \[`([\w.]+)`\]\(\.\./(\S+?)\)", text, re.MULTILINE)
    assert len(steps) == len(re.findall(r"^\d+\. ", text, re.MULTILINE))
    return [(str(ROOT / file), name) for name, file in steps]


TO_THE_LOSS = walk("One problem, from its row to the loss")
TO_THE_RESULTS = walk("One completion, to results.json")
THROUGH_SERVE = walk("One request, through serve")


class Calls:
    """The calls of the walks' functions, one after the other."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self._wanted = {*TO_THE_LOSS, *TO_THE_RESULTS, *THROUGH_SERVE}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        step = (frame.f_code.co_filename, frame.f_code.co_qualname)
        if event == "call" and step in self._wanted:
            self.made.append(step)

    def __enter__(self) -> "Calls":
        sys.setprofile(self)
        threading.setprofile(self)  # of threads that start from now on
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """One optimizer step, a test and a request to the server, each traced."""
    folder = tmp_path_factory.mktemp("traced")
    problems, model = data(test=[data().sources["val"][0]]), module()
    run = trainer(folder, max_steps=1)
    with Calls() as training:
        run.fit(model, problems)
    with Calls() as testing:
        run.test(model, problems)
    with (
        ChatServer(lambda *_: completion(SURE)) as upstream,
        Calls() as asking,
        serving(in_front_of(upstream.url)) as url,
    ):
        assert chat(url).status_code == 200
    return {"fit": training.made, "test": testing.made, "serve": asking.made}


@pytest.mark.parametrize(
    ("stage", "steps", "most"),
    [("fit", TO_THE_LOSS, 18), ("test", TO_THE_RESULTS, 8), ("serve", THROUGH_SERVE, 8)],
    ids=["row to loss", "completion to results", "request through serve"],
)
def test_a_run_calls_the_functions_of_the_walk_in_its_order(calls, stage, steps, most):
    assert 1 < len(steps) <= most
    assert [name for file, name in steps if (file, name) not in calls[stage]] == []
    made = iter(calls[stage])
    assert [name for file, name in steps if (file, name) not in made] == []  # a subsequence
