"""The page and the tables of a report, from the templates of this folder.

``index.html`` has no script and needs nothing beside it. Every text is escaped.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from svr_lightning.display import plain, short
from svr_lightning.report.figures import Plot
from svr_lightning.report.runs import Method
from svr_lightning.report.tables import Table

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The page's content security policy."""
_ESCAPES = {
    "tex": {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "\u00b1": r"$\pm$",
        "\u03b3": r"$\gamma$",
        "\ufffd": "?",
        **{character: f"\\{character}" for character in "&%$#_{}"},
    },
    "md": {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        **{character: f"\\{character}" for character in "\\`*_[]|~$"},
    },
}
"""By form."""


def templates(escaped: Callable[[str], str]) -> Environment:
    """The templates, in which every expression goes through ``escaped``."""
    return Environment(
        autoescape=select_autoescape(),
        finalize=lambda value: value if isinstance(value, Markup) else escaped(str(value)),
        loader=PackageLoader(__package__, ""),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


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
            terms={**terms, "Acc.": "accuracy", "\u03b3": "confidence threshold"},
            title=short(", ".join(method.name for method in methods), 200),
        )
    )
    return html.encode("ascii", "xmlcharrefreplace").decode("ascii")


def tables_text(tables: Sequence[Table], form: str) -> str:
    """Every table with its caption, in UTF-8.

    ``tex`` makes each a float over both columns with a label of its own, and needs booktabs; ``md``
    is Markdown.
    """
    codes = str.maketrans(_ESCAPES[form])
    environment = templates(lambda text: plain(" ".join(text.split())).translate(codes))
    return environment.get_template(f"tables.{form}").render(tables=tables)
