"""The command that runs the benchmarks."""

import pytest

from tools.bench.__main__ import BENCHMARKS, main
from tools.bench.carry_over import expected_speedup


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_says_what_it_takes_and_can_keep_its_figures(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert "--out" in capsys.readouterr().out


def test_without_a_name_all_are_listed_and_an_unknown_one_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in BENCHMARKS)
    assert main(["speed"]) == 2
    assert "no benchmark 'speed'; known: carry_over" in capsys.readouterr().err


def test_carry_over_is_expected_to_save_what_its_steps_cost_beside_their_tokens() -> None:
    found = {
        "off": {"engine_steps": [60, 40], "seconds": [9.0, 10.0, 11.0]},
        "on": {"engine_steps": [40, 10], "seconds": [7.0, 8.0, 9.0]},
    }
    # 50 steps of 0.1 s are saved: 5 of 10 s.
    assert expected_speedup(found, one_sequence=0.1) == pytest.approx(2.0)
