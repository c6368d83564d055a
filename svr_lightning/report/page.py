"""``index.html``, one page without a script that needs nothing beside it."""

from base64 import b64encode
from collections.abc import Sequence

from svr_lightning.display import plain, short
from svr_lightning.report.figures import Plot
from svr_lightning.report.formats import templates
from svr_lightning.report.runs import Method
from svr_lightning.report.tables import Table

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
) -> str:
    """The whole page in ASCII, with the figures as SVG.

    Every text is escaped, and what would not show is replaced.
    """
    terms = next((table.titles for table in tables if table.name == "results"), {})
    html = (
        templates(plain)
        .get_template("page.html")
        .render(
            notes=notes,
            policy=POLICY,
            methods=methods,
            figures=[(plot.caption, b64encode(svg.encode()).decode()) for plot, svg in figures],
            tables=tables,
            terms={**terms, "\u03b3": "confidence threshold"},
            title=short(", ".join(method.name for method in methods), 200),
        )
    )
    return html.encode("ascii", "xmlcharrefreplace").decode("ascii")
