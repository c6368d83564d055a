"""``index.html``, one page without a script that needs nothing beside it."""

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from svr_lightning.display import plain
from svr_lightning.report.figures import Plot
from svr_lightning.report.runs import Method, Run
from svr_lightning.report.tables import Table, headlines
from svr_lightning.report.trajectories import CLASSES, choose, malformed, trajectories

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The page's content security policy."""
MOST = 25
"""Trajectories listed per method and class."""


def page(
    methods: Sequence[Method],
    figures: Sequence[tuple[Plot, str]],
    notes: Sequence[str],
    tables: Sequence[Table],
) -> str:
    """The whole page in ASCII: figures as SVG, :data:`MOST` trajectories per method and class.

    Every text is escaped, and what would not show is replaced.
    """
    environment = Environment(
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else plain(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["clip"] = lambda value, head=1500, tail=2500: clip(str(value), head, tail)
    html = environment.from_string(_resource("page.html")).render(
        classes=CLASSES,
        css=_resource("page.css"),
        headlines=headlines(methods),
        listing=list(_listing(methods)),
        malformed=malformed,
        notes=notes,
        policy=POLICY,
        methods=methods,
        figures=[(plot.caption, _encoded(svg)) for plot, svg in figures],
        tables=tables,
        title=", ".join(method.name for method in methods),
    )
    return html.encode("ascii", "xmlcharrefreplace").decode("ascii")


def clip(text: str, head: int, tail: int = 0) -> str:
    """A text of bounded length: its beginning, how much is left out, and its end.

    Examples:
        >>> clip("abcdefgh", 2, 1)
        'ab [5 characters left out] h'
    """
    left_out = len(text) - head - tail
    if left_out <= 0:
        return text
    return f"{text[:head]} [{left_out:,} characters left out] {text[len(text) - tail :]}"


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="ascii")


def _encoded(svg: str) -> str:
    return base64.b64encode(svg.encode("ascii")).decode("ascii")


def _listing(methods: Sequence[Method]) -> Iterator[tuple[str, Run, list[Any]]]:
    """Of each method's first seed and each class a heading, the run, and some trajectories."""
    for method in methods:
        run = method.runs[0]
        found = list(trajectories(run))
        count = Counter(kind for _, kinds in found for kind in kinds)
        name = f"{method.name}: " if len(methods) > 1 else ""
        for kind, chosen in choose(found, MOST).items():
            total = count[kind] if kind in CLASSES else sum(not kinds for _, kinds in found)
            words = f"{name}{CLASSES.get(kind, kind)}, {total:,} of {len(found):,}"
            yield words, run, chosen
