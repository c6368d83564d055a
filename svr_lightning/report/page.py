"""``index.html``, one page without a script that needs nothing beside it."""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from svr_lightning.analysis.records import SampleRecord
from svr_lightning.display import plain
from svr_lightning.report.figures import Plot
from svr_lightning.report.formats import templates
from svr_lightning.report.runs import Method, Run
from svr_lightning.report.tables import Table, headlines

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The page's content security policy."""
MOST = 25
"""Trajectories listed per method and class."""
CLASSES = {
    "premature": "premature stop",
    "fixed": "fixed by refinement",
    "broken": "broken by refinement",
    "truncated": "truncated",
}
"""What can happen in a trajectory, by key."""
OTHER = "none of these"
Filed = tuple[SampleRecord, frozenset[str]]
"""A trajectory, and the keys of :data:`CLASSES` that fit it; there may be several or none."""


def page(
    methods: Sequence[Method],
    figures: Sequence[tuple[Plot, str]],
    notes: Sequence[str],
    tables: Sequence[Table],
) -> str:
    """The whole page in ASCII: figures as SVG, :data:`MOST` trajectories per method and class.

    Every text is escaped, and what would not show is replaced.
    """
    environment = templates(plain)
    environment.filters["clip"] = clip
    terms = next((table.titles for table in tables if table.name == "results"), {})
    html = environment.get_template("page.html").render(
        classes=CLASSES,
        headlines=headlines(methods),
        listing=list(_listing(methods)),
        notes=notes,
        policy=POLICY,
        methods=methods,
        figures=[(plot.caption, b64encode(svg.encode()).decode()) for plot, svg in figures],
        tables=tables,
        terms={**terms, "\u03b3": "confidence threshold"},
        title=", ".join(method.name for method in methods),
    )
    return html.encode("ascii", "xmlcharrefreplace").decode("ascii")


def clip(value: object, head: int = 1500, tail: int = 2500) -> str:
    """A value as a text of bounded length: its beginning, how much is left out, and its end.

    Examples:
        >>> clip("abcdefgh", 2, 1)
        'ab [5 characters left out] h'
    """
    text = str(value)
    left_out = len(text) - head - tail
    if left_out <= 0:
        return text
    return f"{text[:head]} [{left_out:,} characters left out] {text[len(text) - tail :]}"


def _listing(methods: Sequence[Method]) -> Iterator[tuple[str, list[Filed]]]:
    """A heading and some trajectories for each class of each method's first seed."""
    for method in methods:
        filed = list(trajectories(method.runs[0]))
        count = Counter(kind for _, kinds in filed for kind in kinds or {OTHER})
        name = f"{method.name}: " if len(methods) > 1 else ""
        for kind, listed in choose(filed, MOST).items():
            yield f"{name}{CLASSES.get(kind, kind)}, {count[kind]:,} of {len(filed):,}", listed


# --- trajectories ---------------------------------------------------------------------------


def trajectories(run: Run) -> Iterator[Filed]:
    """Each problem of a run once, data set by data set, ended as its stopping rule says."""
    records = {record.key: record for source in run.sources for record in source.records}
    for name, table in run.tables.items():
        for row, problem in enumerate(table.ids):
            record = replace(
                records[name, problem],
                returned_turn=int(table.returned[row]),
                observed_turns=int(table.observed[row]),
                stopped_early=bool(table.stopped_early[row]),
                accepted=bool(table.accepted[row]),
            )
            yield record, classes(record, refines=name not in run.independent)


def classes(record: SampleRecord, *, refines: bool = True) -> frozenset[str]:
    """The keys of :data:`CLASSES` that fit the observed turns of a trajectory.

    Broken is a wrong answer that was correct at an earlier turn, fixed a correct one whose first
    was wrong; both only where a turn ``refines`` the one before, not of independent samples.
    """
    turns = record.turns[: record.observed]
    right = [bool(turn.correct) for turn in turns]
    earlier = right[: max(record.returned_turn - 1, 0)]
    fitting = {
        "premature": record.stopped_early and not record.right,
        "fixed": refines and record.right and not right[0],
        "broken": refines and not record.right and any(earlier),
        "truncated": any(turn.truncated for turn in turns),
    }
    return frozenset(key for key, fits in fitting.items() if fits)


def choose(filed: Sequence[Filed], most: int) -> dict[str, list[Filed]]:
    """Up to ``most`` of each class and of :data:`OTHER`, taken from the data sets in turn.

    A trajectory of several classes is listed under the first that has room for it.
    """
    left = dict(enumerate(filed))
    chosen = {}
    for key in (*CLASSES, OTHER):
        seen: Counter[str] = Counter()
        ranked = []
        for index, (record, kinds) in left.items():
            if key in (kinds or {OTHER}):
                ranked.append((seen[record.dataset], index))
                seen[record.dataset] += 1
        if ranked and most:
            chosen[key] = [left.pop(index) for _, index in sorted(ranked)[:most]]
    return chosen
