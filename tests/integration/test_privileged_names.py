"""What showed labels in its prompts is marked wherever a report names it, whatever it is called."""

from html import unescape
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.core.types import Verdict
from tests.trajectories import save, uncensored


def protocol(*, uses_labels: Any) -> dict[str, Any]:
    return {"model": {"evaluation": {}}, "protocol": {"max_turns": 3, "privileged": uses_labels}}


def unchecked() -> list[dict[str, Any]]:
    """Turns that say nothing of themselves, as those of the oracle-guided reference."""
    records = uncensored()
    for turn in (turn for record in records for turn in record["turns"]):
        turn |= {"verdict": Verdict.UNSURE, "confidence": 0.5}
    return records


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    save(folder / "plain", uncensored(), protocol(uses_labels=False))
    save(folder / "labels", unchecked(), protocol(uses_labels=True))
    return folder


def test_every_file_and_the_screen_mark_a_privileged_run_and_no_other(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"SVR={runs / 'plain'}", f"Oracle-guided={runs / 'labels'}"]
    assert main(["report", *arguments, "--out", str(tmp_path)]) == 0
    files = ("index.html", "tables.tex", "figures/1_tokens.json")
    texts = [unescape((tmp_path / name).read_text(encoding="utf-8")) for name in files]
    for text in texts:
        named = text.count("Oracle-guided")
        assert named == text.count("privileged: Oracle-guided") > 0
        assert "privileged: SVR" not in text
    screen = " ".join(capsys.readouterr().out.split())
    assert screen.count("privileged: Oracle-guided") == screen.count("privileged:") > 0
    assert screen.count("Oracle-guided") == screen.count("privileged:")
