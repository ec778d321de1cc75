# SPDX-License-Identifier: MIT
"""The heat map as a picture: nodes from left to right in bands, GPU indexes from top to bottom.

Of thousands of GPUs nobody sees one: then each node is one square, its slowest GPU, in rows that begin with a name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slurm_pal.report.drawing import INK, PAPER, SOFT, WIDTH_IN, Axes, Figure, Line2D
from slurm_pal.report.gpus.heatmap import Cell, HeatmapLine, by_node
from slurm_pal.report.gpus.scale import MEDIAN_STEP, STEPS, UNKNOWN, counts, step_of
from slurm_pal.report.gpus.shown_names import cut
from slurm_pal.report.inventory import GpuRow

NODES_PER_BAND = 48
MOST_PER_BAND = 96  # squares of 10 pixels on a page: large enough to see one slow GPU among 10,000
MOST_GPUS = 4000  # more are drawn by their nodes
NODES_PER_ROW, MANY_NODES = 50, 5000  # of such a map; with more nodes a row has twice as many
BANDS = 6  # more nodes than fit into these bands are drawn smaller
RASTER_FROM = 1500  # cells
LARGEST_IN, TALLEST_IN = 0.6, 40.0  # side of a square, height of a band
BAND_IN = WIDTH_IN - 0.6  # width of a full band
NAMES_IN = 0.36  # height of the names below a band
CHARACTER_IN = 0.085  # width, of a name
MOST_INDEXES = 8  # labels at the left of a band
INDEX_POINTS = 7.0  # height of a label; of squares that are lower only the first and the last have one
OUTLINED_IN = 0.15  # smaller squares have no outline, which would be darker than most of them
UNKNOWN_COLOUR = "#b8bfc6"
MARK = "#fefefe"  # white in both colour schemes, since it is on the colours of the scale
DESK = "#fdfdfd"  # behind the squares, in both colour schemes: the darkest are the slowest and must stand out


def heat_map(
    rows: Sequence[GpuRow], sensitivity: str, figure: Figure, alike_is_enough: bool = False, title: str = ""
) -> str:
    """Draw the GPUs, below a title if there is one; return why not if nothing is known about them.

    With `alike_is_enough`, also return why not if all scores are in the middle step of the scale.
    """
    nodes = by_node(rows, sensitivity)
    cells = [c for node in nodes for c in node.cells if c.present]
    if all(c.slowdown is None for c in cells):
        return f"no GPU has a score for class {sensitivity}"
    if alike_is_enough and all(c.slowdown is None or step_of(c.slowdown) is STEPS[MEDIAN_STEP] for c in cells):
        return "all scores are within 1 % of the median GPU"
    by_nodes = len(cells) > MOST_GPUS
    title += "\nthe slowest GPU of each node" if title and by_nodes else ""
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    if by_nodes:
        _node_rows(figure, [(node.name, _slowest(node)) for node in nodes], 0.3 * bool(title))
        return ""
    per_band = min(MOST_PER_BAND, max(NODES_PER_BAND, -(-len(nodes) // BANDS)), len(nodes))
    bands = [nodes[i : i + per_band] for i in range(0, len(nodes), per_band)]
    depth = max(len(node.cells) for node in nodes)
    side_in = min(LARGEST_IN, BAND_IN / per_band, TALLEST_IN / depth)
    figure.set_figheight(0.9 + 0.3 * bool(title) + len(bands) * (depth * side_in + NAMES_IN))
    axes = figure.subplots()
    step = depth + NAMES_IN / side_in
    _squares(axes, bands, step, 0.3 if side_in >= OUTLINED_IN else 0.0, raster=len(cells) > RASTER_FROM)
    for b, band in enumerate(bands):
        _desk(axes, band, b * step)
        _marks(axes, band, b * step, side_in)
        _names(axes, band, b * step + depth, side_in)
        _indexes(axes, depth, b * step, side_in)
    axes.set_xlim(-0.1, max(per_band, BAND_IN / side_in))
    axes.set_ylim(len(bands) * step, -0.1)
    axes.set_axis_off()
    _legend(axes, cells)
    return ""


def _slowest(node: HeatmapLine) -> Cell:
    """The slowest known GPU of a node, marked if any of them is."""
    known = [one.slowdown for one in node.cells if one.slowdown is not None]
    return Cell(max(known, default=None), any(one.flagged for one in node.cells))


def _node_rows(figure: Figure, nodes: Sequence[tuple[str, Cell]], more_in: float) -> None:
    """One square for each node; each row begins with the name of its first."""
    per_row = NODES_PER_ROW * (2 if len(nodes) > MANY_NODES else 1)
    lines = [HeatmapLine((name,), (one,)) for name, one in nodes]
    rows = [lines[i : i + per_row] for i in range(0, len(lines), per_row)]
    names = [cut(row[0].name) for row in rows]
    names_in = max(map(len, names)) * CHARACTER_IN + 0.1
    side_in = (BAND_IN - names_in) / per_row
    figure.set_figheight(1.2 + more_in + len(rows) * side_in)
    axes = figure.subplots()
    _squares(axes, rows, 1.0, 0.3 if side_in >= OUTLINED_IN else 0.0, raster=len(lines) > RASTER_FROM)
    for at, (row, name) in enumerate(zip(rows, names, strict=True)):
        _desk(axes, row, at)
        _marks(axes, row, at, side_in)
        size = min(9.0, 60 * side_in)
        axes.text(-0.5, at + 0.46, name, fontsize=size, color=SOFT, va="center", ha="right").set_in_layout(False)
    axes.set_xlim(-names_in / side_in, per_row)
    axes.set_ylim(len(rows), -0.1)
    axes.set_axis_off()
    _legend(axes, [one for _, one in nodes], "nodes")


def _squares(axes: Axes, bands: Sequence[Sequence[HeatmapLine]], step: float, outline: float, raster: bool) -> None:
    """The GPUs, one collection for each colour: few objects for any number of GPUs."""
    from matplotlib.collections import PolyCollection

    corners: dict[str, list[tuple[float, float]]] = {}
    for b, band in enumerate(bands):
        for x, node in enumerate(band):
            for y, one in enumerate(node.cells):
                if one.present:
                    corners.setdefault(_colour(one), []).append((x, b * step + y))
    square = np.array([[0.0, 0.0], [0.92, 0.0], [0.92, 0.92], [0.0, 0.92]])
    for colour, at in sorted(corners.items()):
        hatch = "////" if colour == UNKNOWN_COLOUR else None
        made = PolyCollection(np.array(at)[:, None, :] + square, facecolor=colour, edgecolor=SOFT, linewidth=outline)
        made.set(hatch=hatch, rasterized=raster)
        axes.add_collection(made)


def _colour(cell: Cell) -> str:
    return UNKNOWN_COLOUR if cell.slowdown is None else step_of(cell.slowdown).colour


def _desk(axes: Axes, band: Sequence[HeatmapLine], top: float) -> None:
    from matplotlib.patches import Rectangle

    depth = max(len(node.cells) for node in band)
    axes.add_patch(Rectangle((-0.08, top - 0.08), len(band) + 0.08, depth + 0.08, color=DESK, linewidth=0, zorder=0))


def _marks(axes: Axes, band: Sequence[HeatmapLine], top: float, side_in: float) -> None:
    """A ring on each flagged GPU, light within dark, so that it shows on every colour."""
    spots = [(x + 0.46, top + y + 0.46) for x, n in enumerate(band) for y, c in enumerate(n.cells) if c.flagged]
    if not spots:
        return
    size = max(3.0, (0.5 * min(72 * side_in, 14.0)) ** 2)
    x, y = zip(*spots, strict=True)
    raster = len(spots) > RASTER_FROM // 4
    axes.scatter(x, y, s=size, facecolors=MARK, edgecolors="#111111", linewidths=1.0, zorder=3, rasterized=raster)


def _names(axes: Axes, band: Sequence[HeatmapLine], below: float, side_in: float) -> None:
    """Names under every n-th node, as close as possible without touching; none beyond the edge."""
    names = [cut(node.name) for node in band]
    every = math.ceil((max(map(len, names)) + 0.7) * CHARACTER_IN / side_in)
    for x in range(0, len(band), every):
        if x == 0 or x * side_in + len(names[x]) * CHARACTER_IN < BAND_IN + 0.1:
            text = axes.text(x, below + 0.06 / side_in, names[x], fontsize=9, color=SOFT, va="top", ha="left")
            text.set_in_layout(False)  # the squares keep their width


def _indexes(axes: Axes, depth: int, top: float, side_in: float) -> None:
    """GPU indexes at the left of the band: all, or the first and the last."""
    every = depth <= MOST_INDEXES and 72 * side_in > INDEX_POINTS
    for y in range(depth) if every else (0, depth - 1):
        axes.text(
            -0.25, top + y + 0.46, str(y), fontsize=min(INDEX_POINTS, 60 * side_in), color=SOFT, va="center", ha="right"
        )


def _legend(axes: Axes, cells: Sequence[Cell], what: str = "GPUs") -> None:
    """Colours and marks, each with the number of GPUs or nodes that have it."""
    from matplotlib.patches import Patch

    known = counts([c.slowdown for c in cells if c.slowdown is not None])
    looks: list[tuple[str, str | None, str]] = [
        (s.colour, None, f"{s.text}: {n:,}") for s, n in zip(STEPS, known, strict=True)
    ]
    looks.append((UNKNOWN_COLOUR, "////", f"unknown ({UNKNOWN}): {len(cells) - sum(known):,}"))
    handles: list[Patch | Line2D] = [
        Patch(facecolor=c, edgecolor=SOFT, linewidth=0.3, hatch=h, label=text) for c, h, text in looks
    ]
    flags = f"flag: {sum(c.flagged for c in cells):,}"
    ring = Line2D([], [], linestyle="", marker="o", markersize=7.0, label=flags)
    ring.set(markerfacecolor=MARK, markeredgecolor="#111111")
    handles.append(ring)
    axes.legend(
        handles=handles,
        title=f"slowdown: {what}",
        title_fontsize=9,
        alignment="left",
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=6,
        fontsize=9,
        labelcolor=INK,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.2,
        borderaxespad=0.2,
    ).get_frame().set_facecolor(PAPER)
