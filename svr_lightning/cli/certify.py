r"""A threshold with guaranteed error rates on new problems, at a stated confidence.

The recordings hold every turn of every problem, and results.json with the stopping rule whose
threshold is chosen:

    svr validate --config ... --record
    svr test --config ... --record
    svr certify RUN/eval/validate --report-on RUN/eval/test --max-pse 0.10

A promise is a guaranteed limit. Of the thresholds that keep all promises and accept any answer, the
one with the fewest tokens is chosen. It is measured on other problems: those of --report-on, or the
part that is not used for calibration (--calibrate-on). --columns reads logs of another program in
place of recordings: JSON lines, csv or parquet with a row per turn. See docs/certificates.md.

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
from typing import Any

from rich.console import Console
from rich.text import Text

import svr_lightning
from svr_lightning.analysis.certificates import (
    Candidate,
    Certification,
    Promise,
    Replayed,
    certify,
    labels_needed,
    replay_rules,
    starts_of,
)
from svr_lightning.analysis.intervals import split_clusters
from svr_lightning.analysis.operating_point import (
    SCHEMA_VERSION,
    Certificate,
    weights_digest,
    write_operating_point,
)
from svr_lightning.analysis.replay import THRESHOLDS, Tables
from svr_lightning.analysis.table import TurnTable
from svr_lightning.cli.inputs import (
    EVERY_TURN,
    Recordings,
    above_zero,
    folder,
    load_recordings,
    real,
    require_tokens,
    share,
)
from svr_lightning.core.stopping import Confident
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
    "min_accuracy": ("wrong", "share of correct answers"),
    "max_tokens": ("tokens", "mean tokens per problem"),
}
"""By option, the promise and what it is about."""
_EMPTY = {
    "pse": "stop early at any threshold; promise --max-wrong-accepted instead",
    "wrong_accepted": "have an accepted answer at any threshold; lower --thresholds",
    "tokens": "can exceed --token-bound; promise fewer --max-tokens",
}
"""Why a promise cannot be broken, and what to promise instead."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    add("recordings", type=Path, nargs="*", metavar="FOLDER", help="evaluations, or logs")
    add("--columns", nargs="+", metavar="NAME=COLUMN", help="read logs: their column names")
    add("--report-on", type=Path, nargs="+", metavar="FOLDER", help="where the choice is measured")
    add("--calibrate-on", type=above_zero(1), default=0.5, help="share of the problems (0.5)")
    for option, (name, about) in _PROMISES.items():
        kind = above_zero(math.inf) if name == "tokens" else share
        most = "most" if option.startswith("max") else "least"
        add(_flag(option), type=kind, help=f"{about}, at {most}")
    add("--token-bound", type=above_zero(math.inf), help="tokens that no problem can exceed")
    add("--confidence", type=share, default=0.9, help="for all promises together (default 0.9)")
    add("--max-turns", type=int, help="T_max (default: what was recorded)")
    add("--thresholds", type=real, nargs="+", default=GRID, help="the grid to choose from")
    add("--seed", type=int, default=0, help="seed of the split")
    add("--plan", action="store_true", help="only print how many labels the promises need")
    add("--check", type=Path, metavar="CERTIFICATE", help="test its promises on the recordings")
    add("--write", type=folder, metavar="POLICY", help="policy folder for operating_point.json")
    add("--out", type=Path, help="folder; default: certify/ beside the first recording")


@dataclass(frozen=True)
class Job:
    """What is certified, and on which problems."""

    rules: list[Confident]
    promises: list[Promise]
    max_turns: int
    tables: dict[str, TurnTable]

    def __post_init__(self) -> None:
        if any(promise.name == "tokens" for promise in self.promises):
            require_tokens(self.tables.values())

    def points(self) -> list[Replayed]:
        """What each rule did."""
        try:
            return replay_rules(self.tables, self.rules, self.max_turns)
        except ValueError as error:
            raise ConfigError(
                f"{error}: every rule needs all turns up to its own stop; {EVERY_TURN}, or lower "
                "--max-turns"
            ) from error

    def sizes(self) -> tuple[int, int]:
        """Problems, and independent clusters of them."""
        tables = self.tables.values()
        clusters = sum(len(set(table.cluster.tolist())) for table in tables)
        return sum(len(table.ids) for table in tables), clusters

    def title(self, part: str) -> str:
        """The heading of a table: how many problems, and how many of them are independent."""
        problems, clusters = self.sizes()
        variants = f" ({clusters} without variants)" if clusters < problems else ""
        return f"{part}: {problems} problems{variants}, T_max = {self.max_turns}"


def run(options: argparse.Namespace) -> int:
    """Test, choose, measure, write, print; or plan, or check."""
    if options.check is not None:
        return _check(options)
    promises = _promises(options)
    require(options.seed >= 0, f"--seed {options.seed}: must not be negative")
    if options.plan:
        return _plan(promises, len(set(options.thresholds)), 1 - options.confidence)
    recorded = load_recordings(options.recordings, options.columns)
    if options.report_on is None:
        calibration, report = _split(recorded.tables, options)
    else:
        others = load_recordings(options.report_on, options.columns)
        calibration, report = recorded.tables, _disjoint(others.tables, recorded.tables)
        recorded = recorded.beside(others)
    turns = recorded.max_turns if options.max_turns is None else options.max_turns
    job = Job(_rules(recorded.gate(), options), promises, turns, calibration)
    points = job.points()
    for one in promises:
        require(
            one.can_be_broken(points),
            f"no answer could break the promise {one.name} at most "
            f"{one.limit:g} with T_max = {turns}: too few problems {_EMPTY.get(one.name)}",
        )
    found = certify(points, promises, 1 - options.confidence)
    _show(found, job, options.confidence)
    certificate = _certificate(found, job, options, recorded)
    choice = found.choice
    if choice is not None and report:
        rule = replace(job.rules[0], threshold=choice.threshold)
        title = "measured on problems that had no part in the choice"
        certificate["measured"] = _measure(replace(job, rules=[rule], tables=report), title)
    files = [(options.out or recorded.files[0].parent / "certify") / "certificate.json"]
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
    require(bool(found), f"no promise was given; give one of {', '.join(map(_flag, _PROMISES))}")
    return found


def _rules(recorded: Confident, options: argparse.Namespace) -> list[Confident]:
    """The recorded rule with every threshold of the grid."""
    found = [replace(recorded, threshold=t) for t in sorted(set(options.thresholds), reverse=True)]
    try:
        for one in found:
            one.check()
    except ValueError as error:
        raise ConfigError(f"--thresholds: {error}") from error
    return found


def _split(
    tables: Tables, options: argparse.Namespace
) -> tuple[dict[str, TurnTable], dict[str, TurnTable]]:
    """The problems to calibrate on and those to measure on; a cluster is on one side."""
    parts: tuple[dict[str, TurnTable], dict[str, TurnTable]] = {}, {}
    for name, table in tables.items():
        chosen = split_clusters(table.cluster, options.calibrate_on, options.seed)
        for part, rows in zip(parts, (chosen, ~chosen), strict=True):
            if rows.any():
                part[name] = table.select(rows)
    left = f"--calibrate-on {options.calibrate_on:g}: no problem is left; give more problems"
    require(bool(parts[0]), left)
    return parts


def _disjoint(tables: dict[str, TurnTable], others: Tables) -> dict[str, TurnTable]:
    """The tables, which share no problem with the others."""
    for name in sorted(tables.keys() & others.keys()):
        both = set(tables[name].ids) & set(others[name].ids)
        if both:
            problem = f"{name}/{min(both)} is a problem of the calibration too"
            raise ConfigError(f"--report-on: {problem}; use other problems")
    return tables


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# --- the certificate ----------------------------------------------------------------------------


def _certificate(
    found: Certification, job: Job, options: argparse.Namespace, recorded: Recordings
) -> dict[str, Any]:
    """Everything needed to apply and check the choice."""
    files = recorded.files
    rule = asdict(job.rules[0])
    return {
        "schema_version": SCHEMA_VERSION,
        "svr_lightning": svr_lightning.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": METHOD,
        "promises": [asdict(promise) for promise in job.promises],
        "confidence": options.confidence,
        "max_turns": job.max_turns,
        "rule": {name: value for name, value in rule.items() if name != "threshold"},
        "decoding": recorded.settings(),
        "policy": recorded.policy(),
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
    require(
        not (options.columns and known.rule.needs_correct),
        f"{options.check}: its rule reads verdicts, and a log has none",
    )
    recorded = load_recordings(options.recordings, options.columns)
    # The recording's own threshold is not applied.
    rule = replace(recorded.gate(), threshold=known.rule.threshold)
    if other := known.departures(rule, known.max_turns, recorded.settings()):
        raise ConfigError(f"recorded with {', '.join(other)}; record with the certified settings")
    promises = [Promise(**one) for one in known.promised]
    job = Job([known.rule], promises, known.max_turns, recorded.tables)
    found = _measure(job, str(options.check))
    level = (1 - options.confidence) / len(found)
    broken = ", ".join(name for name, one in found.items() if one["p_value_if_kept"] <= level)
    message = "no promise is shown to be broken"
    if broken:
        sure = f"with confidence {options.confidence:g}; certify again on new problems"
        message = f"no longer kept: {broken}, {sure}"
    Console().print(Text(message))
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
    names = {"accepted": "accepted", "pse": "PSE", "wrong_accepted": "wrong of acc."}
    names |= {"wrong": "wrong", "tokens": "tokens"}
    rows = [
        (number(row.threshold), *(_rate(row.rates, name) for name in names), _verdict(row))
        for row in reversed(found.candidates)
    ]
    table = text_table(("gamma", *names.values(), "certified"), merged(rows))
    promised = ", ".join(f"{one.name} at most {one.limit:g}" for one in job.promises)
    promised += f", with confidence {confidence:g}"
    lines, row = [], found.choice
    if row is not None:
        lines.append(f"threshold {number(row.threshold)}: {promised}, on new problems like these")
        bounds = ", ".join(f"{name} {bound:.4g}" for name, bound in found.bounds.items())
        lines.append(f"bounds, had only this threshold been tested: {bounds}")
    elif any(one.certified for one in found.candidates):
        lines.append(f"only thresholds that accept no answer keep the promise: {promised}")
        lines.append("relax a limit, or use more problems")
    else:
        lines.append(f"no threshold can keep the promise: {promised}")
        for name, limit in found.smallest.items():
            smallest = f"the smallest limit on {name} that these samples would certify is"
            lines.append(f"{smallest} {limit:.4g}; to promise it, use new samples")
        if not found.smallest:
            lines.append("no other limit on one promise alone would help; use more problems")
    console = Console()
    console.print(Text(job.title("calibration"), style="bold"))
    console.print(table)
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
