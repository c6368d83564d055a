r"""An operating point that keeps promises about new problems, with a stated confidence.

The recordings hold T_max greedy turns of every problem:

    python -m svr_lightning validate --config ... --model.evaluation.adaptive false
    python -m svr_lightning test --config ... --model.evaluation.adaptive false
    python -m svr_lightning certify --samples RUN/eval/validate/samples.jsonl \
        --report-on RUN/eval/test/samples.jsonl --max-pse 0.10

Every threshold of the grid is tested on the calibration problems; of those certified to keep all
promises, the one with the fewest tokens is chosen. What it does is then measured on problems that
had no part in the choice: those of --report-on, or else the rest of --samples, of which only the
share --calibrate-on calibrates. Variants of one problem stay on one side.

--columns reads the log of any other program: JSON lines, csv or parquet with a row per turn.
--plan says how many labels the promises need. --check CERTIFICATE tests on new --samples whether
the promises still hold.

The promises are about problems drawn like the calibration ones, which the policy must not have
been trained on. Several data sets count as one mixture.

Exit code 0: certified, or no drift was found; 1: nothing can be certified, or a promise no longer
holds; 2: a user's fault.
"""

import argparse
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.text import Text

import svr_lightning
from svr_lightning.cli.inputs import load_log, load_tables, recorded_turns, run_configs
from svr_lightning.core.stopping import Confident, Score
from svr_lightning.display import merged, number, text_table
from svr_lightning.errors import ConfigError, require
from svr_lightning.evaluation.certificates import (
    Candidate,
    Certification,
    OperatingPoint,
    Promise,
    certify,
    labels_needed,
    replayed_points,
    starts_of,
)
from svr_lightning.evaluation.intervals import split_clusters
from svr_lightning.evaluation.operating_point import (
    DECODING,
    read_certificate,
    weights_digest,
    write_operating_point,
)
from svr_lightning.evaluation.results import setting
from svr_lightning.evaluation.sweep import THRESHOLDS
from svr_lightning.evaluation.table import TurnTable
from svr_lightning.files import write_json

CERTIFICATE = "certificate.json"
SCHEMA_VERSION = 1
METHOD = "learn then test: fallback procedure, exact binomial tests, betting tests for clusters"
GRID = (*THRESHOLDS, 0.97, 0.99, 1.0)
"""The paper's thresholds and three stricter ones."""
BROKEN = 1
"""Exit code where nothing can be certified, or a promise no longer holds."""
_PROMISES = {
    "max_pse": ("pse", "share of problems that stop early with a wrong answer"),
    "max_wrong_accepted": ("wrong_accepted", "share of wrong ones among accepted answers"),
    "min_accuracy": ("wrong", "share of right answers"),
    "max_escalated": ("escalated", "share of problems without an accepted answer"),
    "max_tokens": ("tokens", "mean tokens per problem"),
}
"""By option, the promise and what it is about."""
Tables = dict[str, TurnTable]


def share(text: str) -> float:
    """An option's value in (0, 1]."""
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} must be above 0 and at most 1")
    return float(text)


def positive(text: str) -> float:
    """An option's value above 0."""
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return float(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    add("--samples", type=Path, nargs="+", help="samples.jsonl with every turn, or any log")
    add("--columns", nargs="+", metavar="NAME=COLUMN", help="the samples are a log: its columns")
    add("--report-on", type=Path, nargs="+", help="other samples, to measure the choice on")
    add("--calibrate-on", type=share, help="share of --samples to calibrate on (default 0.5)")
    for option, (name, about) in _PROMISES.items():
        kind, most = positive if name == "tokens" else share, option.startswith("max")
        add(_flag(option), type=kind, help=f"{about}, at {'most' if most else 'least'}")
    add("--token-bound", type=positive, help="no problem takes more: T_max * the model's length")
    add("--confidence", type=share, default=0.9, help="of all promises together (default 0.9)")
    add("--max-turns", type=int, help="T_max (default: what was recorded)")
    add("--thresholds", type=float, nargs="+", default=GRID, help="the grid to choose from")
    add("--score", choices=get_args(Score), default="confidence", help="what gamma is held to")
    add("--any-verdict", action="store_true", help="a stop does not need the verdict CORRECT")
    add("--seed", type=int, default=0, help="of the split")
    add("--plan", action="store_true", help="how many labels the promises need, and no more")
    add("--check", type=Path, metavar="CERTIFICATE", help="do its promises hold on the samples?")
    add("--write", type=Path, metavar="POLICY", help="folder whose operating_point.json to write")
    add("--out", type=Path, help="folder; default: certify/ beside the samples")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is certified, on which problems, and where it is measured."""

    rule: Confident
    promises: list[Promise]
    max_turns: int
    calibration: Tables
    report: Tables
    """Empty if nothing was left to measure on."""


def run(options: argparse.Namespace) -> int:
    """Test, choose, measure, write, print; or plan, or check."""
    if options.check is not None:
        return _check(options)
    promises = _promises(options)
    if options.plan:
        return _plan(promises, options)
    job = _job(promises, options)
    points = _points(job.calibration, job.rule, options.thresholds, job.max_turns)
    found = certify(points, promises, 1 - options.confidence)
    _show(found, job, options)
    certificate = _certificate(found, job, options)
    files = [(options.out or options.samples[0].parent / "certify") / CERTIFICATE]
    write_json(files[0], certificate)
    if found.choice is not None and options.write is not None:
        files.append(write_operating_point(options.write, found.choice.threshold, certificate))
    Console().print(Text(", ".join(map(str, files))))
    return BROKEN if found.choice is None else 0


# --- what is asked ------------------------------------------------------------------------------


def _promises(options: argparse.Namespace) -> list[Promise]:
    given = {option: getattr(options, option) for option in _PROMISES}
    require(
        any(limit is not None for limit in given.values()),
        f"no promise was given; give one of {', '.join(map(_flag, _PROMISES))}",
    )
    require(
        options.max_tokens is None or options.token_bound is not None,
        "--max-tokens needs --token-bound, which no problem can exceed whatever the policy does: "
        "--max-turns times the model's length, 81920 for ten turns of 8192",
    )
    found = []
    for option, limit in given.items():
        name, _ = _PROMISES[option]
        bound = options.token_bound if name == "tokens" else 1.0
        if limit is not None:
            most = limit if option.startswith("max") else 1 - limit
            found.append(Promise(name=name, limit=most, bound=bound))
    return found


def _job(promises: list[Promise], options: argparse.Namespace) -> Job:
    rule = Confident(score=options.score, needs_correct=not options.any_verdict)
    try:
        for threshold in options.thresholds:
            replace(rule, threshold=threshold).check()
    except ValueError as error:
        raise ConfigError(f"--thresholds: {error}") from error
    tables = _tables(options.samples, options)
    calibration, report = _split(tables, options)
    turns = options.max_turns
    if turns is None:
        turns = recorded_turns(tables, run_configs(options.samples))
    return Job(
        rule=rule, promises=promises, max_turns=turns, calibration=calibration, report=report
    )


def _tables(paths: list[Path] | None, options: argparse.Namespace) -> Tables:
    require(bool(paths), "--samples: give the recordings")
    assert paths
    tables = load_tables(paths) if options.columns is None else load_log(paths, options.columns)
    turns = (turn for table in tables.values() for turns in table.signals for turn in turns)
    require(
        any(getattr(turn, options.score) is not None for turn in turns),
        f"--score {options.score}: the samples hold no {options.score!r}; record it, or take "
        "another score",
    )
    return tables


def _split(tables: Tables, options: argparse.Namespace) -> tuple[Tables, Tables]:
    """The problems to calibrate on and those to measure on; a cluster is on one side."""
    if options.report_on is not None:
        report = _tables(options.report_on, options)
        for name in sorted(tables.keys() & report.keys()):
            if both := set(tables[name].ids) & set(report[name].ids):
                found = f"{name}/{min(both)}"
                raise ConfigError(f"--report-on: {found} is in --samples too; measure on others")
        return tables, report
    share = 0.5 if options.calibrate_on is None else options.calibrate_on
    parts: list[Tables] = [{}, {}]
    for name, table in tables.items():
        chosen = split_clusters(table.cluster, share, options.seed)
        for part, rows in zip(parts, (chosen, ~chosen), strict=True):
            if rows.any():
                part[name] = table.select(rows)
    require(bool(parts[0]), f"--calibrate-on {share:g}: no problem is left; give more problems")
    return parts[0], parts[1]


def _points(
    tables: Tables, rule: Confident, thresholds: Sequence[float], max_turns: int
) -> list[OperatingPoint]:
    try:
        return replayed_points(tables, rule, thresholds, max_turns)
    except ValueError as error:
        raise ConfigError(
            f"{error}: the samples end where their run stopped, and stricter thresholds cannot be "
            "replayed; record with --model.evaluation.adaptive false, or lower --max-turns"
        ) from error


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# --- the certificate ----------------------------------------------------------------------------


def _certificate(found: Certification, job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that somebody needs to trust, apply or check the choice."""
    config = run_configs(options.samples)[0]
    evaluation = setting(config, "model", "evaluation") or {}
    content = {
        "schema_version": SCHEMA_VERSION,
        "svr_lightning": svr_lightning.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": METHOD,
        "promises": [asdict(promise) for promise in job.promises],
        "confidence": options.confidence,
        "max_turns": job.max_turns,
        "rule": {k: v for k, v in asdict(job.rule).items() if k != "threshold"},
        "decoding": {name: evaluation[name] for name in DECODING if name in evaluation},
        "policy": setting(config, "model", "policy", "path"),
        "weights": None if options.write is None else weights_digest(options.write),
        "data": {
            "samples": [str(path) for path in options.samples],
            "sha256": [hashlib.sha256(path.read_bytes()).hexdigest() for path in options.samples],
            "datasets": {name: len(table.ids) for name, table in job.calibration.items()},
            "clusters": _sizes(job.calibration)[1],
        },
        "certified": None if found.choice is None else asdict(found.choice),
        "bounds": found.bounds,
        "smallest": found.smallest,
        "candidates": [asdict(row) for row in found.candidates],
        "measured": None,
    }
    if found.choice is not None and job.report:
        rule = replace(job.rule, threshold=found.choice.threshold)
        title = "measured on problems that had no part in the choice"
        content["measured"] = _measure(job.promises, rule, job.report, job.max_turns, title)
    return content


def _measure(
    promises: Sequence[Promise], rule: Confident, tables: Tables, max_turns: int, title: str
) -> dict[str, dict[str, float]]:
    """What the promises are about on other problems, and whether these speak against them."""
    (point,) = _points(tables, rule, [rule.threshold], max_turns)
    rates = point.rates
    found = {
        one.name: {
            "limit": one.limit,
            "rate": rates[one.name],
            "p_value_if_kept": one.drift_p_value(point),
        }
        for one in promises
    }
    rows = [
        (name, number(one["limit"]), _rate(rates, name), f"{one['p_value_if_kept']:.3g}")
        for name, one in found.items()
    ]
    heads = ("promise", "at most", f"here, {_sizes(tables)[0]} problems", "p-value if kept")
    Console().print(text_table(heads, rows, title))
    return found


def _check(options: argparse.Namespace) -> int:
    """Test each promise of a certificate on new problems, whatever they are."""
    content = read_certificate(options.check)
    promises = [Promise(**one) for one in content["promises"]]
    rule = Confident(**{**content["rule"], "threshold": content["certified"]["threshold"]})
    tables = _tables(options.samples, options)
    found = _measure(promises, rule, tables, content["max_turns"], str(options.check))
    level = (1 - options.confidence) / len(promises)
    broken = [name for name, one in found.items() if one["p_value_if_kept"] <= level]
    told = "no promise is shown to be broken"
    if broken:
        told = f"no longer kept: {', '.join(broken)}, with confidence {options.confidence:g}"
        told += "; certify again on new problems"
    Console().print(Text(told))
    return BROKEN if broken else 0


def _plan(promises: list[Promise], options: argparse.Namespace) -> int:
    """How many labels the first test of each promise on a share needs."""
    level = (1 - options.confidence) / starts_of(promises, len(set(options.thresholds)))
    rows = []
    for one in (promise for promise in promises if promise.name != "tokens"):
        for share in (part * one.limit for part in (0.0, 0.25, 0.5, 0.75)):
            needed = labels_needed(one.limit, share, level)
            rows.append((one.name, number(one.limit), number(share), str(needed)))
    console = Console()
    heads = ("promise", "at most", "if it really is", "independent labels")
    console.print(text_table(heads, rows, "labels for a certificate in nine cases of ten"))
    notes = "Variants of one problem count as one; wrong_accepted needs as many accepted answers."
    console.print(Text(f"{notes} Fewer --thresholds need fewer: each is tested at {level:.3g}."))
    return 0


# --- the terminal -------------------------------------------------------------------------------


def _show(found: Certification, job: Job, options: argparse.Namespace) -> None:
    """Every threshold, then the choice or why there is none."""
    console = Console()
    names = ("accepted", "pse", "wrong_accepted", "wrong", "tokens")
    rows = [
        (number(row.threshold), *(_rate(row.rates, name) for name in names), _verdict(row))
        for row in reversed(found.candidates)
    ]
    heads = ("gamma", "accepted", "PSE", "wrong of acc.", "wrong", "tokens", "certified")
    problems, clusters = _sizes(job.calibration)
    title = f"calibration: {problems} problems"
    if clusters < problems:
        title += f", which count as {clusters} (variants of one problem are one)"
    console.print(text_table(heads, merged(rows), title))
    promised = ", ".join(f"{one.name} at most {one.limit:g}" for one in job.promises)
    promised += f", with confidence {options.confidence:g}"
    lines = []
    if found.choice is None:
        lines.append(f"no threshold can keep the promise: {promised}")
        for name, limit in found.smallest.items():
            told = f"the smallest limit on {name} that these samples would certify is {limit:.4g}"
            lines.append(f"{told}; promise it of new samples, or use more problems")
        if not found.smallest:
            lines.append("no other limit on one promise alone would help")
    else:
        row = found.choice
        lines.append(f"threshold {row.threshold:.4g}: {promised}, on new problems like these")
        told = ", ".join(f"{name} {bound:.4g}" for name, bound in found.bounds.items())
        lines.append(f"bounds, had only this threshold been tested: {told}")
        if row.rates["accepted"] == 0:
            turns = f"every problem takes all its {row.rates['turns']:.3g} turns"
            lines.append(f"this never stops: {turns}; promise less, or give more problems")
    for line in lines:
        console.print(Text(line))


def _rate(rates: Mapping[str, float], name: str) -> str:
    if math.isnan(rates[name]):
        return "-"
    return f"{rates[name]:.0f}" if name == "tokens" else f"{rates[name]:.3f}"


def _verdict(row: Candidate) -> str:
    if row.certified:
        return "yes"
    if row.level == 0:
        return "not tested"
    return f"no: {row.broken[0]}{' ...' * (len(row.broken) > 1)}"


def _sizes(tables: Tables) -> tuple[int, int]:
    """Problems, and independent clusters of them."""
    clusters = sum(len(set(table.cluster.tolist())) for table in tables.values())
    return sum(len(table.ids) for table in tables.values()), clusters
