"""The miniature experiment of all methods, from the root of a checkout.

    python -m experiments.miniature          # everything, two runs at once
    python -m experiments.miniature --list   # the plan, and what is done
    python -m experiments.miniature --rows svr grpo --seeds 42 --stage train

Stages: tune (learning rates and the choice of SVR+, on development problems),
train, judge (on held-out problems), report. What is done already is kept;
start it again and it goes on. Flags after -- go to every training:
-- --trainer.max_steps 2 --trainer.val_check_interval 2.

What is published counts as done too, and reports add to it:

    python -m experiments.miniature --stage report   # every table again, in one or two minutes
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.miniature import plan, report, tuning
from experiments.miniature.cells import Runner, state_of
from experiments.miniature.outcomes import FILE as OUTCOMES
from experiments.miniature.outcomes import read_outcomes
from experiments.miniature.plan import Settings
from experiments.miniature.reading import Seeds
from svr_lightning.errors import ConfigError

STAGES = ("tune", "train", "judge", "report")
FAILED, USER_FAULT, INTERRUPTED = 1, 2, 130
_SIGNS = {"done": "+", "open": "-", "other": "!"}
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def parser() -> argparse.ArgumentParser:
    """The command line's options."""
    formatter = argparse.RawDescriptionHelpFormatter
    result = argparse.ArgumentParser(
        prog="experiments.miniature", description=__doc__, formatter_class=formatter
    )
    add = result.add_argument
    add("--task", choices=[*plan.BEDS], default="countdown", help="embedded task (countdown)")
    add(
        "--out",
        default="runs/miniature",
        help="folder (runs/miniature[-TASK])",
    )
    add("--jobs", type=int, default=2, help="runs at the same time, one thread each (2)")
    every = [*plan.BY_NAME]
    add("--rows", nargs="+", choices=every, default=every, metavar="NAME", help="only these rows")
    add("--seeds", type=int, nargs="+", default=[*plan.SEEDS], help="training seeds (42 to 46)")
    add("--stage", choices=[*STAGES, "all"], default="all", help="only this stage (all)")
    add("--list", action="store_true", help="show the plan and what of it is done, run nothing")
    add(
        "--published",
        type=Path,
        metavar="FOLDER",
        help="folder of published results",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; 0 is success, 1 a cell that failed, 2 a fault of the command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)
    options = parser().parse_args(given[:cut])
    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _interrupt)
    try:
        return run(options, tuple(given[cut + 1 :]))
    except ConfigError as error:
        print(f"experiments.miniature: error: {error}", file=sys.stderr)
        return USER_FAULT
    except KeyboardInterrupt:
        print("interrupted; start it again and it goes on", file=sys.stderr)
        return INTERRUPTED


def run(options: argparse.Namespace, extra: tuple[str, ...]) -> int:
    """Run the chosen stages.

    Raises:
        ConfigError: for a fault of the user.
    """
    check_checkout()
    if options.jobs < 1:
        raise ConfigError(f"--jobs {options.jobs}: must be at least 1")
    options.rows = [row.name for row in plan.rows_of(options.task) if row.name in options.rows]
    settings = Settings(out=plan.out_of(options.out, options.task), task=options.task, extra=extra)
    folder = options.published or Path(plan.BEDS[options.task].published)
    outcomes = folder / OUTCOMES
    published = read_outcomes(outcomes, options.task) if outcomes.is_file() else []
    for task, bed in plan.BEDS.items():
        ours = folder if task == options.task else Path(bed.published)
        tuning.take_over(ours, plan.out_of(options.out, task))
    if options.list:
        return show_plan(options, settings, published)
    stages = STAGES if options.stage == "all" else (options.stage,)
    runner = Runner(say=lambda line: print(line, flush=True))
    failures: list[str] = []
    if "tune" in stages:
        failures = tune(runner, settings, options.rows, options.jobs)
        if failures:
            return FAILED  # the other stages need the learning rates
    if {"train", "judge"} & set(stages):
        names, failures = runnable(options, settings, stages)
        borrowing = [name for name in names if plan.BY_NAME[name].policy_of]
        for group in ([name for name in names if name not in borrowing], borrowing):
            planned = cells(options, settings, stages, group, published)
            failures += runner.run(planned, options.jobs)
    if "report" in stages:
        settings = replace(settings, rates=tuning.read_rates(settings.out))
        seeds = tuple(options.seeds)
        lines = report.write_report(settings, seeds, options.rows, published)
        for line in [*lines, *report.publish(Path(settings.out), folder)]:
            print(line)
    for line in failures:
        print(line, file=sys.stderr)
    return FAILED if failures else 0


def runnable(
    options: argparse.Namespace, settings: Settings, stages: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The rows that can be run, and an error line if SVR+'s layer is not the chosen candidate."""
    names: list[str] = options.rows
    if "train" in stages and plan.CHOSEN in names:
        try:
            tuning.check_choice([plan.out_of(options.out, task) for task in plan.BEDS])
        except ConfigError as error:
            return [name for name in names if name != plan.CHOSEN], [f"{plan.CHOSEN}: {error}"]
    return names, []


def tune(runner: Runner, settings: Settings, names: Sequence[str], jobs: int) -> list[str]:
    """Choose the learning rates, and judge SVR+'s candidates."""
    tuned = tuning.tuned_rows(settings, names)
    for _ in range(plan.MORE_RATES + 1):  # what was tried decides what is tried next
        failures = runner.run(tuning.rate_cells(settings, tuned), jobs)
        if failures:
            return failures
    rates = tuning.tuned_rates(settings, tuned)
    tuning.write_tuned(settings.out, rates, {})
    if plan.CHOSEN in names:
        failures = runner.run(tuning.candidate_cells(settings), jobs)
        if failures:
            return failures
        tuning.write_tuned(settings.out, {}, tuning.judged_candidates(settings))
    return []


def cells(
    options: argparse.Namespace,
    settings: Settings,
    stages: Sequence[str],
    names: Sequence[str],
    published: Sequence[Seeds] = (),
) -> list[plan.Cell]:
    """The chosen cells that are not published, by seed, so that a whole table is complete early."""
    rates = tuning.read_rates(settings.out) if "train" in stages else {}
    settings = replace(settings, rates=rates)
    rows = [plan.BY_NAME[name] for name in names]
    untuned = [r.name for r in rows if plan.trains(r) and (r.rate_of or r.name) not in rates]
    if "train" in stages and untuned:
        raise ConfigError(f"{settings.out}: no tuned rate for {', '.join(untuned)}; --stage tune")
    seeds = tuple(options.seeds)
    done = {(one.row.name, seed) for one in published for seed in one.seeds}
    return [
        plan.cell(row, seed, settings, tuple(stages))
        for seed in seeds
        for row in rows
        if seed in plan.seeds_of(row, seeds) and (row.name, seed) not in done
    ]


def show_plan(options: argparse.Namespace, settings: Settings, published: Sequence[Seeds]) -> int:
    """Print every cell and its steps: done (+), open (-), or done with other settings (!)."""
    stages = ("train", "judge")
    for one in published:
        print(f"{one.row.name:24} published: {', '.join(map(str, one.seeds))}")
    try:
        planned = cells(options, settings, stages, options.rows, published)
    except ConfigError as error:
        print(f"not tuned yet: {error}")
        planned = cells(options, settings, ("judge",), options.rows, published)
    for cell in planned:
        steps = (f"{_SIGNS[state_of(c)]}{c.name}" for c in cell.commands)
        print(f"{cell.name:24} {' '.join(steps)}")
    return 0


def check_checkout() -> None:
    """Refuse to run outside a checkout: configurations are not part of the installed package.

    Raises:
        ConfigError: if they are not here.
    """
    config = plan.BEDS["countdown"].config
    if not Path(config).is_file():
        raise ConfigError(f"{config} is not in {Path.cwd()}; run this from the root of a checkout")


def _interrupt(*_: object) -> None:
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)  # the processes are already being ended
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
