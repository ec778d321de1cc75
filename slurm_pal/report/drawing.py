# SPDX-License-Identifier: MIT
"""What all our pictures share: matplotlib's objects with our settings, no window, no global figure.

The same data gives the same bytes on one machine: no dates, ids from a fixed salt, and the
user's matplotlibrc has no influence. Pictures import what they need of matplotlib from here,
so that one line says what to install if it is missing.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

from slurm_pal.base.errors import MissingPackageError

try:
    import matplotlib
    from matplotlib import ticker as ticker
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.lines import Line2D as Line2D
except ImportError as error:
    raise MissingPackageError(
        "pictures need matplotlib: apt-get install python3-matplotlib, or pip install matplotlib"
    ) from error

Kind = Literal["svg", "png"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette: distinguishable with any common colour blindness."""
INK, SOFT, LINE, PAPER = "#1d2733", "#5b6876", "#e3e3e3", "#ffffff"
"""Text, secondary text, grid and background; on a page they follow its colour scheme."""

WIDTH_IN, DPI = 10.0, 100  # 1000 px
RASTER_DPI = 160  # for parts of an SVG with too many outlines
SETTINGS = {
    "svg.hashsalt": "slurm-pal",
    "svg.fonttype": "path",  # the reader's fonts may have other widths
    "text.parse_math": False,  # a $ in a name is a $
    "text.color": INK,
    "font.size": 12,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
}
NO_DATE: dict[Kind, dict[str, None]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "png": {"Software": None},
}


class Picture(NamedTuple):
    """A picture, or why there is none (`missing`)."""

    name: str  # file name without extension
    title: str
    caption: str
    images: dict[Kind, bytes]
    missing: str = ""


def draw(
    name: str,
    title: str,
    caption: str,
    painted: Callable[[Figure], str],
    kinds: Sequence[Kind] = ("svg", "png"),
    height_in: float = 4.8,
) -> Picture:
    """The picture that `painted` draws on an empty figure; it returns why not if its data is absent."""
    images: dict[Kind, bytes] = {}
    with our_settings(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")  # a name in a script that the font lacks is drawn as boxes
        figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
        missing = painted(figure)
        for kind in kinds if not missing else ():
            images[kind] = image(figure, kind)
    return Picture(name, title, caption, images, missing)


def image(figure: Figure, kind: Kind) -> bytes:
    """The figure as a file; call it within `our_settings`."""
    stream = io.BytesIO()
    # An SVG has pixels only where a part of it is rasterised.
    figure.savefig(stream, format=kind, metadata=NO_DATE[kind], dpi=RASTER_DPI if kind == "svg" else DPI)
    return stream.getvalue()


@contextmanager
def our_settings() -> Iterator[None]:
    """Matplotlib's defaults with our changes, while the block runs."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)  # type: ignore[arg-type, unused-ignore]
        yield


def legend_above(axes: Axes) -> None:
    """The legend above the axes, never on the data."""
    columns = min(5, len(axes.get_legend_handles_labels()[1]))
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2)
