r"""A threshold with guaranteed error rates on new problems, at a stated confidence.

The recording holds every turn of every problem, and results.json the stopping rule whose threshold
is chosen:

    svr validate --config ... --record
    svr certify RUN/eval/validate --max-pse 0.10

A promise is a guaranteed limit. Of the thresholds that keep all promises and accept any answer, the
one with the fewest tokens is chosen. It is measured on the problems that are not used for
calibration (--calibrate-on), and by --check on those of any other recording. The log of another
program may stand in place of the folder: JSON lines, csv or parquet with a row per turn, whose
columns --columns names. See docs/certificates.md.

Exit code 0: certified, or no drift was found; 1: nothing can be certified, or a promise no longer
holds; 2: an error of the user.
"""

import argparse
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, get_args

from msgspec import to_builtins
from rich.console import Console
from rich.text import Text

import svr_lightning
from svr_lightning.analysis.certificates import (
    Candidate,
    Replayed,
    candidates_of,
    cheapest,
    labels_needed,
    replay_rules,
    start_levels,
)
from svr_lightning.analysis.intervals import split_clusters
from svr_lightning.analysis.logs import read_recording
from svr_lightning.analysis.operating_point import (
    SCHEMA_VERSION,
    Certificate,
    Name,
    Promise,
    weights_digest,
    write_operating_point,
)
from svr_lightning.analysis.replay import THRESHOLDS, Tables
from svr_lightning.analysis.results import RESULTS, Evaluation, certified_settings, setting
from svr_lightning.analysis.table import TurnTable, pool
from svr_lightning.core.stopping import Confident
from svr_lightning.display import number, text_table
from svr_lightning.errors import ConfigError, faults_of, require
from svr_lightning.files import write_json

METHOD = "learn then test: fallback procedure, exact binomial tests, betting tests for clusters"
GRID = (*THRESHOLDS, 0.97, 0.99, 1.0)
"""The paper's thresholds and three stricter ones."""
BROKEN = 1
"""Exit code where nothing can be certified, or a promise no longer holds."""


# --- options ------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    share = _number("above 0 and below 1", lambda value: 0 < value < 1)
    part = _number("above 0 and at most 1", lambda value: 0 < value <= 1)
    tokens = _number("above 0", lambda value: 0 < value < math.inf)
    add("recording", type=Path, nargs="?", metavar="FOLDER", help="an evaluation, or a log")
    add("--columns", nargs="+", metavar="NAME=COLUMN", help="read a log: its column names")
    add("--calibrate-on", type=part, default=0.5, help="share of the problems (0.5)")
    early = "share of problems that stop early with a wrong answer, at most"
    add("--max-pse", type=share, dest="pse", help=early)
    accepted = "share of wrong answers among accepted ones, at most"
    add("--max-wrong-accepted", type=share, dest="wrong_accepted", help=accepted)
    add("--min-accuracy", type=share, dest="wrong", help="share of correct answers, at least")
    add("--max-tokens", type=tokens, dest="tokens", help="mean tokens per problem, at most")
    add("--token-bound", type=tokens, help="tokens that no problem can exceed")
    add("--confidence", type=share, default=0.9, help="for all promises together (default 0.9)")
    add("--max-turns", type=int, help="T_max (default: what was recorded)")
    real = _number("a number", lambda value: not math.isnan(value))
    add("--thresholds", type=real, nargs="+", default=GRID, help="the grid to choose from")
    add("--plan", action="store_true", help="only print how many labels the promises need")
    add("--check", type=Path, metavar="CERTIFICATE", help="test its promises on the recording")
    add("--write", type=Path, metavar="POLICY", help="policy folder for operating_point.json")
    add("--out", type=Path, help="folder; default: certify/ beside the recording")


def _number(wanted: str, holds: Callable[[float], bool]) -> Callable[[str], float]:
    """An option's value for which a condition ``holds``, which is ``wanted`` in words."""

    def value(text: str) -> float:
        if not holds(float(text)):
            raise argparse.ArgumentTypeError(f"{text} must be {wanted}")
        return float(text)

    return value


def _promises(options: argparse.Namespace) -> list[Promise]:
    names = get_args(Name)
    given = {name: limit for name in names if (limit := getattr(options, name)) is not None}
    require(
        bool(given),
        "no promise was given; give --max-pse, --max-wrong-accepted, --min-accuracy or "
        "--max-tokens",
    )
    bound = options.token_bound
    require(
        "tokens" not in given or bound is not None,
        "--max-tokens needs --token-bound, which no problem can exceed whatever the policy does: "
        "--max-turns times the model's length, 81920 for ten turns of 8192",
    )
    if "wrong" in given:
        given["wrong"] = 1 - given["wrong"]
    return [
        Promise(name=name, limit=limit, bound=bound if name == "tokens" else 1.0)
        for name, limit in given.items()
    ]


# --- the command --------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Test, choose, measure, write, print; or plan, or check."""
    if options.check is not None:
        return _check(options)
    promises, delta = _promises(options), 1 - options.confidence
    policy = options.write
    require(policy is None or policy.is_dir(), f"--write: {policy}: no such folder")
    if options.plan:
        return _plan(promises, len(set(options.thresholds)), delta)
    recorded, gate = _recording(options)
    calibration, report = _split(recorded.tables, options.calibrate_on)
    turns = recorded.max_turns if options.max_turns is None else options.max_turns
    points = _replay(calibration, _rules(gate, options.thresholds), promises, turns)
    require(
        any(point.rates["accepted"] for point in points),
        f"the rule, {gate}, accepts no answer at any of the thresholds; give other "
        "--thresholds, or record what the rule reads",
    )
    for one in promises:
        require(
            any(one.can_be_broken(point.rates) for point in points),
            f"no answer could break the promise {one} with T_max = {turns}, so it says nothing; "
            "make another one, such as --max-wrong-accepted, or give other --thresholds",
        )
    candidates = candidates_of(points, promises, delta)
    choice = cheapest(candidates, promises)
    promised = f"{', '.join(map(str, promises))}, with confidence {options.confidence:g}"
    _show(candidates, choice, promised, f"calibration: {_sizes(calibration)[2]}{turns}")
    certificate = _certificate(promises, calibration, recorded, options)
    certificate |= {"max_turns": turns, "rule": asdict(gate), "measured": None}
    del certificate["rule"]["threshold"]
    certificate |= {"certified": to_builtins(choice), "candidates": to_builtins(candidates)}
    if choice is not None and report:
        rule = replace(gate, threshold=choice.threshold)
        title = "measured on problems that had no part in the choice"
        certificate["measured"] = _measure(report, rule, promises, turns, title)
    files = [(options.out or recorded.samples.parent / "certify") / "certificate.json"]
    write_json(files[0], certificate)
    if choice is not None and policy is not None:
        files.append(write_operating_point(policy, choice.threshold, certificate))
    Console().print(Text(", ".join(map(str, files))))
    return BROKEN if choice is None else 0


def _recording(options: argparse.Namespace) -> tuple[Evaluation, Confident]:
    """The recording and its rule, which has a threshold."""
    require(options.recording is not None, "give the folder of an evaluation: RUN/eval/NAME")
    recorded = read_recording(options.recording, options.columns or ())
    rule = recorded.rule
    if not isinstance(rule, Confident):
        raise ConfigError(
            f"{recorded.samples.parent / RESULTS}: its stopping rule, {rule}, has no threshold "
            "to choose; evaluate with one that has (model.evaluation.stop: Confident)"
        )
    return recorded, rule


def _rules(recorded: Confident, thresholds: Sequence[float]) -> list[Confident]:
    """The recorded rule with every threshold of the grid."""
    descending = sorted(set(thresholds), reverse=True)
    with faults_of("--thresholds: "):
        return [replace(recorded, threshold=threshold) for threshold in descending]


def _split(tables: Tables, share: float) -> tuple[dict[str, TurnTable], dict[str, TurnTable]]:
    """The problems to calibrate on and those to measure on; a cluster is on one side."""
    parts: tuple[dict[str, TurnTable], dict[str, TurnTable]] = {}, {}
    for name, table in tables.items():
        chosen = split_clusters(table.cluster, share, seed=0)
        for part, rows in zip(parts, (chosen, ~chosen), strict=True):
            if rows.any():
                part[name] = table.select(rows)
    require(bool(parts[0]), f"--calibrate-on {share:g}: no problem is left; give more problems")
    return parts


def _replay(
    tables: Tables, rules: Sequence[Confident], promises: Sequence[Promise], max_turns: int
) -> list[Replayed]:
    """What each rule did."""
    if any(promise.name == "tokens" for promise in promises):
        turns = sum(int(table.length.sum()) for table in tables.values())
        lacking = turns - sum(int((t.completion_tokens > 0).sum()) for t in tables.values())
        require(
            lacking == 0,
            f"the promise on tokens: {lacking} of {turns} turns have no tokens; name their column "
            "with --columns tokens=COLUMN",
        )
    with faults_of():
        return replay_rules(tables, rules, max_turns)


def _sizes(tables: Tables) -> tuple[int, int, str]:
    """Problems, independent clusters of them, and both in words, before T_max."""
    whole = pool(tables)
    problems, clusters = len(whole.ids), len(set(whole.cluster.tolist()))
    variants = f" ({clusters} without variants)" if clusters < problems else ""
    return problems, clusters, f"{problems} problems{variants}, T_max = "


def _certificate(
    promises: Sequence[Promise], tables: Tables, recorded: Evaluation, options: argparse.Namespace
) -> dict[str, Any]:
    """What is needed to apply and check a choice, besides its rule."""
    return {
        "schema_version": SCHEMA_VERSION,
        "svr_lightning": svr_lightning.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": METHOD,
        "promises": to_builtins(promises),
        "confidence": options.confidence,
        "decoding": certified_settings(recorded.config, recorded.tables),
        "policy": setting(recorded.config, "model", "policy", "path"),
        "weights": None if options.write is None else weights_digest(options.write),
        "data": {
            "samples": str(recorded.samples),
            "sha256": hashlib.sha256(recorded.samples.read_bytes()).hexdigest(),
            "datasets": {name: len(table.ids) for name, table in tables.items()},
            "clusters": _sizes(tables)[1],
        },
    }


def _measure(
    tables: Tables, rule: Confident, promises: Sequence[Promise], max_turns: int, title: str
) -> dict[str, dict[str, float]]:
    """The promised rates on other problems, and p-values against the promises."""
    (point,) = _replay(tables, [rule], promises, max_turns)
    found: dict[str, dict[str, float]] = {}
    rows = []
    for one in promises:
        rate, p_value = point.rates[one.name], point.drift_p_value(one)
        found[one.name] = {"limit": one.limit, "rate": rate, "p_value_if_kept": p_value}
        rows.append((one.name, number(one.limit), _rate(point.rates, one.name), f"{p_value:.3g}"))
    heads = ("promise", "at most", f"here, {_sizes(tables)[0]} problems", "p-value if kept")
    Console().print(text_table(heads, rows, title))
    return found


def _check(options: argparse.Namespace) -> int:
    """Test each promise of a certificate on new problems."""
    known = Certificate.read(options.check)
    require(
        not (options.columns and known.rule.needs_correct),
        f"{options.check}: its rule reads verdicts, and a log has none",
    )
    recorded, gate = _recording(options)
    # The recording's own threshold is not applied.
    rule = replace(gate, threshold=known.rule.threshold)
    decoding = certified_settings(recorded.config, recorded.tables)
    if other := known.departures(rule, known.max_turns, decoding):
        raise ConfigError(f"recorded with {', '.join(other)}; record with the certified settings")
    found = _measure(recorded.tables, rule, known.promised, known.max_turns, str(options.check))
    level = (1 - options.confidence) / len(found)
    broken = ", ".join(name for name, one in found.items() if one["p_value_if_kept"] <= level)
    message = "no promise is shown to be broken"
    if broken:
        surely = f"with confidence {options.confidence:g}; certify again on new problems"
        message = f"no longer kept: {broken}, {surely}"
    Console().print(Text(message))
    return BROKEN if broken else 0


def _plan(promises: Sequence[Promise], size: int, delta: float) -> int:
    """How many labels the first test of each promise on a share needs."""
    level = start_levels(promises, size, delta)[0]
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


_RATES = ("accepted", "pse", "wrong_accepted", "wrong", "tokens")
_HEADS = ("threshold", "accepted", "PSE", "wrong acc.", "wrong", "tokens", "certified")


def _show(
    candidates: Sequence[Candidate], choice: Candidate | None, promised: str, title: str
) -> None:
    """Every threshold, then the choice or why there is none."""
    rows = [
        (
            number(row.threshold),
            *(_rate(row.rates, name) for name in _RATES),
            "yes" if row.certified else "no" if row.level else "not tested",
        )
        for row in reversed(candidates)
    ]
    console = Console()
    console.print(Text(f"{title}; wrong acc.: wrong of accepted answers", style="bold"))
    console.print(text_table(_HEADS, rows))
    if choice is not None:
        line = f"threshold {number(choice.threshold)}: {promised}, on new problems like these"
    else:
        useless = any(one.certified for one in candidates)
        which = "only thresholds at which no answer can break it" if useless else "no threshold"
        cure = "relax a limit, or use more problems: --plan says how many"
        line = f"{which} can keep the promise: {promised}\n{cure}"
    console.print(Text(line))


def _rate(rates: Mapping[str, float], name: str) -> str:
    if math.isnan(rates[name]):
        return "-"
    return f"{rates[name]:.0f}" if name == "tokens" else f"{rates[name]:.3f}"
