"""Every operating point of a policy from one recording, without a model.

The recording holds T_max greedy turns of every problem:

    python -m svr_lightning test --config ... --model.evaluation.adaptive false
    python -m svr_lightning sweep --samples RUN/eval/test/samples.jsonl

Evaluates fixed budgets K = 1 to T_max, thresholds, stops on the verdict alone or the confidence
alone, every (threshold, T_max), and how labels change from turn to turn. Writes sweep.json,
sweep.csv with a line per point and data set, and diagnostics.json with calibration and stopping at
the operating point, with intervals. On the terminal, equal neighbouring rows are merged.

--compare-stops adds rules that need no self-check (docs/stopping.md) and compares all within the
same tokens: those of the operating point, or --budget.
"""

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from svr_lightning.analysis.metrics import DIAGNOSTICS, diagnose
from svr_lightning.analysis.replay import replayed
from svr_lightning.analysis.results import setting
from svr_lightning.analysis.sweep import THRESHOLDS, compare_stops, long_rows, sweep
from svr_lightning.cli.inputs import load_tables, recorded_turns, run_configs
from svr_lightning.core.stopping import DEFAULT_THRESHOLD, Confident
from svr_lightning.display import merged, plain, text_table
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import write_file, write_json

COLUMNS = (
    ("accuracy", "accuracy", "{:.3f}"),
    ("turns", "turns", "{:.2f}"),
    ("avg_total_tokens", "tokens", "{:.0f}"),
    ("esr", "ESR", "{:.3f}"),
    ("pse", "PSE", "{:.3f}"),
    ("any_turn_accuracy", "any turn", "{:.3f}"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("--samples", type=Path, nargs="+", required=True, help="samples.jsonl")
    parser.add_argument("--max-turns", type=int, help="T_max (default: what was recorded)")
    parser.add_argument(
        "--threshold",
        type=float,
        default=DEFAULT_THRESHOLD,
        help="gamma of the operating point (default 0.85)",
    )
    parser.add_argument(
        "--thresholds", type=float, nargs="+", default=THRESHOLDS, help="gamma of the curves"
    )
    parser.add_argument(
        "--compare-stops", action="store_true", help="all stopping rules at equal tokens"
    )
    parser.add_argument("--budget", type=float, help="tokens per problem of that comparison")
    parser.add_argument("--out", type=Path, help="folder; default: sweep/ beside the samples")


def run(options: argparse.Namespace) -> int:
    """Replay, write, print."""
    for threshold in (options.threshold, *options.thresholds):
        require(0 <= threshold <= 1, f"threshold {threshold:g} must lie in [0, 1]")
    tables = load_tables(options.samples)
    configs = run_configs(options.samples)
    max_turns = recorded_turns(tables, configs) if options.max_turns is None else options.max_turns
    require(max_turns >= 1, f"--max-turns {max_turns} must be at least 1")
    require(options.budget is None or options.budget > 0, "--budget must be above 0 tokens")
    rule = Confident(threshold=options.threshold)
    try:
        curves = sweep(tables, rule, max_turns, options.thresholds)
        if options.compare_stops or options.budget is not None:
            curves["stops"] = compare_stops(tables, rule, max_turns, options.budget)
    except ValueError as error:
        raise ConfigError(
            f"{error}; record every turn with --model.evaluation.adaptive false, or lower "
            "--max-turns"
        ) from error
    out = options.out or options.samples[0].parent / "sweep"
    uses_labels = any(setting(config, "protocol", "privileged") is True for config in configs)
    samples = [str(path) for path in options.samples]
    curves = {"samples": samples, "privileged": uses_labels, **curves}
    write_json(out / "sweep.json", curves)
    write_file(out / "sweep.csv", [_csv(long_rows(curves))])
    write_json(out / DIAGNOSTICS, diagnose(replayed(tables, rule, max_turns)))
    show(curves)
    if not any(table.self_checked for table in tables.values()):
        turns = sum(int(table.length.sum()) for table in tables.values())
        Console().print(Text(f"0 of {turns} turns state a self-check: no threshold ever stops"))
    Console().print(Text(f"{out}: sweep.json, sweep.csv, {DIAGNOSTICS}"))
    return 0


def show(curves: Mapping[str, Any]) -> None:
    """The curves averaged over the data sets, as tables of at most 80 columns."""
    point = curves["operating_point"]
    names = list(point["datasets"])
    console = Console()
    console.print(Text(f"data sets: {plain(', '.join(names))}"))
    if curves["privileged"]:
        console.print(Text("privileged: labels in prompts", style="bold"))
    _print(console, "fixed budgets", "K", [(str(r["budget"]), r) for r in curves["fixed"]])
    adaptive = [(f"{row['threshold']:.2f}", row) for row in curves["thresholds"]]
    title = f"adaptive, T_max = {point['max_turns']}"
    _print(console, title, "threshold", adaptive, [("verdict alone", curves["verdict_only"])])
    alone = [(f"{row['threshold']:.2f}", row) for row in curves["confidence_only"]]
    _print(console, "confidence alone", "threshold", alone)
    if "stops" in curves:
        _print_stops(console, curves["stops"])


def _print_stops(console: Console, stops: Mapping[str, Any]) -> None:
    """Stopping rules at equal tokens, and the winner."""
    rows = []
    for row in stops["rows"]:
        if row["accuracy"] is None:
            rows.append([row["name"], "-", "too dear", "-", "-"])
            continue
        winner = row["name"] == stops["winner"]
        gap = "winner" if winner else f"{row['gap']:+.3f} {_interval(row['gap_ci95'])}"
        cells = [f"{row['accuracy']:.3f}", _interval(row["ci95"]), f"{row['tokens']:.0f}", gap]
        rows.append([row["name"], *cells])
    title = f"stopping rules within {stops['budget']:.0f} tokens per problem, all problems together"
    headings = ["rule", "accuracy", "95 %", "tokens", "to the winner"]
    console.print(text_table(headings, rows, title))
    console.print(Text("settings chosen on one half of the problems, measured on the other"))


def _interval(bounds: Sequence[float]) -> str:
    return f"[{bounds[0]:.3f}, {bounds[1]:.3f}]"


def _print(
    console: Console,
    title: str,
    first: str,
    curve: Sequence[tuple[str, Mapping[str, Any]]],
    single: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> None:
    """A table of a curve's points, equal neighbours merged, and of single points behind it."""
    points, others = (
        [[name, *_cells(row["macro"]["all"])] for name, row in rows] for rows in (curve, single)
    )
    headings = [first, *(heading for _, heading, _ in COLUMNS)]
    console.print(text_table(headings, [*merged(points), *others], title))


def _cells(values: Mapping[str, Any]) -> list[str]:
    return ["-" if values[name] is None else form.format(values[name]) for name, _, form in COLUMNS]


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    # A spreadsheet would run a name that begins like a formula.
    writer.writerows({**row, "dataset": _as_text(row["dataset"])} for row in rows)
    return stream.getvalue().encode("ascii", "backslashreplace").decode()


def _as_text(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
