"""The separate script agrees with results that are right and names every number that is not."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.files import write_json
from tests.trajectories import adaptive, pool, record, save, vote, write_results

SCRIPT = Path(__file__).parents[1] / "recompute_results.py"


def run(folder: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False
    )
    return done.returncode, [line.split(" is ")[0] for line in done.stdout.splitlines()]


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    stored = json.loads(path.read_text())
    change(stored)
    path.write_text(json.dumps(stored))


def test_turns_behind_the_returned_one_count_where_they_were_observed(tmp_path: Path) -> None:
    seen = record("s", (True, "C", 0.8, 10), (False, "I", 0.3, 20), (False, "U", 0.5, 40))
    seen |= {"returned_turn": 1, "observed_turns": 3}
    kept = record("k", (False, "C", 0.9, 10), (True, "C", 0.9, 20))
    kept |= {"returned_turn": 1}  # its second turn was recorded, not observed
    results = write_results(tmp_path, [seen, kept, *adaptive()], {}, {})["datasets"]["toy"]
    # s is right at its returned turn 1 and pays for 3 turns; k pays for 1. With 13 of the table:
    assert (results["n"], results["turns"]) == (8, (3 + 1 + 13) / 8)
    assert results["accuracy"] == (1 + 0 + 3) / 8
    assert run(tmp_path)[0] == 0
    lines = (tmp_path / "samples.jsonl").read_text().replace(', "observed_turns": 3', "")
    (tmp_path / "samples.jsonl").write_text(lines)
    code, named = run(tmp_path)
    assert code == 1
    assert "results.datasets.toy.turns" in named
    assert "results.datasets.toy.avg_completion_tokens" in named
    assert "results.datasets.toy.accuracy" not in named


@pytest.fixture
def votes(tmp_path: Path) -> Path:
    """Five fresh turns of random answers on two data sets, a problem not run, and votes."""
    rng = random.Random(2)
    records = [
        pool(f"{index}", "".join(rng.choices("aabc.", k=5)), dataset=name)
        for name in ("math500", "gsm8k-like")
        for index in range(20)
    ]
    records.append({**pool("failed", "", dataset="math500"), "error": "the problem does not fit"})
    save(tmp_path, records)
    write_json(tmp_path / "replay" / "replay.json", {"votes": vote(records, [1, 3, 5], 50)})
    return tmp_path


def test_votes_that_are_right_agree(votes: Path) -> None:
    code, named = run(votes)
    assert code == 0, named


def test_wrong_numbers_of_a_vote_are_named(votes: Path) -> None:
    def spoil(stored: dict[str, Any]) -> None:
        one, other = (stored["votes"][name] for name in ("math500", "gsm8k-like"))
        one["pass@3"] += 1e-6
        one["samples"] = 4
        one["maj@5"] += 1e-6
        other["tokens@3"] += 1
        del other["mean@1"]

    changed(votes / "replay" / "replay.json", spoil)
    code, named = run(votes)
    assert code == 1
    assert set(named) >= {
        "votes.math500.pass@3",
        "votes.math500.samples",
        "votes.math500.maj@5",
        "votes.gsm8k-like.tokens@3",
    }
    assert any(line.startswith("votes.gsm8k-like.mean@1") for line in named)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path)[0] == 1
