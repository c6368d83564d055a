"""What README and docs/results.md say of the starts, and their picture, from their tables alone."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.starts.outcomes import AFTER, ARMS, BEFORE
from experiments.starts.picture import draw
from experiments.starts.table import AUROC, DIFFERENCES, EXACT_CREDIT
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
TASKS = {
    "countdown": ("countdown_tiny", "puzzles"),
    "untraced": ("countdown_tiny", "puzzles, no working"),
    "word_problems": ("arithmetic_tiny", "word problems"),
}
"""By task: its data set, and what the tables call its problems."""


def headline(tables: Mapping[str, Found]) -> str:
    """The promise, its small print, and what needs no self-check, in two paragraphs."""
    found = tables["countdown"]
    after = {name: _share(arms[AFTER]) for name, arms in found["ways"].items()}
    before = _share(found["ways"][STATED][BEFORE])
    gain = found["differences"]["stated: after - before"]
    low, high = (f"{100 * bound:.0f}" for bound in gain["over_starts"])
    promise = (
        f"**Trained to check itself, a tiny policy solves {after[STATED]} of new number puzzles "
        f"when its own verdicts and confidences choose the answer. Before training it solves "
        f"{before}; votes and log-probabilities reach {after[FREE]}.**"
    )
    small_print = (
        f"All within {found['budget']:.0f} tokens per puzzle, prompts included, on "
        f"{found['problems']} held-out puzzles: means over {len(found['starts'])} policies, each "
        f"from its own start, none left out. Training adds {100 * gain['mean']:.0f} points (95"
        f"{NARROW}% interval over policies: {low} to {high}). Two cheap checks do better here: to "
        f"compare the result of the policy's working with the target ({after[TRACE]}), and to let "
        f"a program evaluate it ({after[PROGRAM]}). A check in words is for what allows neither."
    )
    return f"{textwrap.fill(promise, WIDTH)}\n\n{textwrap.fill(small_print, WIDTH)}"


def grid(tables: Mapping[str, Found]) -> str:
    """Markdown tables of all tasks side by side, each value after training with its interval.

    Every way before and after training, what is stated, and differences.
    """
    found = [tables[task] for task in TASKS]
    heads = [f"{words}: {len(tables[task]['starts'])} starts" for task, (_, words) in TASKS.items()]
    lines = _head(
        "solved within the same tokens, and 95 % over starts",
        [f"{head}, before | after" for head in heads],
    )
    for way in found[0]["ways"]:
        cells = []
        for one in found:
            arms = one["ways"].get(way, {})
            cells += [
                f"{arms[BEFORE]['mean']:.3f}" if BEFORE in arms else "",
                _cell(arms.get(AFTER)),
            ]
        lines.append(_row(way, cells))
    lines += _head(f"{AUROC}, fresh answers", heads)
    for arm, words in ARMS.items():
        lines.append(_row(words, [_cell(one["auroc"].get(arm)) for one in found]))
    lines += _head("difference", heads)
    for name in DIFFERENCES:
        lines.append(_row(name, [_cell(one["differences"][name], "+.3f") for one in found]))
    for name in EXACT_CREDIT:
        cells = [_cell(one["exact_credit"].get(name), "+.3f") for one in found]
        lines.append(_row(f"exact credit, {name}: with - without", cells))
    return "\n".join(lines[1:])


def page(path: str, tables: Mapping[str, Found]) -> str:
    """A page's text with its part between ``<!-- starts -->`` and ``<!-- end -->``."""
    text = (ROOT / path).read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- starts -->\n")
    after = rest.partition("<!-- end -->")[2]
    return f"{before}{begin}{PARTS[path](tables)}\n<!-- end -->{after}"


def write(tables: Mapping[str, Found]) -> None:
    """Write the pages and the picture."""
    for path in PARTS:
        write_file(ROOT / path, [page(path, tables)])
    write_file(ROOT / PICTURE, [svg(draw, tables["countdown"])])


def _head(corner: str, columns: Sequence[str]) -> list[str]:
    """An empty line, and the first two lines of a table."""
    head = _row(corner, columns)
    return ["", head, "|" + "---|" * (head.count("|") - 1)]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([name, *cells])} |"


def _cell(values: Found | None, form: str = ".3f") -> str:
    """A mean, its interval, and the p-value if there is one; nothing where a task lacks it."""
    if values is None:
        return ""
    bounds = interval(values["over_starts"], f"{{:{form}}}").replace(" ", NARROW)
    cell = f"{values['mean']:{form}} {bounds}"
    if "p_holm" in values:
        cell += f", p {values['p_holm']:.2f} ({len(values['by_start'])} starts)"
    return cell


def _share(values: Found) -> str:
    return f"{100 * values['mean']:.0f}{NARROW}%"


PARTS = {"README.md": headline, "docs/index.md": headline, "docs/results.md": grid}
"""What each page takes from the tables."""
