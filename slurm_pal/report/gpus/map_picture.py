"""The heat map as a picture: nodes from left to right in bands, GPU indexes from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_pal.report.drawing import INK, PAPER, SOFT, Axes, Figure
from slurm_pal.report.gpus.heatmap import Cell, Line, by_node
from slurm_pal.report.gpus.scale import MEDIAN_STEP, STEPS, UNKNOWN, counts, step_of
from slurm_pal.report.inventory import GpuRow

NODES_PER_BAND = 48
MOST_PER_BAND = 160
BANDS = 12  # more nodes than fit into so many bands are drawn smaller
RASTER_FROM = 1500  # cells
LARGEST_IN, TALLEST_IN = 0.42, 40.0  # side of a square, height of a band
UNKNOWN_COLOUR = "#b8bfc6"
MARK = "#fefefe"  # white in both colour schemes, since it stands on the colours of the scale


def heat_map(rows: Sequence[GpuRow], sensitivity: str, figure: Figure, alike_is_enough: bool = False) -> str:
    """Draw the GPUs; answers why not where nothing is known of them.

    With `alike_is_enough` that is the answer too where all scores are in the middle step of the scale.
    """
    nodes = by_node(rows, sensitivity)
    cells = [c for node in nodes for c in node.cells if c.present]
    if all(c.slowdown is None for c in cells):
        return f"no GPU has a score for class {sensitivity}"
    if alike_is_enough and all(c.slowdown is None or step_of(c.slowdown) is STEPS[MEDIAN_STEP] for c in cells):
        return "all scores are within 1 % of the median GPU"
    per_band = min(MOST_PER_BAND, max(NODES_PER_BAND, -(-len(nodes) // BANDS)), len(nodes))
    bands = [nodes[i : i + per_band] for i in range(0, len(nodes), per_band)]
    depth = max(len(node.cells) for node in nodes)
    side_in = min(LARGEST_IN, 9.4 / per_band, TALLEST_IN / depth)
    figure.set_figheight(0.9 + len(bands) * (depth * side_in + 0.36))
    axes = figure.subplots()
    gap = 0.36 / side_in  # room for the names below each band
    for b, band in enumerate(bands):
        top = b * (depth + gap)
        _marks(axes, band, top)
        _names(axes, band, top + depth, side_in)
    _squares(axes, bands, depth + gap, raster=len(cells) > RASTER_FROM)
    axes.set_xlim(-0.1, max(per_band, 9.4 / side_in))
    axes.set_ylim(len(bands) * (depth + gap), -0.1)
    axes.set_axis_off()
    _legend(axes, cells)
    return ""


def _squares(axes: Axes, bands: Sequence[Sequence[Line]], step: float, raster: bool) -> None:
    """The GPUs, in one collection for each colour: few objects, whatever the number of GPUs."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    found: dict[str, list[Rectangle]] = {}
    for b, band in enumerate(bands):
        for x, node in enumerate(band):
            for y, one in enumerate(node.cells):
                if one.present:
                    found.setdefault(_colour(one), []).append(Rectangle((x, b * step + y), 0.92, 0.92))
    for colour, squares in sorted(found.items()):
        hatch = "////" if colour == UNKNOWN_COLOUR else None
        made = PatchCollection(squares, facecolor=colour, edgecolor=SOFT, linewidth=0.3, hatch=hatch, rasterized=raster)
        axes.add_collection(made)


def _colour(cell: Cell) -> str:
    return UNKNOWN_COLOUR if cell.slowdown is None else step_of(cell.slowdown).colour


def _marks(axes: Axes, band: Sequence[Line], top: float) -> None:
    """A ring on each flagged GPU, light within dark, so that it shows on every colour."""
    spots = [(x + 0.46, top + y + 0.46) for x, n in enumerate(band) for y, c in enumerate(n.cells) if c.flagged]
    if not spots:
        return
    points_per_cell = 72 * min(LARGEST_IN, 9.4 / max(len(band), 1))
    size = max(3.0, (0.5 * min(points_per_cell, 14.0)) ** 2)
    x, y = zip(*spots, strict=True)
    raster = len(spots) > RASTER_FROM // 4
    axes.scatter(x, y, s=size, facecolors=MARK, edgecolors="#111111", linewidths=1.0, zorder=3, rasterized=raster)


def _names(axes: Axes, band: Sequence[Line], below: float, side_in: float) -> None:
    """Names under every so many nodes, as close as they do not touch."""
    longest = max(len(node.name) for node in band)
    every = max(1, round(longest * 0.085 / side_in + 0.9))
    for x in range(0, len(band), every):
        axes.text(x, below + 0.06 / side_in, band[x].name, fontsize=9, color=SOFT, va="top", ha="left")


def _legend(axes: Axes, cells: Sequence[Cell]) -> None:
    from matplotlib.patches import Patch

    known = counts([c.slowdown for c in cells if c.slowdown is not None])
    handles = [Patch(facecolor=s.colour, label=f"{s.text}: {n}") for s, n in zip(STEPS, known, strict=True)]
    unknown = len(cells) - sum(known)
    handles.append(
        Patch(facecolor=UNKNOWN_COLOUR, edgecolor=SOFT, hatch="////", label=f"unknown ({UNKNOWN}): {unknown}")
    )
    axes.legend(
        handles=handles,
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
