"""One look for every figure, and deterministic SVG.

Blue and orange can be told apart by every kind of colour vision and, with grey, in greyscale.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from svr_lightning.report.names import apart

INK, GREY, FAINT, PAPER = "#222222", "#6e6e6e", "#cfcfcf", "#fefefe"
BLUE, LIGHT_BLUE, PALE_BLUE = "#0067a8", "#6aaedb", "#b5d6ee"
ORANGE, LIGHT_ORANGE, PALE_ORANGE = "#c85200", "#f0965a", "#f9cdab"
RUST = "#8c3a00"
OTHERS = ("#5d8a66", "#a03f5a", "#b39b2e", "#5b4a8a")
"""Colours of reward terms that have none of their own."""
PALETTE = {
    "ink": INK,
    "grey": GREY,
    "faint": FAINT,
    "paper": PAPER,
    "blue": BLUE,
    "light-blue": LIGHT_BLUE,
    "pale-blue": PALE_BLUE,
    "orange": ORANGE,
    "light-orange": LIGHT_ORANGE,
    "pale-orange": PALE_ORANGE,
    "rust": RUST,
}
"""Every colour that occurs, by the name of the page's custom property for it."""
VERDICTS = {"CORRECT": BLUE, "INCORRECT": ORANGE, "UNSURE": GREY}
METHODS = ((BLUE, "o"), (ORANGE, "s"), (GREY, "D"), (INK, "^"), (LIGHT_BLUE, "v"), (GREY, "P"))
"""Colour and marker of the first method, the second, and so on; then from the start again."""
WIDTH = 5.4
"""Inches. A phone shows a figure at about two thirds of this width, where text stays legible."""
SMALL = 8.5
"""Points: the smallest text."""

_RC: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "hatch.color": PAPER,
    "lines.linewidth": 1.6,
    "text.parse_math": False,  # names of methods and data sets are text
    "svg.fonttype": "path",  # the same picture with any fonts
    "svg.hashsalt": "svr_lightning",
    "figure.max_open_warning": 0,
}


P = ParamSpec("P")
R = TypeVar("R")


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Run a drawing function under the common style."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(), warnings.catch_warnings():
            # A name in a script that the font lacks is drawn as boxes.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            mpl.rcdefaults()
            mpl.rcParams.update(_RC)
            return function(*args, **kwargs)

    return run


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure, in inches, that keeps its labels apart and inside."""
    return Figure(figsize=(width, height), layout="constrained")


@styled
def svg(figure: Figure) -> str:
    """The figure as SVG: the same bytes whenever it is drawn from the same numbers."""
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    return stream.getvalue()


def shown(text: str, limit: int = 28) -> str:
    """A name as a label: one line, without control characters, of bounded length but for a mark."""
    name, mark = apart(text)
    clean = "".join(c if c.isprintable() else "\ufffd" for c in name[: limit + 1])
    return (clean if len(clean) <= limit else clean[: limit - 1] + "\u2026") + mark


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Move positions apart, as little as need be, until neighbours are at least ``gap`` apart.

    Examples:
        >>> spread([1.0, 1.0, 5.0], gap=1.0)
        [0.5, 1.5, 5.0]
    """
    order = sorted(range(len(positions)), key=lambda index: (positions[index], index))
    blocks: list[list[float]] = []  # [centre, size]: labels that touch, centred where they were
    for index in order:
        blocks.append([positions[index], 1])
        while len(blocks) > 1:
            (low, n), (high, m) = blocks[-2:]
            if high - low >= gap * (n + m) / 2:
                break
            blocks[-2:] = [[(low * n + high * m) / (n + m), n + m]]
    placed = [
        centre + gap * (step - (size - 1) / 2)
        for centre, size in blocks
        for step in range(int(size))
    ]
    result = [0.0] * len(positions)
    for index, position in zip(order, placed, strict=True):
        result[index] = position
    return result


def _figure_of(axes: Axes) -> Figure:
    return cast(Figure, axes.get_figure(root=True))


def label_right(axes: Axes, ends: Sequence[tuple[float, str, str]], *, areas: bool = False) -> None:
    """Name each line or area at its right end, ``(height, name, colour)``, without overlaps.

    The name has the line's colour; that of an area is dark, beside a square of its colour, because
    areas may be pale.
    """
    low, high = axes.get_ylim()
    inches = 0.85 * axes.bbox.height / _figure_of(axes).dpi  # once laid out
    gap = (high - low) * SMALL * 1.3 / 72 / max(inches, 0.1)
    heights = spread([end[0] for end in ends], gap)
    for height, (_, name, colour) in zip(heights, ends, strict=True):
        parts = [(4, "\u25a0", colour), (14, name, INK)] if areas else [(4, name, colour)]
        for shift, text, paint in parts:
            axes.annotate(
                text,
                (1.0, height),
                xycoords=("axes fraction", "data"),
                xytext=(shift, 0),
                textcoords="offset points",
                va="center",
                color=paint,
                fontsize=SMALL,
                annotation_clip=False,
            )


class Label(NamedTuple):
    """A name for a point."""

    x: float
    y: float
    text: str
    colour: str
    size: float = SMALL
    weight: str = "normal"


_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
_ALIGN = {
    1: ("left", "bottom"),
    0: ("center", "center"),
    -1: ("right", "top"),
}


def name_points(axes: Axes, labels: Sequence[Label], points: Sequence[tuple[float, float]]) -> None:
    """Write each label at the side of its point where it covers least.

    Args:
        axes: with everything else drawn.
        labels: the more important first.
        points: [P] (x, y) that should stay visible.
    """
    figure = _figure_of(axes)
    figure.draw_without_rendering()  # settles where the axes are
    scale = 72 / figure.dpi

    def where(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y)) * scale
        return float(across), float(up)

    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in (where(*point) for point in points)]
    inside = tuple(float(edge) * scale for edge in axes.bbox.extents)
    for label in labels:
        x, y = where(label.x, label.y)
        choices = [
            (side, reach, _box(label, x, y, side, reach)) for reach in (8, 16) for side in _SIDES
        ]
        (across, up), reach, box = min(
            choices, key=lambda choice: _covered(choice[2], taken, inside) + choice[1] / 100
        )
        taken.append(box)
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(across * reach, up * reach),
            textcoords="offset points",
            ha=_ALIGN[across][0],
            va=_ALIGN[up][1],
            color=label.colour,
            fontsize=label.size,
            fontweight=label.weight,
            path_effects=halo(),
        )


Box = tuple[float, float, float, float]


def _box(label: Label, x: float, y: float, side: tuple[int, int], reach: float) -> Box:
    """Where a label would stand, in points: left, bottom, right, top."""
    width, height = 0.64 * label.size * len(label.text), 1.25 * label.size
    left = x + side[0] * reach + (side[0] - 1) * width / 2
    bottom = y + side[1] * reach + (side[1] - 1) * height / 2
    return left, bottom, left + width, bottom + height


def _covered(box: Box, taken: Sequence[Box], inside: Sequence[float]) -> float:
    """The area of ``box`` that lies on others or outside of the axes."""
    area = sum(_shared(box, other) for other in taken)
    whole = (box[2] - box[0]) * (box[3] - box[1])
    return area + 2 * (whole - _shared(box, inside))


def _shared(one: Sequence[float], other: Sequence[float]) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    up = min(one[3], other[3]) - max(one[1], other[1])
    return max(across, 0.0) * max(up, 0.0)


def halo() -> list[withStroke]:
    """An outline in the colour of the paper, for text that may cross a line."""
    return [withStroke(linewidth=2.5, foreground=PAPER)]


def share_axis(axes: Axes, which: str = "y") -> None:
    """Ticks of a proportion, 0 to 1, with a light grid."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_ticks(np.linspace(0, 1, 6))
    axes.grid(axis=which)  # type: ignore[arg-type]


def turn_axis(axes: Axes, turns: Sequence[int]) -> None:
    """Label turns with whole numbers."""
    axes.set_xticks(list(turns))
    axes.set_xlabel("turn")


def short_count(count: int) -> str:
    """A whole number in at most four characters or so: 12, 1.2k, 120k."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1e5 else f"{count / 1000:.0f}k"


def note(axes: Axes, text: str) -> None:
    """Say in the middle of empty axes why they are empty."""
    axes.text(
        0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=9
    )
