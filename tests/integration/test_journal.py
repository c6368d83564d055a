"""A journal is trusted up to its last whole line, and only for the evaluation it was for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from svr_lightning.analysis.results import Journal
from svr_lightning.policy.weights import weights_fingerprint
from tests.models import tiny_qwen3
from tests.trajectories import records_of, uncensored

RECORDS = records_of(uncensored())


def written(path: Path, count: int = 3) -> bytes:
    journal = Journal(path, "f")
    for record in RECORDS[:count]:
        journal.append(record)
    return path.read_bytes()  # nothing was closed: a line is in the file when append returns


def names(journal: Journal) -> list[str]:
    return [name for _, name in journal.entries]


def test_what_was_appended_is_read_back_equal(tmp_path):
    hostile = replace(RECORDS[0], id="x\u2028", question="\ud800\x00\n")
    path = tmp_path / "eval" / ".journal-0.jsonl"
    written(path)
    Journal(path, "f").append(hostile)
    again = Journal(path, "f")
    assert names(again) == ["a", "b", "c", "x\u2028"]
    assert again.entries == {r.key: r for r in (*RECORDS[:3], hostile)}


def test_a_line_cut_off_at_any_byte_costs_that_line_alone(tmp_path):
    path = tmp_path / "j"
    whole = written(path)
    lines = whole.splitlines(keepends=True)
    last = len(whole) - len(lines[-1])
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        journal = Journal(path, "f")
        assert names(journal) == ["a", "b"], end
        journal.append(RECORDS[2])
        assert path.read_bytes() == whole


@pytest.mark.parametrize("junk", [b"\x00\xff\n", b"[]\n", b'{"id": 1}\n', b"1e999\n", b"\n"])
def test_a_line_that_is_no_record_ends_what_is_trusted(tmp_path, junk):
    path = tmp_path / "j"
    head, first, *rest = written(path).splitlines(keepends=True)
    path.write_bytes(b"".join([head, first, junk, *rest]))
    assert names(Journal(path, "f")) == ["a"]
    assert path.read_bytes() == head + first


def test_another_fingerprint_starts_over(tmp_path):
    path = tmp_path / "j"
    written(path)
    assert names(Journal(path, "g")) == []
    assert names(Journal(path, "f")) == []  # it is g's now, and starts over again
    for torn in (b'{"fingerprint": "f"', b""):  # killed before its first line was whole
        path.write_bytes(torn)
        assert names(Journal(path, "f")) == []


def test_every_tensor_of_a_policy_is_in_its_fingerprint():
    model = tiny_qwen3(seed=1)
    before = weights_fingerprint(model.state_dict())
    assert before == weights_fingerprint(tiny_qwen3(seed=1).state_dict())
    assert before != weights_fingerprint(tiny_qwen3(seed=2).state_dict())
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.view(-1)[0] += 1e-3
        after = weights_fingerprint(model.state_dict())
        assert after != before
        before = after
    assert weights_fingerprint(model.bfloat16().state_dict()) != before
