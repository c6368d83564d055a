r"""A threshold with guaranteed error rates on new problems, at a stated confidence.

The recordings hold T_max greedy turns of every problem:

    python -m svr_lightning validate --config ... --model.evaluation.adaptive false
    python -m svr_lightning test --config ... --model.evaluation.adaptive false
    python -m svr_lightning certify --samples RUN/eval/validate/samples.jsonl \
        --report-on RUN/eval/test/samples.jsonl --max-pse 0.10

A promise is a guaranteed limit. Of the thresholds that keep all promises, the one with the fewest
tokens is chosen. It is measured on other problems: those of --report-on, or the part of --samples
that is not used for calibration (--calibrate-on).

--give-up adds thresholds below which a trajectory ends without an answer. --second has a second
model's answers to the same problems: problems without an accepted answer are escalated to it, and
the promises on accuracy and tokens are about the pair. --columns reads the log of another program:
JSON lines, csv or parquet with a row per turn. Explanations: docs/certificates.md.

Exit code 0: certified, or no drift was found; 1: nothing can be certified, or a promise no longer
holds; 2: an error of the user.
"""

import argparse
import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.text import Text

import svr_lightning
from svr_lightning.analysis.certificates import (
    Candidate,
    Certification,
    OperatingPoint,
    Promise,
    certify,
    labels_needed,
    replayed_points,
    starts_of,
)
from svr_lightning.analysis.intervals import split_clusters
from svr_lightning.analysis.operating_point import (
    SCHEMA_VERSION,
    Certificate,
    weights_digest,
    write_operating_point,
)
from svr_lightning.analysis.sweep import THRESHOLDS
from svr_lightning.analysis.table import TurnTable
from svr_lightning.cli.inputs import (
    above_zero,
    folder,
    load_recordings,
    real,
    recorded_policy,
    recorded_settings,
    recorded_turns,
    require_score,
    require_tokens,
    run_configs,
    share,
)
from svr_lightning.core.stopping import Confident, Score
from svr_lightning.display import merged, number, text_table
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import write_json

METHOD = "learn then test: fallback procedure, exact binomial tests, betting tests for clusters"
GRID = (*THRESHOLDS, 0.97, 0.99, 1.0)
"""The paper's thresholds and three stricter ones."""
BROKEN = 1
"""Exit code where nothing can be certified, or a promise no longer holds."""
_PROMISES = {
    "max_pse": ("pse", "share of problems that stop early with a wrong answer"),
    "max_wrong_accepted": ("wrong_accepted", "share of wrong answers among accepted ones"),
    "max_given_up_wrongly": ("given_up_wrongly", "share given up that more turns would solve"),
    "min_accuracy": ("wrong", "share of correct answers"),
    "max_escalated": ("escalated", "share of problems without an accepted answer"),
    "max_tokens": ("tokens", "mean tokens per problem"),
}
"""By option, the promise and what it is about."""
Tables = dict[str, TurnTable]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    add("--samples", type=Path, nargs="+", help="samples.jsonl with every turn, or a log")
    add("--second", type=Path, nargs="+", help="a second model's samples of the same problems")
    add("--columns", nargs="+", metavar="NAME=COLUMN", help="read a log: its column names")
    add("--report-on", type=Path, nargs="+", help="other samples, on which to measure the choice")
    add("--calibrate-on", type=above_zero(1), default=0.5, help="share of --samples (0.5)")
    for option, (name, about) in _PROMISES.items():
        kind = above_zero(math.inf) if name == "tokens" else share
        most = "most" if option.startswith("max") else "least"
        add(_flag(option), type=kind, help=f"{about}, at {most}")
    add("--token-bound", type=above_zero(math.inf), help="tokens that no problem can exceed")
    add("--confidence", type=share, default=0.9, help="for all promises together (default 0.9)")
    add("--max-turns", type=int, help="T_max (default: what was recorded)")
    add("--thresholds", type=real, nargs="+", default=GRID, help="the grid to choose from")
    add("--give-up", type=real, nargs="+", default=(0.0,), help="lower thresholds (0: none)")
    add("--score", choices=get_args(Score), default="confidence", help="score compared with gamma")
    add("--any-verdict", action="store_true", help="a stop does not need the verdict CORRECT")
    add("--seed", type=int, default=0, help="seed of the split")
    add("--plan", action="store_true", help="only print how many labels the promises need")
    add("--check", type=Path, metavar="CERTIFICATE", help="test its promises on the samples")
    add("--write", type=folder, metavar="POLICY", help="policy folder for operating_point.json")
    add("--out", type=Path, help="folder; default: certify/ beside the samples")


@dataclass(frozen=True)
class Job:
    """What is certified, and on which problems."""

    rules: list[Confident]
    promises: list[Promise]
    max_turns: int
    tables: Tables
    second: Tables | None

    def __post_init__(self) -> None:
        if any(promise.name == "tokens" for promise in self.promises):
            require_tokens([*self.tables.values(), *(self.second or {}).values()])

    def points(self) -> list[OperatingPoint]:
        """What each rule did."""
        try:
            return replayed_points(self.tables, self.rules, self.max_turns, self.second)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(
                f"{error}: every rule needs all turns up to its own stop; record with "
                "--model.evaluation.adaptive false, or lower --max-turns"
            ) from error

    def sizes(self) -> tuple[int, int]:
        """Problems, and independent clusters of them."""
        tables = self.tables.values()
        clusters = sum(len(set(table.cluster.tolist())) for table in tables)
        return sum(len(table.ids) for table in tables), clusters


def run(options: argparse.Namespace) -> int:
    """Test, choose, measure, write, print; or plan, or check."""
    if options.check is not None:
        return _check(options)
    promises = _promises(options)
    rules = _rules(options)
    require(options.seed >= 0, f"--seed {options.seed}: must not be negative")
    if options.plan:
        return _plan(promises, len(rules), 1 - options.confidence)
    tables = _tables(options.samples, options)
    calibration, report = _split(tables, options)
    configs = run_configs([*options.samples, *(options.report_on or [])])
    recorded = recorded_turns(tables, configs)
    origin = {"decoding": recorded_settings(configs, tables), "policy": recorded_policy(configs)}
    turns = recorded if options.max_turns is None else options.max_turns
    job = Job(rules, promises, turns, calibration, _second(options))
    found = certify(job.points(), promises, 1 - options.confidence)
    _show(found, job, options.confidence)
    certificate = _certificate(found, job, options, origin)
    choice = found.choice
    if choice is not None and report:
        rule = replace(rules[0], threshold=choice.threshold, give_up=choice.give_up)
        title = "measured on problems that had no part in the choice"
        certificate["measured"] = _measure(replace(job, rules=[rule], tables=report), title)
    files = [(options.out or options.samples[0].parent / "certify") / "certificate.json"]
    write_json(files[0], certificate)
    if choice is not None and options.write is not None:
        files.append(write_operating_point(options.write, choice.threshold, certificate))
    Console().print(Text(", ".join(map(str, files))))
    return BROKEN if choice is None else 0


# --- what is asked ------------------------------------------------------------------------------


def _promises(options: argparse.Namespace) -> list[Promise]:
    require(
        options.max_tokens is None or options.token_bound is not None,
        "--max-tokens needs --token-bound, which no problem can exceed whatever the policy does: "
        "--max-turns times the model's length, 81920 for ten turns of 8192",
    )
    found = []
    for option, (name, _) in _PROMISES.items():
        if (limit := getattr(options, option)) is not None:
            most = limit if option.startswith("max") else 1 - limit
            bound = options.token_bound if name == "tokens" else 1.0
            found.append(Promise(name=name, limit=most, bound=bound))
    asked = ", ".join(map(_flag, _PROMISES))
    require(bool(found), f"no promise was given; give one of {asked}")
    return found


def _rules(options: argparse.Namespace) -> list[Confident]:
    """Every threshold with every lower one that is not above it."""
    verdicts = not (options.any_verdict or options.columns)  # a log has none
    rule = Confident(score=options.score, needs_correct=verdicts)
    pairs = sorted(set(product(options.thresholds, options.give_up)), reverse=True)
    found = [
        replace(rule, threshold=high, give_up=low) for high, low in pairs if low <= max(high, 0)
    ]
    require(bool(found), "--give-up: every one is above every one of --thresholds")
    try:
        for one in found:
            one.check()
    except ValueError as error:
        raise ConfigError(f"--thresholds, --give-up: {error}") from error
    return found


def _second(options: argparse.Namespace) -> Tables | None:
    return None if options.second is None else load_recordings(options.second, options.columns)


def _tables(paths: list[Path] | None, options: argparse.Namespace) -> Tables:
    require(bool(paths), "--samples: give the recordings")
    assert paths
    tables = load_recordings(paths, options.columns)
    require_score(tables, options.score)
    return tables


def _split(tables: Tables, options: argparse.Namespace) -> tuple[Tables, Tables]:
    """The problems to calibrate on and those to measure on; a cluster is on one side."""
    if options.report_on is not None:
        report = _tables(options.report_on, options)
        for name in sorted(tables.keys() & report.keys()):
            if both := set(tables[name].ids) & set(report[name].ids):
                found = f"{name}/{min(both)}"
                raise ConfigError(f"--report-on: {found} is in --samples too; use other problems")
        return tables, report
    parts: list[Tables] = [{}, {}]
    for name, table in tables.items():
        chosen = split_clusters(table.cluster, options.calibrate_on, options.seed)
        for part, rows in zip(parts, (chosen, ~chosen), strict=True):
            if rows.any():
                part[name] = table.select(rows)
    left = f"--calibrate-on {options.calibrate_on:g}: no problem is left; give more problems"
    require(bool(parts[0]), left)
    return parts[0], parts[1]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# --- the certificate ----------------------------------------------------------------------------


def _certificate(
    found: Certification, job: Job, options: argparse.Namespace, origin: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything needed to apply and check the choice."""
    files = [*options.samples, *(options.second or [])]
    rule = asdict(job.rules[0])
    return {
        "schema_version": SCHEMA_VERSION,
        "svr_lightning": svr_lightning.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": METHOD,
        "promises": [asdict(promise) for promise in job.promises],
        "confidence": options.confidence,
        "max_turns": job.max_turns,
        "rule": {k: v for k, v in rule.items() if k not in ("threshold", "give_up")},
        "otherwise": "answer" if job.second is None else "escalate",
        **origin,
        "weights": None if options.write is None else weights_digest(options.write),
        "data": {
            "samples": [str(path) for path in files],
            "sha256": [hashlib.sha256(path.read_bytes()).hexdigest() for path in files],
            "datasets": {name: len(table.ids) for name, table in job.tables.items()},
            "clusters": job.sizes()[1],
        },
        "certified": None if found.choice is None else asdict(found.choice),
        "bounds": found.bounds,
        "smallest": found.smallest,
        "candidates": [asdict(row) for row in found.candidates],
        "measured": None,
    }


def _measure(job: Job, title: str) -> dict[str, dict[str, float]]:
    """The promised rates on other problems, and p-values against the promises."""
    (point,) = job.points()
    found, rows = {}, []
    for one in job.promises:
        rate, p_value = point.rates[one.name], one.drift_p_value(point)
        found[one.name] = {"limit": one.limit, "rate": rate, "p_value_if_kept": p_value}
        rows.append((one.name, number(one.limit), _rate(point.rates, one.name), f"{p_value:.3g}"))
    heads = ("promise", "at most", f"here, {job.sizes()[0]} problems", "p-value if kept")
    Console().print(text_table(heads, rows, title))
    return found


def _check(options: argparse.Namespace) -> int:
    """Test each promise of a certificate on new problems."""
    known = Certificate.read(options.check)
    options.score = known.rule.score
    require(
        (known.otherwise == "escalate") == (options.second is not None),
        f"{options.check}: --second is for certificates with a second model, and they need it",
    )
    require(
        not (options.columns and known.rule.needs_correct),
        f"{options.check}: its rule reads verdicts, and a log has none",
    )
    promises = [Promise(**one) for one in known.promised]
    tables = _tables(options.samples, options)
    recorded = recorded_settings(run_configs(options.samples), tables)
    if other := known.departures(known.rule, known.max_turns, recorded, known.otherwise):
        raise ConfigError(f"--samples: recorded with {', '.join(other)}")
    job = Job([known.rule], promises, known.max_turns, tables, _second(options))
    found = _measure(job, str(options.check))
    level = (1 - options.confidence) / len(found)
    broken = ", ".join(name for name, one in found.items() if one["p_value_if_kept"] <= level)
    sure = f"with confidence {options.confidence:g}; certify again on new problems"
    told = f"no longer kept: {broken}, {sure}" if broken else "no promise is shown to be broken"
    Console().print(Text(told))
    return BROKEN if broken else 0


def _plan(promises: list[Promise], size: int, delta: float) -> int:
    """How many labels the first test of each promise on a share needs."""
    level = delta / starts_of(promises, size)
    rows = []
    shares = [one for one in promises if one.name != "tokens"]
    for one, part in product(shares, (0.0, 0.25, 0.5, 0.75)):
        needed = labels_needed(one.limit, part * one.limit, level)
        rows.append((one.name, number(one.limit), number(part * one.limit), str(needed)))
    heads = ("promise", "at most", "if the true rate is", "independent labels")
    Console().print(text_table(heads, rows, "labels for a certificate in nine cases of ten"))
    notes = "Variants of one problem count as one; wrong_accepted needs as many accepted answers."
    Console().print(Text(f"{notes} Fewer --thresholds need fewer: each is tested at {level:.3g}."))
    return 0


# --- the terminal -------------------------------------------------------------------------------


def _show(found: Certification, job: Job, confidence: float) -> None:
    """Every threshold, then the choice or why there is none."""
    console = Console()
    names = {"accepted": "accepted", "pse": "PSE", "wrong_accepted": "wrong of acc."}
    if any(row.give_up for row in found.candidates):
        names |= {"gave_up": "up", "given_up_wrongly": "wrongly"}
    names |= {"wrong": "wrong", "tokens": "tokens"}
    rows = [
        (_levels(row), *(_rate(row.rates, name) for name in names), _verdict(row))
        for row in reversed(found.candidates)
    ]
    problems, clusters = job.sizes()
    title = f"calibration: {problems} problems"
    if clusters < problems:
        title += f", which count as {clusters} (variants of one problem are one)"
    console.print(text_table(("gamma", *names.values(), "certified"), merged(rows), title))
    promised = ", ".join(f"{one.name} at most {one.limit:g}" for one in job.promises)
    promised += f", with confidence {confidence:g}"
    lines, row = [], found.choice
    if row is None:
        lines.append(f"no threshold can keep the promise: {promised}")
        for name, limit in found.smallest.items():
            told = f"the smallest limit on {name} that these samples would certify is {limit:.4g}"
            lines.append(f"{told}; to promise it, use new samples; or use more problems")
        if not found.smallest:
            lines.append("no other limit on one promise alone would help")
    else:
        lines.append(f"threshold {_levels(row)}: {promised}, on new problems like these")
        told = ", ".join(f"{name} {bound:.4g}" for name, bound in found.bounds.items())
        lines.append(f"bounds, had only this threshold been tested: {told}")
        if row.rates["accepted"] == 0:
            turns = f"every problem takes all its {row.rates['turns']:.3g} turns"
            lines.append(f"this never stops: {turns}; relax a limit, or use more problems")
    for line in lines:
        console.print(Text(line))


def _levels(row: Candidate) -> str:
    return number(row.threshold) + (f" or < {row.give_up:g}" if row.give_up else "")


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
