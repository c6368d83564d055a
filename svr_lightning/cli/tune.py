"""A threshold that keeps promises about new problems, with a stated confidence.

The recording holds T_max greedy turns of every calibration problem:

    python -m svr_lightning test --config ... --model.evaluation.adaptive false
    python -m svr_lightning tune --samples RUN/eval/test/samples.jsonl --max-pse 0.10

Every threshold of the grid is tested; of those certified to keep all promises, the one with the
fewest tokens is chosen. The promise is about problems drawn like those given: several data sets
count as one mixture, and --dataset narrows it. They must be neither the problems that the policy
was trained on nor the ones that results are reported on.

Exit code 0: a threshold was chosen; 1: no threshold can keep the promises; 2: a user's fault.
"""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.text import Text

from svr_lightning.cli.samples import check_thresholds, load_tables
from svr_lightning.cli.tune_tables import show_effects, show_tuning
from svr_lightning.core.stopping import DEFAULT_THRESHOLD, Evidence, Fallback, Gate, StopRule
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.diagnostics import DIAGNOSTICS, diagnose
from svr_lightning.evaluation.intervals import RESAMPLES
from svr_lightning.evaluation.operating_point import write_operating_point
from svr_lightning.evaluation.recalibration import FITS, Recalibration, recalibrate
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.sweep import THRESHOLDS
from svr_lightning.evaluation.table import TurnTable
from svr_lightning.evaluation.tuning import RiskConstraints, Tuning, tune
from svr_lightning.files import write_json

GRID = (*THRESHOLDS, 0.97, 0.99, 1.0)
"""The paper's thresholds and three stricter ones."""
NONE_CERTIFIED = 1
"""Exit code where no threshold can keep the promises."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line may say."""
    add = parser.add_argument
    add("--samples", type=Path, nargs="+", required=True, help="samples.jsonl, every turn recorded")
    add("--dataset", nargs="+", help="only these data sets of the samples")
    add("--max-pse", type=float, help="premature stop error at most this")
    add("--min-accuracy", type=float, help="accuracy at least this")
    add("--max-tokens", type=float, help="mean tokens per problem at most this")
    add("--token-bound", type=float, help="no problem takes more: T_max * the model's length")
    add("--confidence", type=float, default=0.9, help="of all promises together (default 0.9)")
    add("--max-turns", type=int, default=10, help="T_max (default 10)")
    add("--thresholds", type=float, nargs="+", default=GRID, help="the grid to choose from")
    add("--gate", choices=get_args(Gate), default="joint", help="what a stop needs")
    add("--evidence", choices=get_args(Evidence), default="stated", help="what gamma is held to")
    add("--agreement-threshold", type=float, help="gamma where an answer repeats the one before")
    add("--fallback", choices=get_args(Fallback), default="last", help="returned at T_max")
    add("--recalibrate", choices=tuple(FITS), help="read --thresholds on a scale fitted on half")
    add("--seed", type=int, default=0, help="of the split that --recalibrate makes")
    add("--resamples", type=int, default=RESAMPLES, help="of the bootstrap (default 1000)")
    add("--write", type=Path, metavar="POLICY", help="folder whose operating_point.json to write")
    add("--out", type=Path, help="folder; default: tune/ beside the samples")


def run(options: argparse.Namespace) -> int:
    """Test, choose, write, print."""
    _check_ranges(options)
    rule = StopRule(
        threshold=DEFAULT_THRESHOLD,
        gate=options.gate,
        evidence=options.evidence,
        agreement_threshold=options.agreement_threshold,
        fallback=options.fallback,
    )
    promises = RiskConstraints(
        max_pse=options.max_pse,
        min_accuracy=options.min_accuracy,
        max_tokens=options.max_tokens,
        token_bound=options.token_bound,
    )
    tables = _tables(options)
    # A gate on the verdict alone reads no confidence: there is one rule to test.
    grid = [DEFAULT_THRESHOLD] if rule.gate == "verdict" else options.thresholds
    recalibration = None
    try:
        if options.recalibrate is not None:
            recalibration = recalibrate(tables, options.recalibrate, grid, options.seed)
            tables, grid = recalibration.held, list(recalibration.thresholds.values())
        tuning = _test(tables, rule, grid, promises, options)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    show_tuning(tuning, promises, options.confidence, recalibration)
    files = _write(tuning, tables, rule, promises, recalibration, options)
    Console().print(Text(", ".join(map(str, files))))
    return NONE_CERTIFIED if tuning.choice is None else 0


def _test(
    tables: Mapping[str, TurnTable],
    rule: StopRule,
    grid: list[float],
    promises: RiskConstraints,
    options: argparse.Namespace,
) -> Tuning:
    if not grid:
        raise ConfigError(
            "--thresholds: none can be reached on the recalibrated scale; give lower ones"
        )
    try:
        return tune(
            list(tables.values()),
            rule,
            grid,
            promises,
            max_turns=options.max_turns,
            delta=1 - options.confidence,
        )
    except ValueError as error:
        if "turns are there" not in str(error):
            raise
        raise ConfigError(
            f"{error}: the samples end where their run stopped, and stricter thresholds cannot be "
            "replayed; record with --model.evaluation.adaptive false, or lower --max-turns"
        ) from error


def _write(
    tuning: Tuning,
    tables: Mapping[str, TurnTable],
    rule: StopRule,
    promises: RiskConstraints,
    recalibration: Recalibration | None,
    options: argparse.Namespace,
) -> list[Path]:
    """The files that were written."""
    out = options.out or options.samples[0].parent / "tune"
    point = tuning.choice or tuning.candidates[0]
    outcomes = {
        name: replay(table, replace(rule, threshold=point.threshold), options.max_turns)
        for name, table in tables.items()
    }
    needed = tuning.choice is not None or recalibration is not None
    measured = diagnose(tables, outcomes, resamples=options.resamples) if needed else {}
    details = {
        "promises": asdict(promises),
        "confidence": options.confidence,
        "max_turns": options.max_turns,
        "rule": {name: value for name, value in asdict(rule).items() if name != "threshold"},
        "problems": tuning.n,
        "datasets": {name: len(table.ids) for name, table in tables.items()},
        "samples": [str(path) for path in options.samples],
    }
    report: dict[str, Any] = {
        **details,
        "choice": None if tuning.choice is None else asdict(tuning.choice),
        "smallest_pse": None if promises.max_pse is None else tuning.smallest_pse,
        "candidates": [asdict(candidate) for candidate in tuning.candidates],
    }
    if recalibration is not None:
        after = diagnose(recalibration.mapped, outcomes, resamples=options.resamples)
        show_effects(measured, after)
        report["recalibration"] = {
            "method": options.recalibrate,
            "seed": options.seed,
            "fitted_on": recalibration.fitted_on,
            "stated_thresholds": recalibration.thresholds,
            "measured_at": point.threshold,
            "before": measured,
            "after": after,
        }
    files = [out / "tune.json"]
    write_json(files[0], report)
    if tuning.choice is not None:
        files.append(out / DIAGNOSTICS)
        write_json(files[1], {"threshold": point.threshold, **measured})
        if options.write is not None:
            chosen = {**details, "certified": asdict(tuning.choice)}
            files.append(write_operating_point(options.write, point.threshold, chosen))
    return files


def _tables(options: argparse.Namespace) -> dict[str, TurnTable]:
    tables = load_tables(options.samples)
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
    for name in ("max_tokens", "token_bound"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{_flag(name)} {value:g} must be above 0")
    check_thresholds([*options.thresholds, options.agreement_threshold])
    for name in ("max_turns", "resamples"):
        if getattr(options, name) < 1:
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
