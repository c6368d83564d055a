"""The simulated schedule of engine steps, what it costs, and what is predicted of it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tools.memory.plan import resolve
from tools.scale import schedule
from tools.scale.__main__ import main
from tools.scale.cost import Assumptions, StepCost, costs_on, on_ranks
from tools.scale.measure import Fit, figures, fitted_cost, replayed, run
from tools.scale.predict import Setting, measured_points, simulate
from tools.scale.schedule import Places, Span, Trajectory, Turn, idle_share, optimizer_steps
from tools.scale.workload import Lengths, Workload

ROOT = Path(__file__).resolve().parents[2]


def chain(*drawn: int) -> Trajectory:
    """Turns with prompts of 10 tokens."""
    return [Turn(10, tokens) for tokens in drawn]


def roll_out(places: Places, *chains: Trajectory) -> list[Span]:
    return schedule.roll_out(map(schedule.Job, chains), places)


def scheduled(places: Places, *chains: Trajectory) -> list[tuple[int, int]]:
    """Steps and completions of each span."""
    return [(span.steps, span.rows) for span in roll_out(places, *chains)]


# --- by hand ------------------------------------------------------------------


def test_three_trajectories_take_turns_on_two_places() -> None:
    # 1 to 3: a's first turn, b. 4: b's last token, c. 5: c's last one, a's second turn. 6: a.
    spans = roll_out(Places(slots=2), chain(3, 2), chain(4), chain(2))
    assert sum(span.steps for span in spans) == 6
    assert idle_share(spans, 2) == pytest.approx(1 / 12)
    assert [span.read for span in spans if span.read] == [20, 10, 10]
    # The first step reads two prompts of 10; the next two have 11 and 12 tokens before each.
    assert spans[:2] == [Span(1, 2, 2, 20, 20), Span(2, 2, 2, 0, 23)]


def test_an_engine_that_draws_two_tokens_at_first_is_a_step_ahead_in_every_turn() -> None:
    places = Places(slots=2, first=2)
    assert scheduled(places, chain(3, 2, 1)) == [(1, 1), (1, 1), (1, 1), (1, 1)]


def test_a_request_waits_for_others_until_its_patience_ends() -> None:
    # d ends after 2 steps. e alone is fewer than 2 and waits in steps 3 and 4, then runs in 5 to 9.
    places = Places(slots=4, group=2, patience=2)
    chains = [chain(20), chain(20), chain(20), chain(2), chain(5)]
    assert scheduled(places, *chains) == [(1, 4), (1, 4), (2, 3), (1, 4), (4, 4), (11, 3)]
    # Nor does it wait where nothing else runs, or where two have room.
    assert scheduled(places, chain(2, 2)) == [(1, 1), (1, 1)] * 2
    both = [chain(20), chain(20), chain(2), chain(2), chain(5), chain(5)]
    assert scheduled(places, *both) == [(1, 4), (1, 4), (1, 4), (4, 4), (13, 2)]


def test_carry_over_begins_the_next_step_in_free_places_and_counts_what_is_stale() -> None:
    # As in test_carry_over.py: of 6 places two are free after 3 steps, two more after
    # 4. The next step's pair of 4 tokens ends, its pair of 20 has drawn 5 when 9 steps are over.
    now = [chain(n) for n in (9, 9, 3, 3, 4, 4)]
    later = [chain(n) for n in (4, 4, 20, 20)]
    first, second = optimizer_steps([[now], [later]], Places(slots=6), carry_over=True)
    assert (first.steps, first.tokens, first.stale) == (9, 32, 0)
    assert (second.steps, second.tokens, second.stale) == (15, 48, 18)
    assert second.spans[0] == Span(1, 2, 2, 30, 30)  # prompts and the 5 tokens of each
    without = optimizer_steps([[now], [later]], Places(slots=6), carry_over=False)
    assert [one.steps for one in without] == [9, 20]


def test_a_step_whose_trajectories_were_all_drawn_before_still_takes_one_step() -> None:
    batches = [[[chain(9)]], [[chain(3)]], [[chain(5)]]]
    rolled = list(optimizer_steps(batches, Places(slots=2), carry_over=True))
    assert [(one.steps, one.stale) for one in rolled] == [(9, 0), (1, 3), (4, 1)]
    # The last one begins nothing: without a step no place has had work.
    *_, last = optimizer_steps(batches[:2], Places(slots=2), carry_over=True)
    assert (last.steps, idle_share(last.spans, 2)) == (0, 1)


def test_later_attempts_follow_the_first_one() -> None:
    (rolled,) = optimizer_steps([[[chain(4)], [chain(3)]]], Places(slots=1), carry_over=False)
    assert (rolled.steps, rolled.tokens) == (7, 4)


def test_an_engine_step_takes_its_weights_or_its_tokens_whichever_is_longer() -> None:
    cost = StepCost(weights=4, token=1, row=0.5, context=0.1, overhead=2)
    # 3 steps of 2 rows: weights 4, overhead 2, rows 1, context 1 each.
    assert cost.seconds([Span(3, 2, 2, 0, 10)]) == pytest.approx(3 * 8)
    # A step that reads 9 tokens: 11 computed instead of the weights' 4.
    assert cost.seconds([Span(1, 2, 2, 9, 10)]) == pytest.approx(8 + 11 - 4)


def test_a_step_cost_is_found_again_from_the_seconds_of_spans() -> None:
    cost = StepCost(token=0.2, row=0.3, context=0.01, overhead=2)
    spans = [Span(3, 2, 2, 0, 10), Span(1, 4, 4, 30, 40), Span(5, 3, 3, 0, 60), Span(1, 9, 9, 7, 7)]
    found = fitted_cost(spans, [cost.seconds([span]) for span in spans])
    assert found.seconds(spans) == pytest.approx(cost.seconds(spans))
    assert found.row == pytest.approx(0.3)


# --- against trainings --------------------------------------------------------------


@pytest.mark.parametrize("carry_over", [0, 1])
def test_a_training_takes_the_engine_steps_that_its_lengths_give(carry_over: int) -> None:
    fit = Fit(problems=2, turns=2, slots=9, limit=40, steps=3, carry_over=carry_over)
    found = run(fit)
    rolled = replayed(fit, found.ranks)
    assert [one.steps for one in rolled[0]] == [len(steps) for steps in found.seconds[0]]
    for name, value in figures(fit, rolled).items():
        assert found.figures[name] == pytest.approx(value)
    assert (found.figures["stale"] > 0) == bool(carry_over)


# --- predictions --------------------------------------------------------------


def work(**changes: object) -> Workload:
    sizes = {"problems": 8, "group": 4, "turns": 3, "limit": 256, "longest_prompt": 512}
    settings = {**sizes, "carry_over": False, "lengths": Lengths(median=30, spread=1.0)}
    return Workload(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_step_has_the_same_trajectories_on_any_number_of_engines() -> None:
    ((whole,),) = work().batches(1, 1, seed=3)
    parts = work().batches(4, 1, seed=3)
    assert [one for ((part,),) in parts for one in part] == whole[0]
    assert whole[0][0][0].prompt == Lengths.prompt


LAYERS = ("configs/gsm8k.yaml", "configs/hardware/4gpu_zero2.yaml")
ARGUMENTS = [part for name in LAYERS for part in ("--config", str(ROOT / name))]


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting(resolved=resolve(ARGUMENTS), card="80 GB", steps=2)


def test_the_engine_reads_all_weights_in_a_step_and_computes_two_operations_for_each(
    setting: Setting,
) -> None:
    costs = costs_on(setting.plan, "80 GB", Assumptions(bandwidth_share=1.0, engine_mfu=1.0))
    assert costs.engine.weights == pytest.approx(2 * 1.88e9 / 2.04e12, rel=0.01)
    assert costs.engine.token == pytest.approx(2 * 1.88e9 / 312e12, rel=0.01)
    # Six layers of full attention with two heads of 256: 12,288 bytes of keys and values.
    assert costs.engine.context == pytest.approx(12_288 / 2.04e12)
    # Gradients and weights of three ranks out of four, two bytes each, both ways.
    assert costs.exchange == pytest.approx(0.75 * 4 * 1.88e9 / (0.7 * 300e9), rel=0.01)


def test_a_shared_engine_reads_its_part_and_two_ranks_reduce_in_every_layer(
    setting: Setting,
) -> None:
    alone, shared = (
        costs_on(replace(setting.plan, tensor_parallel=n), "80 GB", Assumptions()).engine
        for n in (1, 2)
    )
    assert shared.weights == pytest.approx(alone.weights / 2)
    assert shared.overhead == pytest.approx(alone.overhead + 2 * 24 * 2e-5)


def test_sharded_weights_are_gathered_for_every_micro_batch(setting: Setting) -> None:
    sharded = replace(setting.plan, shards=4, zero=None, ranks=4)
    count, link = 1.88e9, 0.7 * 300e9
    costs = costs_on(sharded, "80 GB", Assumptions())
    assert costs.exchange == pytest.approx(4 * 4 * 4 * 0.75 * count / link, rel=0.01)
    assert on_ranks(sharded, 8).micro_batches == 2


def test_more_gpus_take_less_time_and_carry_over_fewer_engine_steps(setting: Setting) -> None:
    few, many = setting.on(4), setting.on(16)
    assert many.step < few.step
    assert many.engine_steps == few.engine_steps  # those of the longest trajectory
    assert few.stale == 0
    one = {"places": Places(slots=32), "gpus": 1, "together": 1, "steps": 4}
    off, on = (simulate(work(carry_over=carry), setting.costs(4), **one) for carry in (False, True))
    assert on.engine_steps < 0.75 * off.engine_steps
    assert on.idle < off.idle
    assert 0.3 < on.stale < 1


def test_the_published_prediction_is_that_of_the_present_code() -> None:
    resolved = resolve([argument.replace("gsm8k", "math") for argument in ARGUMENTS])
    found = asdict(Setting(resolved=resolved, card="80 GB", steps=20).on(4))
    published = json.loads((ROOT / "tools/scale/results/4gpu_zero2.json").read_text())
    assert found in [pytest.approx(one) for one in published["predictions"]]


def test_the_table_fits_a_terminal_and_says_what_is_assumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    options = ["--gpus", "4,16", "--steps", "2", "--assume", "mfu=0.5", "--out", str(out)]
    assert main([*ARGUMENTS, *options]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "Measured: nothing" in printed
    assert "mfu=0.5" in printed
    written = json.loads(out.read_text())
    assert [one["gpus"] for one in written["predictions"]] == [4, 16]
    assert written["values"]["mfu"] == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "64"], "data.problems_per_step=16"),
        (["--assume", "luck=1"], "unknown; known: bandwidth_share"),
        (["--assume", "mfu=high"], "give NAME=NUMBER"),
        (["--config", str(ROOT / "configs/hardware/servers.yaml")], "only vLLM in the training"),
        (["--run", "nowhere"], "there is no rollouts.jsonl"),
        (
            ["--config", str(ROOT / "configs/methods/svr_plus.yaml")],
            "SVRPlus trains on 16 sequences of a problem; only recipes that train on one of each",
        ),
    ],
)
def test_what_is_not_simulated_is_refused_in_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARGUMENTS, "--steps", "1", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_run_takes_the_place_of_what_is_assumed(setting: Setting, tmp_path: Path) -> None:
    # Completions of 100 tokens at the median and 50 one deviation below; rollouts of 10 s, half a
    # second of which is the sync: 0.0095 s per engine step.
    tokens = [50] * 16 + [100] * 34 + [200] * 50
    turns = [{"completion_tokens": n} for n in tokens]
    (tmp_path / "rollouts.jsonl").write_text(json.dumps({"turns": turns}) + "\n")
    logged = {"time/rollout": 10, "engine/steps": 1000, "speed/mfu": 0.25, "time/sync": 0.5}
    rows = [f"1,{key},{value}" for key, value in logged.items()]
    (tmp_path / "metrics.csv").write_text("\n".join(["step,key,value", *rows]) + "\n")
    found = measured_points(tmp_path, setting)
    assert found["median"] == pytest.approx(150)
    assert found["mfu"] == 0.25
    given = replace(setting, assumed=Assumptions(**found)).on(4)
    assert given.rollout / given.engine_steps == pytest.approx(0.0095)
    assert given.sync == pytest.approx(0.5)
