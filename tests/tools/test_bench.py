"""The command that runs the benchmarks."""

from importlib import import_module

from tests.commands import read_json
from tools.bench import rollout
from tools.bench.__main__ import BENCHMARKS, main


def test_a_benchmark_keeps_its_figures_with_those_of_the_machine(tmp_path, monkeypatch):
    assert all(import_module(f"tools.bench.{name}").measure for name in BENCHMARKS)
    monkeypatch.setattr(rollout, "PROBLEMS", 1)
    monkeypatch.setattr(rollout, "REPEATS", 1)
    main(["rollout", "--engine", "transformers", "--out", str(tmp_path / "figures.json")])
    figures = read_json(tmp_path / "figures.json")
    assert {"versions", "hardware"} < {*figures}
    assert 0 < figures["pipelined"]["steps"] < figures["lock-step"]["steps"]
