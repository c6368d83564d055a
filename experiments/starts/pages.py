"""What README and docs/results.md say of the starts, and their picture, from their tables alone."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.starts.outcomes import AFTER, ARMS, BEFORE
from experiments.starts.picture import draw
from experiments.starts.table import AUROC, bounds_of, over
from svr_lightning.analysis.check_value import FREE, PROGRAM, STATED, TRACE
from svr_lightning.display import interval
from svr_lightning.files import write_file
from svr_lightning.report.drawing import svg

ROOT = Path(__file__).parents[2]
PICTURE = Path("docs/check-value.svg")
WIDTH = 140
NARROW = "\u00a0"
"""A space at which no line ends."""
Found = Mapping[str, Any]
"""What :func:`experiments.starts.table.table` gives."""


def headline(found: Found) -> str:
    """The promise, its small print, and what needs no self-check, in two paragraphs."""
    after = {name: _share(arms[AFTER]) for name, arms in found["ways"].items()}
    before = _share(found["ways"][STATED][BEFORE])
    gain = found["differences"]["stated: after - before"]
    low, high = (f"{100 * bound:.0f}" for bound in bounds_of(gain))
    promise = (
        f"**Trained to check itself, a tiny policy solves {after[STATED]} of new number puzzles "
        f"by what it says of its answers. Before training it solves {before}; votes and "
        f"log-probabilities reach {after[FREE]}.**"
    )
    small_print = (
        f"All within {found['budget']:.0f} tokens per puzzle, read and written, on "
        f"{found['problems']} held-out puzzles, means of {len(found['starts'])} unselected "
        f"starts. Training adds {100 * gain['mean']:.0f} points, {low} to {high} (95{NARROW}% "
        f"over {over(found)}). On this puzzle a reader of the policy's working reaches "
        f"{after[TRACE]} and a program {after[PROGRAM]}: a check in words is meant for answers "
        "where neither exists."
    )
    return f"{textwrap.fill(promise, WIDTH)}\n\n{textwrap.fill(small_print, WIDTH)}"


def grid(found: Found) -> str:
    """Markdown tables: every way before and after training, what is stated, and differences."""
    lines = [
        f"| within {found['budget']:.0f} tokens, {len(found['starts'])} starts "
        f"| before | after | 95 %, over {over(found)} | tokens |",
        "|---|---|---|---|---|",
    ]
    for name, arms in found["ways"].items():
        before = f"{arms[BEFORE]['mean']:.3f}" if BEFORE in arms else ""
        after = arms[AFTER]
        cells = [name, before, f"{after['mean']:.3f}", interval(bounds_of(after))]
        lines.append(f"| {' | '.join(cells)} | {after['tokens']:.0f} |")
    scope = f"mean | 95 %, over {over(found)} |"
    lines += ["", f"| {AUROC}, fresh answers | {scope}", "|---|---|---|"]
    lines += [_row(ARMS[arm], one, ".3f") for arm, one in found["auroc"].items()]
    lines += ["", f"| difference | {scope}", "|---|---|---|"]
    lines += [_row(name, one, "+.3f") for name, one in found["differences"].items()]
    for name, one in found["exact_credit"].items():
        count = len(one["by_start"])
        label = f"exact credit, {name}: with - without, {count} start{'s' if count > 1 else ''}"
        if "p_holm" in one:
            label += f", p {one['p_holm']:.3f} (Holm)"
        lines.append(_row(label, one, "+.3f"))
    return "\n".join(lines)


PARTS = {
    "README.md": {"headline": ("countdown", headline)},
    "docs/index.md": {"headline": ("countdown", headline)},
    "docs/results.md": {"table": ("countdown", grid), "word problems": ("word_problems", grid)},
}
"""What each page takes from which table, between ``<!-- starts: NAME -->`` and ``<!-- end -->``."""


def page(path: str, tables: Mapping[str, Found]) -> str:
    """A page's text with the parts that follow from the tables, by task."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for name, (task, part) in PARTS[path].items():
        begin = f"<!-- starts: {name} -->\n"
        before, _, rest = text.partition(begin)
        after = rest.partition("<!-- end -->")[2]
        text = f"{before}{begin}{part(tables[task])}\n<!-- end -->{after}"
    return text


def write(tables: Mapping[str, Found]) -> None:
    """Write the pages and the picture."""
    for path in PARTS:
        write_file(ROOT / path, [page(path, tables)])
    write_file(ROOT / PICTURE, [svg(draw, tables["countdown"])])


def _row(name: str, values: Found, form: str) -> str:
    """A row of a mean and its interval."""
    return f"| {name} | {values['mean']:{form}} | {interval(bounds_of(values), f'{{:{form}}}')} |"


def _share(values: Found) -> str:
    return f"{100 * values['mean']:.0f}{NARROW}%"
