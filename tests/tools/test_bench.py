"""The command that runs the benchmarks."""

import pytest

from tools.bench.__main__ import BENCHMARKS, main


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_says_what_it_takes_and_can_keep_its_figures(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert "--out" in capsys.readouterr().out
