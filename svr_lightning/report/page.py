"""``index.html``, one page that needs nothing beside it.

The page has no script: filters are radio buttons that style sheets read, so it may forbid
everything else.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from svr_lightning.analysis.averages import display, ordered
from svr_lightning.analysis.results import Evaluation, setting
from svr_lightning.files import to_json
from svr_lightning.report.drawing import INK
from svr_lightning.report.figures import Plot
from svr_lightning.report.numbers import apart
from svr_lightning.report.runs import Method, Run, heading
from svr_lightning.report.tables import headlines
from svr_lightning.report.text import Table, attribute, clip, visible
from svr_lightning.report.trajectories import CLASSES, choose, malformed, trajectories

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The page's content security policy."""


def page(
    methods: Sequence[Method],
    figures: Sequence[tuple[Plot, str]],
    notes: Sequence[str],
    tables: Sequence[Table],
    most: int,
) -> str:
    """The whole page in ASCII: figures as SVG, ``most`` trajectories per method and class."""
    environment = Environment(
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else _visible(value),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "attribute": lambda text, most: Markup(attribute(clip(text, most)[0])),  # noqa: S704
        "line": lambda text: " ".join(text[:1000].split()),
        "long": _long,
        "malformed": malformed,
        "short": lambda text, head, tail=0: clip(text, head, tail)[0],
    }
    template = environment.from_string(_resource("page.html"))
    alone = len(methods) == 1
    sections = (None, *range(not alone and len(methods)))
    return template.render(
        css=_resource("page.css"),
        figures=figures,
        headlines=headlines(methods),
        kinds=CLASSES,
        notes=notes,
        policy=POLICY,
        runs=[_facts(method, run) for method in methods for run in method.runs],
        sections=[
            (
                "" if number is None else methods[number].name,
                [(p.caption, inline_svg(s, p)) for p, s in figures if alone or p.method == number],
            )
            for number in sections
        ],
        tables=tables,
        title=heading(methods),
        **_listing(methods, most),
    )


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="ascii")


def _visible(value: Any) -> Markup:
    return Markup(visible(str(value)))  # noqa: S704 - this is what escapes


def _long(value: Any, head: int = 1500, tail: int = 2500) -> Markup:
    """A text of bounded length; what is left out is counted."""
    start, end, left_out = clip("none" if value is None else str(value), head, tail)
    note = f'<span class="grey">\n[{left_out:,} characters left out]\n</span>' if left_out else ""
    return Markup(f"{visible(start)}{note}{visible(end)}")  # noqa: S704 - escaped here


def inline_svg(svg: str, plot: Plot) -> str:
    """An SVG file as part of a page: ids of its own, text in the colour of the page's."""
    start = re.search(r'<svg[^>]*viewBox="([^"]*)"[^>]*>', svg)
    if start is None:
        raise ValueError(f"{plot.name}: no SVG")
    svg = re.sub(r"<!--.*?-->", "", svg[start.end() :], flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    for before in (' id="', 'href="#', "url(#"):
        svg = svg.replace(before, f"{before}{plot.name}-")
    svg = svg.replace(INK, "currentColor")
    words = f'role="img" aria-label="{attribute(plot.caption)}"'
    return f'<svg viewBox="{start.group(1)}" {words}>{svg}'


def _facts(
    method: Method, run: Run
) -> tuple[str, dict[str, str], list[tuple[dict[str, str], str]]]:
    """A heading, facts of a run, and of each of its files facts and the configuration."""
    counts = (f"{display(name)} {len(run.tables[name].ids):,}" for name in ordered(run.tables))
    replayed = "every turn was recorded; the stopping rule is replayed"
    outcome = replayed if run.complete else "as recorded"
    facts = {
        "problems": ", ".join(counts),
        "stopping": f"{run.rule_text}; {outcome}" if run.stops else run.rule_text,
    }
    sources = [
        (_source_facts(source), to_json(source.config, indent=1) if source.config else "")
        for source in run.sources
    ]
    return f"{method.name}, seed {run.seed}", facts, sources


def _source_facts(source: Evaluation) -> dict[str, str]:
    facts = {"samples": str(source.samples)}
    if source.config:
        digest = hashlib.sha256(to_json(source.config).encode()).hexdigest()
        facts |= {
            "policy": str(setting(source.config, "model", "policy", "path")),
            "seed": str(setting(source.config, "seed_everything")),
            "configuration": f"sha256 {digest[:16]}",
        }
    if source.versions:
        facts["versions"] = ", ".join(f"{name} {one}" for name, one in source.versions.items())
    return facts


def _listing(methods: Sequence[Method], most: int) -> dict[str, Any]:
    """At most ``most`` trajectories per class and method, of each method's first seed.

    Returns:
        ``items``; ``filters``, {group of radio buttons: (label, [(name, trajectories)])}, of which
        the first shows everything; ``listed``, which says what is listed.
    """
    found = [list(trajectories(method.runs[0])) for method in methods]
    everything = [one for rows in found for one in rows]
    in_set = Counter(record.dataset for record, _ in everything)
    of_kind = Counter(kind for _, kinds in everything for kind in kinds)
    sets, kinds = ordered(in_set), list(CLASSES)
    filters = {
        "kind": ("show", [(CLASSES[kind], of_kind[kind]) for kind in kinds]),
        "method": ("method", [(m.name, len(rows)) for m, rows in zip(methods, found, strict=True)]),
        "set": ("data set", [(display(name), in_set[name]) for name in sets]),
    }
    items = []
    for number, (method, rows) in enumerate(zip(methods, found, strict=True), start=1):
        gate = method.runs[0].gate
        for record, filed in choose(rows, most):
            names = [f"method-{number}", f"set-{sets.index(record.dataset) + 1}"]
            names += [f"kind-{index}" for index, kind in enumerate(kinds, 1) if kind in filed]
            item = {
                "record": record,
                "kinds": filed,
                "classes": " ".join(names),
                "name": f"{display(record.dataset)} / {record.id}",
                "method": _named(method.name) if len(methods) > 1 else "",
                "interface": method.runs[0].interface,
                "threshold": gate.threshold if gate.score == "confidence" else None,
            }
            items.append(item)
    first = " Of several seeds, the first." if any(len(m.runs) > 1 for m in methods) else ""
    listed = (
        f"{len(items):,} of {len(everything):,} trajectories are listed: at most {most} per method "
        "of each kind and of no kind, from the data sets in turn. Counts are of all of them."
        f"{first}"
    )
    shown = {
        group: (label, [("all", len(everything)), *((_named(name), n) for name, n in rows)])
        for group, (label, rows) in filters.items()
    }
    return {"items": items, "filters": shown, "listed": listed}


def _named(name: str) -> str:
    """A name of bounded length, with its mark."""
    name, mark = apart(name)
    return clip(name, 80)[0] + mark
