"""Every operating point of a policy from one recording, without a model.

The recording holds T_max greedy turns of every problem:

    python -m svr_lightning test --config ... --model.evaluation.adaptive false
    python -m svr_lightning sweep --samples RUN/eval/test/samples.jsonl

Replayed are fixed budgets K = 1 to T_max, thresholds, a gate on the verdict or on the confidence
alone, every (threshold, T_max), other stopping rules on the same turns, and how labels change from
turn to turn. Leaves sweep.json, sweep.csv with a line per point and data set, and diagnostics.json
with calibration and stopping at the operating point, intervals included.
"""

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from svr_lightning.cli.samples import check_thresholds, load_tables
from svr_lightning.core.stopping import DEFAULT_THRESHOLD, Gate, StopRule
from svr_lightning.display import plain
from svr_lightning.errors import ConfigError, require
from svr_lightning.evaluation.diagnostics import DIAGNOSTICS, diagnose
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.results import RESULTS, read_results
from svr_lightning.evaluation.sweep import THRESHOLDS, long_rows, sweep
from svr_lightning.files import write_file, write_json
from svr_lightning.report.runs import is_privileged

COLUMNS = (
    ("accuracy", "accuracy", "{:.3f}"),
    ("turns", "turns", "{:.2f}"),
    ("avg_total_tokens", "tokens", "{:.0f}"),
    ("esr", "ESR", "{:.3f}"),
    ("pse", "PSE", "{:.3f}"),
    ("any_turn_accuracy", "any turn", "{:.3f}"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line may say."""
    parser.add_argument("--samples", type=Path, nargs="+", required=True, help="samples.jsonl")
    parser.add_argument("--max-turns", type=int, default=10, help="T_max (default 10)")
    parser.add_argument(
        "--threshold",
        type=float,
        default=DEFAULT_THRESHOLD,
        help="gamma of the operating point (default 0.85)",
    )
    parser.add_argument(
        "--gate", choices=get_args(Gate), default="joint", help="what a stop needs there"
    )
    parser.add_argument(
        "--thresholds", type=float, nargs="+", default=THRESHOLDS, help="gamma of the curves"
    )
    parser.add_argument("--out", type=Path, help="folder; default: sweep/ beside the samples")


def run(options: argparse.Namespace) -> int:
    """Replay, write, print."""
    check_thresholds([options.threshold, *options.thresholds])
    require(options.max_turns >= 1, f"--max-turns {options.max_turns} must be at least 1")
    tables = load_tables(options.samples)
    rule = StopRule(threshold=options.threshold, gate=options.gate)
    try:
        curves = sweep(tables, rule, options.max_turns, options.thresholds)
    except ValueError as error:
        raise ConfigError(
            f"{error}; record every turn with --model.evaluation.adaptive false, or lower "
            "--max-turns"
        ) from error
    out = options.out or options.samples[0].parent / "sweep"
    uses_labels = any(
        is_privileged(read_results(path.parent / RESULTS).get("config", {}))
        for path in options.samples
    )
    samples = [str(path) for path in options.samples]
    curves = {"samples": samples, "privileged": uses_labels, **curves}
    write_json(out / "sweep.json", curves)
    write_file(out / "sweep.csv", [_csv(long_rows(curves))])
    outcomes = {name: replay(table, rule, options.max_turns) for name, table in tables.items()}
    write_json(out / DIAGNOSTICS, diagnose(tables, outcomes))
    show(curves)
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
    _table(console, "fixed budgets", "K", [(str(r["budget"]), r) for r in curves["fixed"]])
    adaptive = [(f"{row['threshold']:.2f}", row) for row in curves["thresholds"]]
    adaptive.append(("verdict alone", curves["verdict_only"]))
    adaptive += [(f"confidence alone {r['threshold']:.2f}", r) for r in curves["confidence_only"]]
    _table(console, f"adaptive, T_max = {point['max_turns']}", "threshold", adaptive)
    others = [(f"threshold {point['threshold']:.2f}", point)]
    others += [(row["name"], row) for row in curves["options"]]
    _table(console, "other uses of the same turns", "rule", others)


def _table(
    console: Console, title: str, first: str, rows: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    for _, heading, _ in COLUMNS:
        table.add_column(heading, justify="right")
    for name, row in rows:
        values = row["macro"]["all"]
        cells = ["-" if values[k] is None else form.format(values[k]) for k, _, form in COLUMNS]
        table.add_row(Text(name), *cells)
    console.print(table)


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
