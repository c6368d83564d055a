"""One style for all figures, deterministic SVG, and labels that do not overlap.

Blue and orange can be distinguished by every kind of colour vision and, with grey, in greyscale.
A drawing function takes plain numbers and returns a figure; :func:`svg` runs it in the style.
"""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from svr_lightning.report.numbers import apart

INK, GREY, FAINT, PAPER = "#222222", "#6e6e6e", "#cfcfcf", "#fefefe"
BLUE, LIGHT_BLUE, PALE_BLUE = "#0067a8", "#6aaedb", "#b5d6ee"
ORANGE, LIGHT_ORANGE, PALE_ORANGE = "#c85200", "#f0965a", "#f9cdab"
RUST = "#8c3a00"
OTHERS = ("#5d8a66", "#a03f5a", "#b39b2e", "#5b4a8a")
"""Colours of reward terms that have none of their own."""
PALETTE = {
    **{"ink": INK, "grey": GREY, "faint": FAINT, "paper": PAPER, "rust": RUST},
    **{"blue": BLUE, "light-blue": LIGHT_BLUE, "pale-blue": PALE_BLUE},
    **{"orange": ORANGE, "light-orange": LIGHT_ORANGE, "pale-orange": PALE_ORANGE},
}
"""Every colour that occurs, by the name of the page's custom property for it."""
METHODS = ((BLUE, "o"), (ORANGE, "s"), (GREY, "D"), (INK, "^"), (LIGHT_BLUE, "v"), (GREY, "P"))
"""Colour and marker of the first method, the second, and so on; then from the start again."""
WIDTH = 5.4
"""Inches. A phone shows a figure at about two thirds of this width, where text stays legible."""
SMALL = 8.5
"""Points: the smallest text."""
DASHED = (0, (4, 3))

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
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "text.parse_math": False,  # names of methods and data sets are text
    "svg.fonttype": "path",  # the same picture with any fonts
    "svg.hashsalt": "svr_lightning",
    "figure.max_open_warning": 0,
}
Draw = Callable[[Any], Figure]


@contextlib.contextmanager
def _style() -> Iterator[None]:
    with mpl.rc_context(), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def svg(draw: Draw, numbers: Any) -> str:
    """A figure as SVG, in ASCII: the same bytes whenever it is drawn from the same numbers."""
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with _style():
        draw(numbers).savefig(stream, format="svg", transparent=True, metadata=nothing)
    return stream.getvalue().encode("ascii", "xmlcharrefreplace").decode("ascii")


def pixels(draw: Draw, numbers: Any, dpi: float = 150) -> NDArray[np.uint8]:
    """A figure as an image, [height, width, 3]."""
    with _style():
        figure = draw(numbers)
        figure.dpi = dpi
        figure.set_facecolor(PAPER)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        return np.array(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]


def new_figure(height: float) -> Figure:
    """An empty figure, ``height`` inches high, that keeps its labels apart and inside."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def one_axes(height: float) -> tuple[Figure, Axes]:
    """A figure with one axes and a light horizontal grid."""
    figure = new_figure(height)
    axes = figure.add_subplot()
    axes.grid(axis="y")
    return figure, axes


def shown(text: str, limit: int = 28) -> str:
    """A name as a label: one line, without control characters, of bounded length but for a mark."""
    name, mark = apart(text)
    clean = "".join(c if c.isprintable() else "\ufffd" for c in name[: limit + 1])
    return (clean if len(clean) <= limit else clean[: limit - 1] + "\u2026") + mark


def short_count(count: int) -> str:
    """A whole number in at most four characters or so: 12, 1.2k, 120k."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1e5 else f"{count / 1000:.0f}k"


def padded(values: Sequence[float], share: float, least: float = 0.01) -> tuple[float, float]:
    """The limits of an axis that shows ``values`` with some of their range on both sides."""
    low, high = min(values), max(values)
    pad = max((high - low) * share, least)
    return low - pad, high + pad


# --- axes -------------------------------------------------------------------------------------


def token_axis(axes: Axes) -> None:
    """A logarithmic axis of tokens per problem, once everything is drawn."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    every = [1.0, 2.0, 5.0] if high / low > 4 else np.arange(1, 10, 0.5).tolist()
    axes.xaxis.set_major_locator(LogLocator(subs=every))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}"))
    axes.set_xlabel("tokens per problem, all turns (thousands, log scale)")


def share_axis(axes: Axes) -> None:
    """A vertical axis of proportions, 0 to 1."""
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_ylim(-0.03, 1.03)
    axes.grid(axis="y")


def turn_axis(axes: Axes, turns: Sequence[int], label: str = "turn") -> None:
    """A horizontal axis of turns."""
    axes.set_xticks(list(turns))
    axes.set_xlabel(label)


def stacked_bars(
    axes: Axes,
    places: Sequence[float],
    parts: Sequence[tuple[Sequence[float], str]],
    width: float,
) -> NDArray[np.float64]:
    """Draw parts, (heights, colour) each, on top of each other; returns the whole heights."""
    base = np.zeros(len(places))
    for heights, colour in parts:
        axes.bar(places, heights, width, bottom=base, color=colour, linewidth=0)
        base += np.asarray(heights)
    return base


def patches(names: Sequence[tuple[str, str]]) -> list[Rectangle]:
    """The handles of a legend of areas, (name, colour) each."""
    return [Rectangle((0, 0), 1, 1, color=colour, label=name) for name, colour in names]


def note(axes: Axes, text: str) -> None:
    """Say in the middle of empty axes why they are empty."""
    axes.set_yticks([])
    axes.text(
        0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=9
    )


# --- labels -----------------------------------------------------------------------------------


def label(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    shift: tuple[float, float] = (0, 0),
    *,
    coordinates: Any = "data",
    **style: Any,
) -> None:
    """Small text at ``place``, moved by ``shift`` points; ``style`` as of matplotlib's texts."""
    style = {"fontsize": SMALL, "annotation_clip": False, **style}
    axes.annotate(
        text, place, xytext=shift, xycoords=coordinates, textcoords="offset points", **style
    )


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
    found = dict(zip(order, placed, strict=True))
    return [found[index] for index in range(len(positions))]


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
            place = (1.0, height)
            units = ("axes fraction", "data")
            label(axes, text, place, (shift, 0), coordinates=units, va="center", color=paint)


class Label(NamedTuple):
    """A name for a point."""

    x: float
    y: float
    text: str
    colour: str
    size: float = SMALL
    weight: str = "normal"


Line = tuple[Sequence[float], Sequence[float]]
"""The x and the y of a drawn line, or of a point."""
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
_ALIGN = {1: ("left", "bottom"), 0: ("center", "center"), -1: ("right", "top")}
_STEP = 6.0
"""Points between two places of a line that labels keep clear of."""


def name_points(axes: Axes, labels: Sequence[Label], lines: Sequence[Line]) -> None:
    """Write each label, the more important first, at the side of its point where it covers least.

    Everything else is drawn before; ``lines`` are what should stay visible.
    """
    figure = _figure_of(axes)
    figure.draw_without_rendering()  # settles where the axes are
    scale = 72 / figure.dpi

    def where(x: Sequence[float], y: Sequence[float]) -> NDArray[np.float64]:
        return np.asarray(axes.transData.transform(np.column_stack([x, y])) * scale)

    taken = [(x - 4, y - 4, x + 4, y + 4) for line in lines for x, y in _along(where(*line))]
    inside = [float(edge) * scale for edge in axes.bbox.extents]
    for one in labels:
        ((x, y),) = where([one.x], [one.y])
        choices = [
            (side, reach, _box(one, x, y, side, reach)) for reach in (8, 16) for side in _SIDES
        ]
        (across, up), reach, box = min(
            choices, key=lambda choice: _covered(choice[2], taken, inside) + choice[1] / 100
        )
        taken.append(box)
        style = {"fontsize": one.size, "fontweight": one.weight, "path_effects": halo()}
        (ha, _), (_, va) = _ALIGN[across], _ALIGN[up]
        shift = (across * reach, up * reach)
        label(axes, one.text, (one.x, one.y), shift, color=one.colour, ha=ha, va=va, **style)


def _along(corners: NDArray[np.float64]) -> list[list[float]]:
    """The corners of a line, and places between them."""
    places = [corners[:1]]
    for start, end in pairwise(corners):
        steps = max(int(np.hypot(*(end - start)) / _STEP), 1)
        places.append(start + (end - start) * np.linspace(0, 1, steps + 1)[1:, None])
    found: list[list[float]] = np.concatenate(places).tolist()
    return found


Box = tuple[float, float, float, float]


def _box(one: Label, x: float, y: float, side: tuple[int, int], reach: float) -> Box:
    """Where a label would stand, in points: left, bottom, right, top."""
    width, height = 0.64 * one.size * len(one.text), 1.25 * one.size
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
