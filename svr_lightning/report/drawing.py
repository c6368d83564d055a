"""One style for all figures: deterministic SVG, in one palette that reads on light and on dark.

Blue and orange can be distinguished by every kind of colour vision and, with grey, in greyscale.
A drawing function takes plain numbers and returns a figure; :func:`svg` runs it in the style.
"""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from svr_lightning.display import short

GREY, FAINT = "#8a8a8a", "#b4b4b4"
"""Of lines to compare with, and of what matters least. Both stand out from white and black."""
BLUE, LIGHT_BLUE = "#2f80c4", "#8dbde4"
ORANGE = "#dd6b20"
GREEN, PURPLE, RED, OLIVE = "#3c9a6a", "#9b72b4", "#c0526f", "#a08c2c"
METHODS = (
    (BLUE, "o"),
    (ORANGE, "s"),
    (GREEN, "D"),
    (PURPLE, "^"),
    (RED, "v"),
    (OLIVE, "P"),
    (LIGHT_BLUE, "X"),
    (GREY, "*"),
)
"""Colour and marker of the first method, the second, and so on; then from the start again."""
WIDTH = 5.4
"""Inches. A phone shows a figure at about two thirds of this width, where text stays legible."""
Draw = Callable[[Any], Figure]


@contextlib.contextmanager
def _style() -> Iterator[None]:
    with mpl.rc_context(), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        mpl.rc_file(Path(__file__).with_name("report.mplstyle"))
        yield


def svg(draw: Draw, numbers: Any) -> str:
    """A figure as SVG, in ASCII: the same bytes whenever it is drawn from the same numbers."""
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with _style():
        draw(numbers).savefig(stream, format="svg", transparent=True, metadata=nothing)
    return stream.getvalue().encode("ascii", "xmlcharrefreplace").decode("ascii")


def new_figure(height: float) -> Figure:
    """An empty figure, ``height`` inches high, that keeps its labels apart and inside."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def shown(text: str, limit: int = 28) -> str:
    """A name as a label; a legend leaves out names that begin with an underscore."""
    clean = short(text, limit)
    return f"\u200b{clean}" if clean.startswith("_") else clean


def token_axis(axes: Axes) -> None:
    """A logarithmic axis of tokens per problem, once everything is drawn."""
    axes.set_xlabel("tokens per problem, all turns (log scale)")
    if axes.dataLim.xmax <= 0:  # no problem was run, or no tokens were counted
        return
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    every = [1.0, 2.0, 5.0] if high / low > 4 else np.arange(1, 10, 0.5).tolist()
    axes.xaxis.set_major_locator(LogLocator(subs=every))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def share_axis(axes: Axes) -> None:
    """A vertical axis of shares, once everything is drawn: where all are equal, still a tenth."""
    low, high = axes.dataLim.intervaly
    if high - low < 0.02:
        middle = min(max((low + high) / 2, 0.055), 0.945)
        axes.set_ylim(middle - 0.06, middle + 0.06)


def legend(figure: Figure, columns: int = 2) -> None:
    """Name below the figure what is drawn in it, each name once."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        handles, names = axes.get_legend_handles_labels()
        named |= dict(zip(names, handles, strict=True))
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=columns)
