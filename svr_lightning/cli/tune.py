r"""A threshold that keeps promises about new problems, with a stated confidence.

The recordings hold T_max greedy turns of every problem:

    python -m svr_lightning validate --config ... --model.evaluation.adaptive false
    python -m svr_lightning test --config ... --model.evaluation.adaptive false
    python -m svr_lightning tune --samples RUN/eval/validate/samples.jsonl \
        --report-on RUN/eval/test/samples.jsonl --max-pse 0.10

Every threshold of the grid is tested on the calibration problems; of those certified to keep all
promises, the one with the fewest tokens is chosen. What it does is then measured on problems that
had no part in the choice: those of --report-on, or else the rest of --samples, of which only the
share --calibrate-on calibrates. Variants of one problem stay on one side.

The promise is about problems drawn like the calibration ones: several data sets count as one
mixture, and --dataset narrows it. They must not be problems that the policy was trained on.

Exit code 0: a threshold was chosen; 1: no threshold can keep the promises; 2: a user's fault.
"""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.text import Text

from svr_lightning.cli.samples import check_thresholds, load_tables, recorded_turns, run_configs
from svr_lightning.cli.tune_tables import show_effects, show_measured, show_tuning
from svr_lightning.core.stopping import DEFAULT_THRESHOLD, Evidence, Fallback, Gate, StopRule
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.diagnostics import DIAGNOSTICS, diagnose
from svr_lightning.evaluation.intervals import RESAMPLES, split_clusters
from svr_lightning.evaluation.operating_point import write_operating_point
from svr_lightning.evaluation.recalibration import FITS, Recalibration, recalibrate
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.sweep import THRESHOLDS
from svr_lightning.evaluation.table import TurnTable
from svr_lightning.evaluation.thresholds import RiskConstraints, Tuning, tune
from svr_lightning.files import write_json

GRID = (*THRESHOLDS, 0.97, 0.99, 1.0)
"""The paper's thresholds and three stricter ones."""
NONE_CERTIFIED = 1
"""Exit code where no threshold can keep the promises."""
Tables = dict[str, TurnTable]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    add("--samples", type=Path, nargs="+", required=True, help="samples.jsonl, every turn recorded")
    add("--report-on", type=Path, nargs="+", help="other samples, to measure the choice on")
    add("--calibrate-on", type=float, help="share of --samples to calibrate on (default 0.5)")
    add("--dataset", nargs="+", help="only these data sets of the samples")
    add("--max-pse", type=float, help="premature stop error at most this")
    add("--min-accuracy", type=float, help="accuracy at least this")
    add("--max-tokens", type=float, help="mean tokens per problem at most this")
    add("--token-bound", type=float, help="no problem takes more: T_max * the model's length")
    add("--confidence", type=float, default=0.9, help="of all promises together (default 0.9)")
    add("--max-turns", type=int, help="T_max (default: what was recorded)")
    add("--thresholds", type=float, nargs="+", default=GRID, help="the grid to choose from")
    add("--gate", choices=get_args(Gate), default="joint", help="what a stop needs")
    add("--evidence", choices=get_args(Evidence), default="stated", help="what gamma is held to")
    add("--agreement-threshold", type=float, help="gamma where an answer repeats the one before")
    add("--fallback", choices=get_args(Fallback), default="last", help="returned at T_max")
    add("--recalibrate", choices=tuple(FITS), help="read --thresholds on a scale fitted on half")
    add("--seed", type=int, default=0, help="of the splits")
    add("--resamples", type=int, default=RESAMPLES, help="of the bootstrap (default 1000)")
    add("--write", type=Path, metavar="POLICY", help="folder whose operating_point.json to write")
    add("--out", type=Path, help="folder; default: tune/ beside the samples")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is tuned, on which problems, and where it is measured."""

    rule: StopRule
    promises: RiskConstraints
    grid: list[float]
    max_turns: int
    calibration: Tables
    report: Tables
    """Empty if nothing was left to measure on."""
    recalibration: Recalibration | None = None


def run(options: argparse.Namespace) -> int:
    """Test, choose, measure, write, print."""
    _check_ranges(options)
    try:
        job = _job(options)
        tuning = _test(job, options)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    show_tuning(tuning, job.promises, options.confidence, job.recalibration)
    files = _write(tuning, job, options)
    Console().print(Text(", ".join(map(str, files))))
    return NONE_CERTIFIED if tuning.choice is None else 0


def _job(options: argparse.Namespace) -> Job:
    rule = StopRule(
        threshold=DEFAULT_THRESHOLD,
        gate=options.gate,
        evidence=options.evidence,
        agreement_threshold=options.agreement_threshold,
        fallback=options.fallback,
    )
    tables = _tables(options.samples, options)
    turns = recorded_turns(tables, run_configs(options.samples))
    calibration, report = _split(tables, options)
    # A gate on the verdict alone reads no confidence: there is one rule to test.
    grid = [DEFAULT_THRESHOLD] if rule.gate == "verdict" else list(options.thresholds)
    recalibration = None
    if options.recalibrate is not None:
        recalibration = recalibrate(calibration, options.recalibrate, grid, options.seed)
        calibration, grid = recalibration.held, list(recalibration.thresholds.values())
        if not grid:
            raise ConfigError(
                "--thresholds: none can be reached on the recalibrated scale; give lower ones"
            )
    return Job(
        rule=rule,
        promises=RiskConstraints(
            max_pse=options.max_pse,
            min_accuracy=options.min_accuracy,
            max_tokens=options.max_tokens,
            token_bound=options.token_bound,
        ),
        grid=grid,
        max_turns=turns if options.max_turns is None else options.max_turns,
        calibration=calibration,
        report=report,
        recalibration=recalibration,
    )


def _split(tables: Tables, options: argparse.Namespace) -> tuple[Tables, Tables]:
    """The problems to calibrate on and those to measure on; a cluster is on one side."""
    if options.report_on is not None:
        report = _tables(options.report_on, options)
        for name in tables.keys() & report.keys():
            both = set(tables[name].ids) & set(report[name].ids)
            if both:
                found = f"{name}/{min(both)}"
                raise ConfigError(f"--report-on: {found} is in --samples too; measure on others")
        return tables, report
    share = 0.5 if options.calibrate_on is None else options.calibrate_on
    chosen = {
        name: split_clusters(one.cluster, share, options.seed) for name, one in tables.items()
    }
    calibration = {name: one.select(chosen[name]) for name, one in tables.items()}
    report = {name: one.select(~chosen[name]) for name, one in tables.items()}
    if not any(one.ids for one in calibration.values()):
        raise ConfigError(f"--calibrate-on {share:g}: no problem is left; give more problems")
    return calibration, {name: one for name, one in report.items() if one.ids}


def _test(job: Job, options: argparse.Namespace) -> Tuning:
    try:
        return tune(
            [table for table in job.calibration.values() if table.ids],
            job.rule,
            job.grid,
            job.promises,
            max_turns=job.max_turns,
            delta=1 - options.confidence,
        )
    except ValueError as error:
        if "turns are there" not in str(error):
            raise
        raise ConfigError(
            f"{error}: the samples end where their run stopped, and stricter thresholds cannot be "
            "replayed; record with --model.evaluation.adaptive false, or lower --max-turns"
        ) from error


def _measure(job: Job, tables: Mapping[str, TurnTable], threshold: float, resamples: int) -> Any:
    rule = replace(job.rule, threshold=threshold)
    outcomes = {name: replay(table, rule, job.max_turns) for name, table in tables.items()}
    return diagnose(tables, outcomes, resamples=resamples)


def _write(tuning: Tuning, job: Job, options: argparse.Namespace) -> list[Path]:
    """Measure the choice; the files that were written."""
    out = options.out or options.samples[0].parent / "tune"
    rule = {name: value for name, value in asdict(job.rule).items() if name != "threshold"}
    details = {
        "promises": asdict(job.promises),
        "confidence": options.confidence,
        "max_turns": job.max_turns,
        "rule": rule,
        "problems": tuning.n,
        "clusters": tuning.clusters,
        "datasets": {name: len(table.ids) for name, table in job.calibration.items()},
        "samples": [str(path) for path in options.samples],
    }
    report: dict[str, Any] = {
        **details,
        "choice": None if tuning.choice is None else asdict(tuning.choice),
        "smallest_pse": None if job.promises.max_pse is None else tuning.smallest_pse,
        "candidates": [asdict(candidate) for candidate in tuning.candidates],
        "measured_on": {
            "samples": [str(path) for path in options.report_on or options.samples],
            "datasets": {name: len(table.ids) for name, table in job.report.items()},
        },
    }
    if job.recalibration is not None:
        report["recalibration"] = _effects(tuning, job, options)
    files = [out / "tune.json"]
    write_json(files[0], report)
    if tuning.choice is not None:
        threshold = tuning.choice.threshold
        measured = _measure(job, job.report, threshold, options.resamples)
        show_measured(measured)
        files.append(out / DIAGNOSTICS)
        write_json(files[1], {"threshold": threshold, **measured})
        if options.write is not None:
            chosen = {**details, "certified": asdict(tuning.choice)}
            files.append(write_operating_point(options.write, threshold, chosen))
    return files


def _effects(tuning: Tuning, job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Calibration before and after the map, on calibration problems it was not fitted on."""
    assert job.recalibration is not None
    point = tuning.choice or tuning.candidates[0]
    rule = replace(job.rule, threshold=point.threshold)
    held = job.recalibration.held
    outcomes = {name: replay(table, rule, job.max_turns) for name, table in held.items()}
    before, after = (
        diagnose(tables, outcomes, resamples=options.resamples)
        for tables in (held, job.recalibration.mapped)
    )
    show_effects(before, after)
    return {
        "method": options.recalibrate,
        "seed": options.seed,
        "fitted_on": job.recalibration.fitted_on,
        "stated_thresholds": job.recalibration.thresholds,
        "measured_at": point.threshold,
        "before": before,
        "after": after,
    }


def _tables(paths: list[Path], options: argparse.Namespace) -> Tables:
    tables = load_tables(paths)
    for name in options.dataset or ():
        if name not in tables:
            raise ConfigError(
                f"--dataset {name}: not in the samples, which hold {', '.join(sorted(tables))}"
            )
    chosen = {name: tables[name] for name in options.dataset or tables}
    known = any((table.verdict_probability >= 0).any() for table in chosen.values())
    if options.evidence != "stated" and not known:
        raise ConfigError(
            f"--evidence {options.evidence}: the samples hold no 'verdict_probability'; record it, "
            "or tune on what is stated"
        )
    return chosen


def _check_ranges(options: argparse.Namespace) -> None:
    """Raise ConfigError where a number or a combination makes no sense."""
    if options.max_pse is None and options.min_accuracy is None and options.max_tokens is None:
        raise ConfigError("no promise was given; give --max-pse, --min-accuracy or --max-tokens")
    for name in ("max_pse", "min_accuracy", "confidence"):
        value = getattr(options, name)
        if value is not None and not 0 < value < 1:
            raise ConfigError(f"{_flag(name)} {value:g} must lie between 0 and 1")
    share = options.calibrate_on
    if share is not None and not 0 < share <= 1:
        raise ConfigError(f"--calibrate-on {share:g} must be above 0 and at most 1")
    if share is not None and options.report_on is not None:
        raise ConfigError("--calibrate-on splits --samples; leave it out with --report-on")
    for name in ("max_tokens", "token_bound"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{_flag(name)} {value:g} must be above 0")
    check_thresholds([*options.thresholds, options.agreement_threshold])
    for name in ("max_turns", "resamples"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise ConfigError(f"{_flag(name)} {getattr(options, name)} must be at least 1")
    if options.max_tokens is not None and options.token_bound is None:
        raise ConfigError(
            "--max-tokens needs --token-bound, which no problem can exceed whatever the policy "
            "does: --max-turns times the model's length, 81920 for ten turns of 8192"
        )
    if options.recalibrate is not None and (
        options.evidence != "stated"
        or options.gate == "verdict"
        or options.agreement_threshold is not None
    ):
        raise ConfigError(
            "--recalibrate maps the stated confidence and one threshold; leave out --evidence, "
            "--gate verdict and --agreement-threshold"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
