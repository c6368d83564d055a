"""``index.html``, one page that needs nothing beside it, and ``report.md``.

The page has no script: filters are radio buttons that style sheets read, so it may forbid
everything else.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from svr_lightning.evaluation.results import setting
from svr_lightning.files import to_json
from svr_lightning.report.figures import DrawnFigure
from svr_lightning.report.figures_style import PALETTE
from svr_lightning.report.names import display, ordered
from svr_lightning.report.numbers import headline, rule_note, seed_name
from svr_lightning.report.runs import Method, heading
from svr_lightning.report.text import (
    Table,
    attribute,
    clip,
    markdown,
    to_html,
    to_markdown,
    visible,
)
from svr_lightning.report.trajectories import FILTERS, Listed, listing

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The page's content security policy."""
_CONFIG = 20_000
"""Longest configuration shown, in characters."""


def page(
    methods: Sequence[Method],
    figures: Sequence[tuple[DrawnFigure, str]],
    notes: Sequence[str],
    tables: Sequence[Table],
    most: int,
) -> str:
    """The whole page, in ASCII.

    Args:
        methods: what was read.
        figures: with their SVG.
        notes: what is missing and why.
        tables: the first is the one to open with.
        most: trajectories shown per method and class.
    """
    title = heading(methods)
    listed = listing(methods, most)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{visible_title(title)}</title>",
        f"<style>{files(__package__).joinpath('page.css').read_text(encoding='ascii')}",
        f"{listed.css}</style></head><body>",
        f"<h1>Report: {visible(title)}</h1>",
        f'<p class="headline">{visible(headline(methods))}</p>',
        "<nav>" + "".join(f'<a href="#{name.lower()}">{name}</a>' for name in _SECTIONS) + "</nav>",
        '<section id="results"><h2>Results</h2>',
        *(to_html(table) for table in tables[:2]),
        "</section>",
        *_figures(methods, figures, notes),
        '<section id="tables"><h2>Tables</h2>',
        *(
            f"<details><summary>{visible(_short(table))}</summary>{to_html(table)}</details>"
            for table in tables[2:]
        ),
        "</section>",
        '<section id="facts"><h2>Facts</h2>',
        *_facts(methods),
        "</section>",
        *_trajectories(listed),
        "</body></html>\n",
    ]
    return "\n".join(parts)


_SECTIONS = ("Results", "Figures", "Tables", "Facts", "Trajectories")


def visible_title(text: str) -> str:
    """A title holds no tags: hidden characters are in brackets."""
    return attribute(clip(text, 200, 0)[0])


def _short(table: Table) -> str:
    return table.caption.split(". ")[0].rstrip(".")


def inline_svg(svg: str, prefix: str, label: str) -> str:
    """An SVG file as part of a page: ids of its own, colours that follow the page's."""
    svg = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="([^"]*)"', svg)
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    svg = svg.replace("url(#", f"url(#{prefix}")
    for name, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{name})")
    view = box.group(1) if box else "0 0 1 1"
    return f'<svg viewBox="{view}" role="img" aria-label="{attribute(label)}">{svg}'


def _figures(
    methods: Sequence[Method], figures: Sequence[tuple[DrawnFigure, str]], notes: Sequence[str]
) -> Iterable[str]:
    yield '<section id="figures"><h2>Figures</h2>'
    for number in (None, *range(len(methods))):
        if number is not None and len(methods) > 1:
            yield f"<h3>{visible(methods[number].name)}</h3>"
        yield '<div class="figures">'
        for figure, svg in figures:
            if figure.method == number:
                inner = inline_svg(svg, f"{figure.name}-", figure.caption)
                yield f"<figure><figcaption>{visible(figure.caption)}</figcaption>"
                yield f'<div class="scroll" tabindex="0">{inner}</div></figure>'
        yield "</div>"
    for note in notes:
        yield f'<p class="grey">{visible(note)}</p>'
    yield "</section>"


def _facts(methods: Sequence[Method]) -> Iterable[str]:
    for method in methods:
        for index, run in enumerate(method.runs, start=1):
            yield f"<h3>{visible(method.name)}, seed {visible(seed_name(run, index))}</h3>"
            counts = (f"{display(n)} {len(run.tables[n].ids):,}" for n in ordered(run.tables))
            outcome = (
                "every turn was recorded; the stopping rule is replayed"
                if run.complete
                else "as recorded"
            )
            facts = {
                "problems": ", ".join(counts),
                "stopping": f"threshold {run.rule.threshold:.2f}, gate {run.rule.gate}, "
                f"at most {run.max_turns} turns; {outcome}"
                if run.stops
                else rule_note(run),
            }
            yield _fact_list(facts)
            for source in run.sources:
                yield _fact_list(_source_facts(source.config, source.versions, str(source.samples)))
                if source.config:
                    text, _, left_out = clip(to_json(source.config, indent=1), _CONFIG, 0)
                    rest = f"\n[{left_out:,} characters left out]" if left_out else ""
                    yield "<details><summary>configuration</summary>"
                    yield f"<pre>{visible(text)}{rest}</pre></details>"


def _source_facts(
    config: Mapping[str, Any], versions: Mapping[str, Any], samples: str
) -> dict[str, str]:
    facts = {"samples": samples}
    if config:
        digest = hashlib.sha256(to_json(config).encode()).hexdigest()
        facts |= {
            "policy": str(setting(config, "model", "policy", "path")),
            "seed": str(setting(config, "seed_everything")),
            "configuration": f"sha256 {digest[:16]}",
        }
    if versions:
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return facts


def _fact_list(facts: Mapping[str, str]) -> str:
    rows = (
        f"<dt>{visible(name)}</dt><dd>{visible(clip(value, 500, 100)[0])}</dd>"
        for name, value in facts.items()
    )
    return f'<dl class="facts">{"".join(rows)}</dl>'


def _trajectories(listed: Listed) -> Iterable[str]:
    yield '<section id="trajectories"><h2>Trajectories</h2>'
    yield f'<p class="grey">{visible(listed.note)}</p>'
    for group in FILTERS:
        for number in range(len(listed.filters[group])):
            checked = " checked" if not number else ""
            yield f'<input type="radio" name="{group}" id="{group}-{number}"{checked}>'
    for group, label in FILTERS.items():
        labels = (
            f'<label for="{group}-{number}">{visible(name)} <small>{count:,}</small></label>'
            for number, (name, count) in enumerate(listed.filters[group])
        )
        yield f'<div class="filters"><span>{label}</span>{"".join(labels)}</div>'
    yield '<div class="list">'
    yield from listed.items
    yield '</div><p class="shown" role="status"></p></section>'


def report_md(
    methods: Sequence[Method],
    figures: Sequence[DrawnFigure],
    notes: Sequence[str],
    tables: Sequence[Table],
) -> str:
    """The report as Markdown: tables, figures as links to the SVG files, and the samples."""
    lines = [f"# Report: {markdown(heading(methods))}", "", markdown(headline(methods)), ""]
    lines += [to_markdown(table) for table in tables]
    for figure in figures:
        caption = markdown(figure.caption)
        lines += [f"![{caption}](figures/{figure.name}.svg)", "", caption, ""]
    lines += [f"- {markdown(note)}" for note in notes]
    lines += ["", "Samples:", ""]
    lines += [
        f"- {markdown(method.name)}: {markdown(str(source.samples))}"
        for method in methods
        for run in method.runs
        for source in run.sources
    ]
    return "\n".join(lines) + "\n"
