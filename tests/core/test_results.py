"""samples.jsonl and results.json: what they hold, and that they are whole or not there."""

import errno
import json
import math
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.analysis.metrics import MATH_5
from svr_lightning.analysis.results import read_samples
from svr_lightning.errors import ConfigError
from svr_lightning.metrics import METRIC_NAMES
from tests.recompute_results import recompute
from tests.trajectories import (
    EXPECTED,
    adaptive,
    failed,
    record,
    records_of,
    same,
    summarize,
    uncensored,
    write_results,
)


def _right(name: str, dataset: str) -> dict[str, Any]:
    return record(name, (True, "C", 0.9, 10), dataset=dataset, early=True)


def _wrong(name: str, dataset: str) -> dict[str, Any]:
    return record(name, (False, "U", 0.5, 30), dataset=dataset)


def _mixed() -> list[dict[str, Any]]:
    """Four data sets, with every kind of undefined value among them."""
    return [
        *adaptive("gsm8k"),
        _right("x", "math500"),
        _wrong("y", "math500"),
        _wrong("p", "aime26"),
        _wrong("q", "aime26"),
        failed("r", "amc23"),
    ]


def _leaves(value: Any, name: str = "") -> dict[str, Any]:
    """The values of nested objects and lists, by their places."""
    if not isinstance(value, dict | list):
        return {name: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for key, one in pairs for k, v in _leaves(one, f"{name}.{key}").items()}


def test_a_data_set_holds_the_metrics_that_validation_logs():
    values = summarize(adaptive())["datasets"]["toy"]
    low, high = values.pop("accuracy_ci95")
    assert same(values, EXPECTED)
    # Wilson at 3 of 6, z = 1.96: (.5 + .3201) / 1.6402 +- 1.96 sqrt(.25 / 6 + .0267) / 1.6402
    assert (round(low, 4), round(high, 4)) == (0.1876, 0.8124)


def test_the_macro_average_leaves_out_what_is_undefined_and_says_over_how_many_it_ran():
    results = summarize(_mixed())
    everything, math_only = results["macro"]["all"], results["macro"]["math"]
    # Accuracies: gsm8k 1/2, math500 1/2, aime26 0, amc23 0 (its problem could not be run).
    assert everything["accuracy"] == (0.5 + 0.5 + 0 + 0) / 4
    # AUROC: math500 ranks .9 over .5; aime26 has one class and amc23 no turn.
    assert (math_only["auroc"], math_only["n_datasets"]["auroc"]) == (1.0, 1)
    assert everything["auroc"] == (27.5 / 40 + 1.0) / 2


def test_the_math_average_names_what_is_missing_and_is_null_without_any():
    math_only = summarize(_mixed())["macro"]["math"]
    assert math_only["datasets"] == ["math500", "aime26", "amc23"]
    assert math_only["missing"] == ["olympiadbench", "minerva_math"]
    nothing = summarize(adaptive("gsm8k"))["macro"]["math"]
    assert nothing["missing"] == list(MATH_5)
    assert all(nothing[name] is None for name in METRIC_NAMES)
    assert set(nothing["n_datasets"].values()) == {0}
    assert summarize([])["datasets"] == {}


def test_files_hold_one_line_per_problem_and_read_back_equal(tmp_path):
    written = write_results(tmp_path / "eval" / "after", _mixed(), {"seed": 1}, {"torch": "2"})
    folder = tmp_path / "eval" / "after"
    assert list(read_samples(folder / "samples.jsonl")) == records_of(_mixed())
    stored = json.loads((folder / "results.json").read_text())
    assert stored == written
    assert stored == {**summarize(_mixed()), "config": {"seed": 1}, "versions": {"torch": "2"}}
    assert sorted(path.name for path in folder.iterdir()) == ["results.json", "samples.jsonl"]


def test_model_text_of_any_kind_stays_on_its_line_and_reads_back(tmp_path):
    hostile = '\ud800 lone \udfff \0 \x1b[31m \r\n \u2028 \x85 </script> "\\ \U0001f600 NaN'
    row = {**adaptive()[0], "question": hostile, "id": hostile}
    row["turns"][0].update(text=hostile, answer=hostile)
    write_results(tmp_path, [row], {}, {})
    raw = (tmp_path / "samples.jsonl").read_bytes()
    assert raw.isascii()
    assert raw.count(b"\n") == 1
    assert b"\r" not in raw
    assert list(read_samples(tmp_path / "samples.jsonl")) == records_of([row])


def test_results_are_valid_json_whatever_the_configuration_holds(tmp_path):
    config = {"limit": math.inf, "nested": [{"x": math.nan, 3: (1, 2)}], "path": Path("runs")}
    write_results(tmp_path, [failed("a")], config, {"absent": None})
    text = (tmp_path / "results.json").read_text()
    assert not {"NaN", "Infinity"} & {*re.findall(r"\w+", text)}
    stored = json.loads(text)
    assert stored["config"] == {"limit": None, "nested": [{"x": None, "3": [1, 2]}], "path": "runs"}
    assert stored["datasets"]["toy"]["auroc"] is None


def test_a_full_disk_leaves_the_files_that_were_there(tmp_path, monkeypatch):
    write_results(tmp_path, adaptive(), {}, {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_results(tmp_path, _mixed(), {}, {})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_a_killed_writer_left_goes_with_the_next_results(tmp_path):
    (tmp_path / ".results.json.6903.writing").write_text('{"datasets": {')
    write_results(tmp_path, adaptive(), {}, {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["results.json", "samples.jsonl"]


def test_samples_that_cannot_be_summarized_are_kept_without_stale_results(tmp_path):
    write_results(tmp_path, adaptive(), {}, {})
    unlabelled = record("mine", (None, "C", 0.9, 10))
    with pytest.raises(ValueError, match="'mine' of 'toy' has no label at turn 1"):
        write_results(tmp_path, [unlabelled], {}, {})
    assert list(read_samples(tmp_path / "samples.jsonl")) == records_of([unlabelled])
    assert not (tmp_path / "results.json").exists()


def _line(**changes: Any) -> str:
    return json.dumps({**adaptive()[3], **changes})


def _turn(**changes: Any) -> str:
    turns = adaptive()[3]["turns"]
    return _line(turns=[turns[0], {**turns[1], **changes}, turns[2]])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'dataset'", "invalid JSON: Expecting property name"),
        (_line()[:-20], "invalid JSON"),
        ("[" * 100_000, "recursion"),
        (_line(returned_turn=True), "returned_turn: Expected `int`, got `bool`"),
        (_line(returned_turn=4), "returns turn 4 of 3"),
        (_line(turns=[], returned_turn=0), "either turns or an 'error'"),
        (_line(error="failed"), "either turns or an 'error'"),
        (_turn(turn=3), "its turns must be numbered from 1; found 3"),
        (_turn(verdict="MAYBE"), "turns[1].verdict: Invalid enum value 'MAYBE'"),
        (_turn(confidence=92), "turns[1].confidence: Expected `float` <= 1.0"),
        (_turn(confidence=None), "both 'verdict' and 'confidence', or null for both"),
        (_turn(prompt_tokens=2**31), "turns[1].prompt_tokens: Expected `int` <= 2147483647"),
        (json.dumps(adaptive()[0]), "repeats toy/a of samples.jsonl:1"),
    ],
)
def test_a_line_that_is_no_sample_record_is_named(tmp_path, line, message):
    path = tmp_path / "samples.jsonl"
    path.write_text(f"{json.dumps(adaptive()[0])}\n\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        list(read_samples(path))
    text = str(caught.value)
    assert f"{path}:3: " in text
    assert message in text
    assert "\n" not in text


def test_a_samples_file_from_elsewhere_is_read_or_named(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(adaptive()[0]).encode() + b"\r\n")
    assert list(read_samples(path)) == records_of(adaptive()[:1])
    path.write_bytes(b"")
    assert list(read_samples(path)) == []
    path.write_bytes(b'{"id": "\xff"}')
    with pytest.raises(ConfigError, match=r"jsonl:1: .*utf-8"):
        list(read_samples(path))


@pytest.mark.parametrize("version", [None, 1, 3, "2"])
def test_a_record_of_another_version_is_refused_with_what_to_do(tmp_path, version):
    row = {name: value for name, value in adaptive()[0].items() if name != "schema_version"}
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps(row if version is None else {**row, "schema_version": version}))
    with pytest.raises(ConfigError, match=r":1: schema_version .* is not 2, .* evaluate again"):
        list(read_samples(path))


UNCHECKED = [record("x", (True, None, None, 10)), record("y", (False, None, None, 30))]


def test_a_method_without_self_checks_has_no_verdict_metrics():
    alone = summarize(UNCHECKED)
    assert not {"brier", "auroc"} & {*alone["datasets"]["toy"], *alone["macro"]["all"]}
    # Beside a method's own self-checks, turns without one are left out of its verdict metrics.
    both = summarize([*UNCHECKED, record("z", (True, "C", 0.9, 10))])["datasets"]["toy"]
    assert (both["accuracy"], both["verdict_accuracy"], both["overconfidence"]) == (2 / 3, 1.0, 0.0)
    assert both["brier"] == pytest.approx(0.01)


def test_variants_of_one_problem_are_worth_one_in_the_interval():
    alone = [record(str(k), (k < 12, "C", 0.9, 1)) for k in range(20)]
    twins = [{**row, "id": f"{row['id']}-{k}", "cluster": row["id"]} for row in alone for k in "ab"]
    one, two = (summarize(rows)["datasets"]["toy"] for rows in (alone, twins))
    assert (one["n"], two["n"]) == (20, 40)
    assert two["accuracy_ci95"] == pytest.approx(one["accuracy_ci95"])


def test_every_number_can_be_recomputed_from_the_samples(tmp_path):
    rng = random.Random(3)
    random_rows = [
        record(
            f"{dataset}-{index}",
            *(
                (rng.random() < 0.5, rng.choice("CIU"), rng.randrange(21) / 20, rng.randrange(999))
                for _ in range(rng.randrange(1, 6))
            ),
            dataset=dataset,
            early=rng.random() < 0.7,
        )
        for dataset in ("countdown", "olympiadbench", "minerva_math")
        for index in range(40)
    ]
    # Turns behind the returned one were recorded, or also observed and paid for.
    kept = [{**row, "returned_turn": 2, "dataset": "kept"} for row in uncensored()]
    seen = [
        {**row, "observed_turns": 3, "dataset": "seen", "cluster": "ab"[row["id"] > "c"]}
        for row in kept
    ]
    # Clusters that are all half right, and a server that counted completions alone.
    halves = [
        {**record(f"{k}{right}", (right, "C", 0.9, 1), dataset="halves"), "cluster": str(k)}
        for k in range(3)
        for right in (True, False)
    ]
    halves[0]["turns"][0]["prompt_tokens"] = 0
    rows = [*_mixed(), *random_rows, *kept, *seen, *halves, *UNCHECKED]
    written = write_results(tmp_path, rows, {}, {})
    found = _leaves({part: written[part] for part in ("datasets", "macro")})
    expected = _leaves(recompute(tmp_path / "samples.jsonl"))
    assert found.keys() == expected.keys()
    for place, value in expected.items():
        given = found[place]
        assert given == value or math.isclose(given, value, rel_tol=1e-9, abs_tol=1e-12), place
