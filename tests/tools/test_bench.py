"""The command that runs the benchmarks."""

import json
from importlib import import_module

from tools.bench import rollout
from tools.bench.__main__ import BENCHMARKS, main


def test_a_benchmark_keeps_its_figures_with_those_of_the_machine(tmp_path, monkeypatch):
    assert all(import_module(f"tools.bench.{name}").measure for name in BENCHMARKS)
    monkeypatch.setattr(rollout, "PROBLEMS", 1)
    monkeypatch.setattr(rollout, "REPEATS", 1)
    main(["rollout", "--engine", "transformers", "--out", str(tmp_path / "figures.json")])
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {"versions", "hardware"} < {*figures}
    assert 0 < figures["pipelined"]["steps"] < figures["lock-step"]["steps"]
