r"""A threshold whose error rates are guaranteed on new problems.

The recording holds every turn of every problem, and results.json the stopping
rule whose threshold is chosen:

    svr validate --config ... --record
    svr certify RUN/eval/validate --max-pse 0.10

A promise is a limit that holds at the stated --confidence. Of the thresholds
that keep all promises and accept any answer, the one with the fewest tokens is
chosen. It is measured on the problems that are not used for calibration: a
random part (--calibrate-on) or the last ones (--check-last). --check tests a
certificate on another recording, --plan says how many labels a promise needs.
A file may stand in place of the folder: the log of another program, with a row
per turn, whose columns --columns names. `svr certify embedded:log
--max-wrong-accepted 0.25` tries it. See docs/certificates.md.

Exit code 0: certified, or no drift was found; 1: nothing can be certified, or
a promise does not hold on the problems kept for checking; 2: an error of the
user.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

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
    OPERATING_POINT,
    SCHEMA_VERSION,
    Certificate,
    Name,
    Promise,
    problem_digests,
    sealed,
    sha256_of,
    weights_digest,
)
from svr_lightning.analysis.repeats import independence_notes
from svr_lightning.analysis.replay import THRESHOLDS, MissingTurnsError, Tables, require_tokens
from svr_lightning.analysis.results import Evaluation, certified_settings, setting
from svr_lightning.analysis.table import TurnTable, pool
from svr_lightning.cli.values import HELP_OF_RULE, stop_rule
from svr_lightning.core.metrics import NONE, abbreviations
from svr_lightning.core.stopping import (
    DEFAULT_TURNS,
    Confident,
    Posterior,
    RepeatedAnswer,
    StopRule,
    rule_as_config,
)
from svr_lightning.display import print_table, say
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import write_json

METHOD = "learn then test: fallback procedure, exact binomial tests, betting tests for clusters"
GRID = (*THRESHOLDS, 0.97, 0.99, 1.0)
"""The paper's thresholds and three stricter ones."""
BROKEN = 1
"""Exit code where nothing can be certified, or a promise no longer holds."""


# --- options ------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command. An option that was not given is None."""
    add = parser.add_argument
    share = _number("above 0 and below 1", lambda value: 0 < 1 - value < 1)
    part = _number("above 0 and at most 1", lambda value: 0 < value <= 1)
    tokens = _number("above 0", lambda value: 0 < value < math.inf)
    add("recording", type=Path, nargs="?", metavar="FOLDER", help="an evaluation, or a log")
    add("--columns", nargs="+", metavar="NAME=COLUMN", help="names of a log's columns")
    add("--calibrate-on", type=part, help="share of the problems, drawn at random (0.5)")
    last = "calibrate on all but this share, the last problems; shows errors that grow with time"
    add("--check-last", type=share, metavar="SHARE", help=last)
    early = "at most this share of problems stops early with a wrong answer"
    add("--max-pse", type=share, help=early)
    accepted = "at most this share of accepted answers is wrong"
    add("--max-wrong-accepted", type=share, help=accepted)
    add("--min-accuracy", type=share, help="at least this share of answers is correct")
    add("--max-tokens", type=tokens, help="at most this many tokens per problem on average")
    add("--token-bound", type=tokens, help="tokens that no problem can exceed")
    add("--confidence", type=share, default=0.9, help="of all promises together (default 0.9)")
    add("--max-turns", type=int, help="T_max (default: what was recorded)")
    add("--stop", metavar="RULE", type=stop_rule, help=HELP_OF_RULE)
    add("--thresholds", type=float, nargs="+", help="the thresholds to choose from")
    plan = "only print how many labels the promises need"
    add("--plan", action="store_true", default=None, help=plan)
    add("--check", type=Path, metavar="CERTIFICATE", help="test its promises on the recording")
    add(
        "--write",
        type=Path,
        metavar="POLICY",
        help="policy's folder, which gets operating_point.json",
    )
    add("--out", type=Path, help="folder; default: certify/ beside the recording")


def _number(wanted: str, holds: Callable[[float], bool]) -> Callable[[str], float]:
    """An option's value for which a condition ``holds``, which is ``wanted`` in words."""

    def number(text: str) -> float:  # by this name argparse refuses what is none
        with suppress(ValueError):
            if holds(float(text)):
                return float(text)
        raise argparse.ArgumentTypeError(f"{text} must be {wanted}")

    return number


_PROMISES: dict[str, Name] = {
    "max_pse": "pse",
    "max_wrong_accepted": "wrong_accepted",
    "min_accuracy": "wrong",
    "max_tokens": "tokens",
}
"""What each option promises."""
_TAKEN = {
    "check": {"check", "recording", "columns", "confidence"},
    "plan": {"plan", *_PROMISES, "token_bound", "confidence", "stop", "max_turns", "thresholds"},
}
"""What two of the three modes take; the third takes everything but them."""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refuse_other_modes(given: Mapping[str, Any]) -> None:
    """Refuse options that the chosen mode does not use."""
    for mode, taken in _TAKEN.items():
        if mode in given:
            other = sorted(given.keys() - taken)
            shown = [str(given[name]) if name == "recording" else _flag(name) for name in other]
            require(not other, f"--{mode} does not use {', '.join(shown)}; leave it out")
    require(
        not {"calibrate_on", "check_last"} <= given.keys(),
        "give one of --calibrate-on and --check-last",
    )


def _promises(given: Mapping[str, Any]) -> list[Promise]:
    bound = given.get("token_bound", 0.0)
    promises = []
    for option, name in _PROMISES.items():
        if option not in given:
            continue
        require(
            name != "tokens" or bound > 0,
            "--max-tokens needs --token-bound, which no problem can exceed whatever the policy "
            "does: --max-turns times the model's length, 81920 for ten turns of 8192",
        )
        limit = given[option]
        if name == "wrong":
            limit = float(f"{1 - limit:.12g}")  # 0.1, where 1 - 0.9 is 0.09999999999999998
        promises.append(Promise(name=name, limit=limit, bound=bound if name == "tokens" else 1.0))
    flags = ", ".join(map(_flag, _PROMISES))
    require(bool(promises), f"no promise was given; give one of {flags}")
    return promises


# --- the command --------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Certify, plan or check, and print."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    _refuse_other_modes(given)
    if options.check is not None:
        return _check(options)
    promises = _promises(given)
    if options.plan:
        turns = DEFAULT_TURNS if options.max_turns is None else options.max_turns
        thresholds = options.thresholds or _grid(options.stop or Confident(), turns)
        return _plan(promises, len(set(thresholds)), 1 - options.confidence)
    policy = options.write
    require(policy is None or policy.is_dir(), f"--write: {policy}: no such folder")
    recorded = _recording(options)
    max_turns = recorded.max_turns if options.max_turns is None else options.max_turns
    gate = options.stop or recorded.rule
    thresholds = options.thresholds or _grid(gate, max_turns)
    rules = [gate.with_threshold(float(each)) for each in sorted(set(thresholds), reverse=True)]
    return _certify(_Case(recorded, promises, max_turns), gate, rules, options)


def _certify(
    case: "_Case", gate: StopRule, rules: Sequence[StopRule], options: argparse.Namespace
) -> int:
    """Test, choose, measure, write."""
    recorded, promises = case.recorded, case.promises
    calibration, others = _split(recorded.tables, options)
    points = case.replay(calibration, rules)
    _refuse_vacuous(points, case, gate)
    candidates = candidates_of(points, promises, 1 - options.confidence)
    choice = cheapest(candidates, promises)
    promised = f"{', '.join(map(str, promises))}, with confidence {options.confidence:g}"
    _show(candidates, calibration, case.max_turns)
    notes = [*recorded.notes, *independence_notes(recorded.tables, recorded.questions)]
    measured = None
    if choice is None:
        _show_failure(candidates, promised, any_left=bool(others))
    else:
        rule = gate.with_threshold(choice.threshold)
        say(f"{rule}: {promised}, on new problems like these")
        notes += case.failing_parts(rule)
        if others:
            which = "the last problems" if options.check_last else "problems drawn at random"
            title = f"measured on {which}, which had no part in the choice"
            measured, broken = case.measure(others, rule, title, options.confidence)
            if broken:
                choice = None
                notes.append(f"broken there: {', '.join(broken)}. Nothing is certified")
    policy, calibrated = options.write, replace(recorded, tables=calibration)
    certificate = sealed(
        schema_version=SCHEMA_VERSION,
        svr_lightning=svr_lightning.__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        method=METHOD,
        promises=to_builtins(promises),
        confidence=options.confidence,
        rule=rule_as_config(gate),
        max_turns=case.max_turns,
        decoding=certified_settings(recorded.config, recorded.tables),
        policy=setting(recorded.config, "model", "policy", "path"),
        weights=None if policy is None else weights_digest(policy),
        data={
            "samples": str(recorded.samples),
            "sha256": sha256_of(recorded.samples),
            "datasets": {name: len(table.ids) for name, table in calibration.items()},
            "clusters": _sizes(calibration)[1],
            "problems": problem_digests(chain(*calibrated.names.values())),
        },
        candidates=to_builtins(candidates),
        certified=to_builtins(choice),
        measured=measured,
    )
    files = [(options.out or recorded.folder / "certify") / "certificate.json"]
    if choice is not None and policy is not None:
        files.append(policy / OPERATING_POINT)
    for file in files:
        write_json(file, certificate)
    say(*(f"note: {note}" for note in notes))
    print(*files, sep=", ")  # in one piece, however long
    return BROKEN if choice is None else 0


def _refuse_vacuous(points: Sequence[Replayed], case: "_Case", gate: StopRule) -> None:
    """Refuse promises that no answer could break at any threshold."""
    require(
        any(point.rates["accepted"] for point in points),
        f"the rule, {gate}, accepts no answer at any of the thresholds; give other "
        "--thresholds, or record what the rule reads",
    )
    for promise in case.promises:
        require(
            any(promise.can_be_broken(point.rates) for point in points),
            f"the promise {promise} is vacuous: with T_max = {case.max_turns} no answer could "
            "break it; choose another, such as --max-wrong-accepted, or give other --thresholds",
        )


def _grid(rule: StopRule, max_turns: int) -> Sequence[float]:
    """The thresholds of a rule to choose from, unless the user names some."""
    if isinstance(rule, RepeatedAnswer):
        require(
            max_turns > 1,
            f"T_max = {max_turns}: RepeatedAnswer needs two turns or more; give more, or another "
            "--stop",
        )
        return range(2, max_turns + 1)
    return (*GRID[:-1], 0.999, 0.9999) if isinstance(rule, Posterior) else GRID


def _recording(options: argparse.Namespace) -> Evaluation:
    """The recording, whose prompts may not have shown labels."""
    require(
        options.recording is not None, "give the folder of an evaluation, RUN/eval/NAME, or a log"
    )
    recorded = read_recording(options.recording, options.columns or ())
    require(
        not recorded.privileged,
        f"{recorded.samples.parent}: its prompts showed labels, which new problems do not have; "
        "certify a policy whose prompts show none",
    )
    return recorded


def _split(tables: Tables, options: argparse.Namespace) -> tuple[Tables, Tables]:
    """The problems to calibrate on and those to measure on; a cluster is on one side."""
    calibration: dict[str, TurnTable] = {}
    others: dict[str, TurnTable] = {}
    share = options.calibrate_on or 0.5
    for name, table in tables.items():
        if options.check_last is None:
            chosen = split_clusters(table.cluster, share, seed=0)
        else:  # clusters are numbered in the order of their first problems
            clusters = table.cluster.max() + 1
            chosen = table.cluster < clusters - math.ceil(options.check_last * clusters)
        for part, rows in ((calibration, chosen), (others, ~chosen)):
            if rows.any():
                part[name] = table.select(rows)
    given = f"--calibrate-on {share:g}" if options.check_last is None else "--check-last"
    require(bool(calibration), f"{given}: no problem is left; give more problems")
    return calibration, others


@dataclass(frozen=True)
class _Case:
    """A recording, and what is promised of new problems like its own."""

    recorded: Evaluation
    promises: Sequence[Promise]
    max_turns: int

    def replay(self, tables: Tables, rules: Sequence[StopRule]) -> list[Replayed]:
        """What each rule did on ``tables``, which are some of the recorded problems."""
        if any(promise.name == "tokens" for promise in self.promises):
            require_tokens(pool(tables), "the promise on tokens")
        try:
            return replay_rules(tables, rules, self.max_turns)
        except MissingTurnsError as error:
            cure = self.recorded.how_to_have_all_turns
            shortest = min(int(table.length.min()) for table in self.recorded.tables.values())
            if 0 < shortest < self.max_turns:
                cure += f", or give --max-turns {shortest}"
            raise ConfigError(f"{error}; {cure}") from error

    def failing_parts(self, rule: StopRule) -> Iterator[str]:
        """Data sets on which the rule breaks a promise that the mixture of all keeps."""
        if len(self.recorded.tables) == 1:
            return
        for name, table in self.recorded.tables.items():
            (point,) = self.replay({name: table}, [rule])
            for promise in self.promises:
                rate = _rate(point.rates, promise.name)
                if point.rates[promise.name] > promise.limit:
                    yield f"{promise} holds for all data sets mixed, but {name} alone has {rate}"

    def measure(
        self, tables: Tables, rule: StopRule, title: str, confidence: float
    ) -> tuple[dict[str, dict[str, float]], list[str]]:
        """The promised rates on other problems with p-values, and the promises that they break.

        These are broken at a level that is divided among all promises.
        """
        (point,) = self.replay(tables, [rule])
        measured: dict[str, dict[str, float]] = {}
        broken: list[str] = []
        rows = []
        for promise in self.promises:
            p_value = point.drift_p_value(promise)
            measured[promise.name] = {
                "limit": promise.limit,
                "rate": point.rates[promise.name],
                "p_value_if_kept": p_value,
            }
            if p_value <= (1 - confidence) / len(self.promises):
                broken.append(promise.name)
            rate = _rate(point.rates, promise.name)
            rows.append((promise.name, f"{promise.limit:g}", rate, f"{p_value:.3g}"))
        heads = ("promise", "at most", f"here, {_sizes(tables)[0]} problems", "p-value if kept")
        print_table(heads, rows, title)
        return measured, broken


def _sizes(tables: Tables) -> tuple[int, int]:
    """Numbers of problems and of independent clusters of them."""
    return (
        sum(len(table.ids) for table in tables.values()),
        sum(len(np.unique(table.cluster)) for table in tables.values()),
    )


def _check(options: argparse.Namespace) -> int:
    """Test each promise of a certificate on new problems."""
    certificate = Certificate.read(options.check)
    recorded, rule = _recording(options), certificate.rule
    decoding = certified_settings(recorded.config, recorded.tables)
    other = certificate.departures(rule, certificate.max_turns, decoding)
    require(not other, f"recorded with {', '.join(other)}; record with the certified settings")
    tables = _others(recorded, certificate)
    recorded = replace(recorded, tables=tables)
    case = _Case(recorded, certificate.promised, certificate.max_turns)
    _, broken = case.measure(tables, rule, str(options.check), options.confidence)
    message = "no promise is shown to be broken"
    if broken:
        surely = f"with confidence {options.confidence:g}; certify again on new problems"
        message = f"no longer kept: {', '.join(broken)}, {surely}"
    notes = [] if broken else [*case.failing_parts(rule)]
    policy = setting(recorded.config, "model", "policy", "path")
    if policy != certificate.policy:
        notes.append(f"recorded with the policy {policy}, and certified with {certificate.policy}")
    say(message, *(f"note: {note}" for note in notes))
    return BROKEN if broken else 0


def _others(recorded: Evaluation, certificate: Certificate) -> Tables:
    """The problems that share no cluster with those of the calibration, if there are any."""
    calibrated = certificate.calibrated_on(recorded.names)
    others = {}
    for name, table in recorded.tables.items():
        used = np.array([(name, problem) in calibrated for problem in table.ids])
        rows = ~np.isin(table.cluster, table.cluster[used])
        if rows.any():
            others[name] = table.select(rows)
    if note := certificate.calibration_note(recorded.names):
        rest = "they are left out" if others else "check on new problems, since these show little"
        say(f"{note}; {rest}")
    return others or recorded.tables


def _plan(promises: Sequence[Promise], size: int, delta: float) -> int:
    """How many labels the first test of each promise on a share needs."""
    level = start_levels(promises, size, delta)[0]
    rows = []
    for promise in promises:
        if promise.name == "tokens":
            continue
        for part in (0.0, 0.25, 0.5, 0.75):
            rate = part * promise.limit
            needed = labels_needed(promise.limit, rate, level)
            rows.append((promise.name, f"{promise.limit:g}", f"{rate:g}", str(needed)))
    require(bool(rows), "--plan counts labels for promises on shares; add one, such as --max-pse")
    heads = ("promise", "at most", "if the true rate is", "independent labels")
    print_table(heads, rows, "labels for a certificate in nine cases of ten")
    say(
        "Variants of one problem count as one label.",
        "For wrong_accepted only accepted answers count.",
        f"With fewer --thresholds fewer labels are enough (each has level {level:.3g}).",
        "Half of the labels check the result; --calibrate-on 1 chooses with all of them.",
    )
    return 0


# --- the terminal -------------------------------------------------------------------------------


def _show(candidates: Sequence[Candidate], calibration: Tables, max_turns: int) -> None:
    """Every threshold."""
    problems, clusters = _sizes(calibration)
    variants = f" ({clusters} without variants)" if clusters < problems else ""
    title = f"calibration: {problems} problems{variants}, T_max = {max_turns}"
    shown = ["accepted", "pse", "wrong_accepted", "wrong", "tokens"]
    if max_turns == 1:
        shown.remove("pse")  # nothing stops early
    rows = []
    for row in reversed(candidates):
        rates = [_rate(row.rates, name) for name in shown]
        certified = "yes" if row.certified else "no" if row.level else "not tested"
        rows.append([f"{row.threshold:g}", *rates, certified])
    say(title, style="bold")
    say(*abbreviations({"pse"}.intersection(shown)))
    print_table(("threshold", *shown, "certified"), rows)


def _show_failure(candidates: Sequence[Candidate], promised: str, any_left: bool) -> None:
    """Why nothing is chosen, and what may help; ``any_left``: not all problems calibrated."""
    useless = any(row.certified for row in candidates)
    which = "only thresholds at which no answer can break it" if useless else "no threshold"
    advice = ["Relax a limit, or use more problems: --plan says how many labels it takes."]
    if any_left:
        advice.append("--calibrate-on 1 chooses with all problems, and keeps none for a check.")
    if len(candidates) > 1:
        advice.append("With fewer --thresholds fewer labels are enough.")
    say(
        f"{which} can keep the promise: {promised}",
        *advice,
        "A threshold picked from this table has no guarantee.",
        "Ask for several promises in one command: one by one, more of them fail.",
        "The file is no certificate:",
    )


def _rate(rates: Mapping[str, float], name: str) -> str:
    if math.isnan(rates[name]):
        return NONE
    return f"{rates[name]:.0f}" if name == "tokens" else f"{rates[name]:.3f}"
