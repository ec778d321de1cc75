# SPDX-License-Identifier: MIT
"""Nodes x GPUs in the terminal: a digit and a colour for each GPU.

Neighbouring nodes that look the same share a line, and the width of the terminal is filled with
columns of nodes: a thousand nodes take a few screens. The digits say the same as the colours, so
that nothing is lost in a pipe or on paper.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from rich.console import Console
from rich.style import Style
from rich.text import Text

from slurm_pal.base.faults import OK
from slurm_pal.base.hostlist import fold
from slurm_pal.base.terminal import visible
from slurm_pal.report.gpus.scale import FAULTY, FLAGGED, STEPS, UNKNOWN, counts, step_of
from slurm_pal.report.gpus.shown_names import LONGEST, cut
from slurm_pal.report.inventory import NEVER_MEASURED, GpuRow, fault_lines
from slurm_pal.report.table import counted
from slurm_pal.variability.regime import NOT_CAPPED

GAP = "   "
MOST_CURES = 8
UNMARKED = frozenset({NEVER_MEASURED, "unknown", "stale", "small_group", NOT_CAPPED})
"""Flags that say little about the GPU itself; only the others are marked in the map."""


class Cell(NamedTuple):
    """One GPU: None if the node has no GPU at this index, or nothing is known about it."""

    slowdown: float | None
    flagged: bool
    present: bool = True
    faulty: bool = False


class HeatmapLine(NamedTuple):
    """One or several neighbouring nodes with the same picture."""

    nodes: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The nodes as a host list."""
        return fold(self.nodes) if len(self.nodes) > 1 else self.nodes[0]


def marked(row: GpuRow) -> bool:
    """Whether a GPU has a flag about the GPU itself, not only about the age of its measurement."""
    return bool(set(row.flags) - UNMARKED)


def cell(row: GpuRow, sensitivity: str) -> Cell:
    """What the map shows of a GPU for one sensitivity class; a forgotten score does not count."""
    known = None if {"unknown", NEVER_MEASURED} & set(row.flags) else row.slowdown.get(sensitivity)
    return Cell(known, marked(row), faulty=row.state != OK)


def by_node(rows: Iterable[GpuRow], sensitivity: str) -> list[HeatmapLine]:
    """One line for each node, in the order of the rows."""
    found: dict[str, dict[int, Cell]] = {}
    for row in rows:
        found.setdefault(row.node, {})[row.gpu_index] = cell(row, sensitivity)
    return [HeatmapLine((node,), _filled(cells)) for node, cells in found.items()]


def lines(rows: Iterable[GpuRow], sensitivity: str) -> list[HeatmapLine]:
    """One line for each run of neighbouring nodes that look the same, in the order of the rows."""
    found = []
    for _, run in groupby(by_node(rows, sensitivity), key=lambda line: tuple(map(_look, line.cells))):
        same = list(run)
        found.append(HeatmapLine(tuple(line.nodes[0] for line in same), same[0].cells))
    return found


def _filled(cells: dict[int, Cell]) -> tuple[Cell, ...]:
    absent = Cell(None, False, present=False)
    return tuple(cells.get(i, absent) for i in range(max(cells) + 1))


def _look(cell: Cell) -> str:
    """The two characters of a GPU."""
    if not cell.present:
        return "  "
    digit = UNKNOWN if cell.slowdown is None else step_of(cell.slowdown).digit
    return digit + (FAULTY if cell.faulty else FLAGGED if cell.flagged else " ")


def render(rows: Sequence[GpuRow], sensitivity: str, width: int) -> list[Text]:
    """The whole map with its legend, no line wider than `width` unless a single node is.

    Colours are styles of the text: printed without them the digits remain.
    """
    found = lines(rows, sensitivity)
    name_width = min(LONGEST, max((len(line.name) for line in found), default=0))
    cell_width = 2 * max((len(line.cells) for line in found), default=0)
    columns = max(1, (width + len(GAP)) // (name_width + 1 + cell_width + len(GAP)))
    height = -(-len(found) // columns)
    body = []
    for i in range(height):
        text = Text()
        for line in found[i::height]:
            if text:
                text.append(GAP)
            text.append(cut(visible(line.name), name_width).ljust(name_width) + " ")
            for one in line.cells:
                text.append(_shown(one))
            text.append(" " * (cell_width - 2 * len(line.cells)))
        text.rstrip()
        body.append(text)
    return [*_head(rows, sensitivity, width), *body, *_legend(rows, sensitivity, width), *_cures(rows, width)]


def printed(lines: Iterable[Text], colored: bool) -> list[str]:
    """The lines for a terminal: with its colours, or as plain characters."""
    if not colored:
        return [line.plain.rstrip() for line in lines]
    # Colour requested for a file or a pager means all colours; a terminal gets those it can show.
    detected = Console().color_system
    systems: dict[str, Literal["standard", "256", "truecolor"]] = {"standard": "standard", "256": "256"}
    console = Console(color_system=systems.get(detected or "", "truecolor"), force_terminal=True, soft_wrap=True)
    found = []
    for line in lines:
        with console.capture() as capture:
            console.print(line, end="")
        found.append(capture.get())
    return found


def _cures(rows: Sequence[GpuRow], width: int) -> list[Text]:
    """What to do about the faulty GPUs."""
    found = fault_lines(rows)
    more = [f"and {len(found) - MOST_CURES} more: pal gpus -f"] if len(found) > MOST_CURES else []
    return [
        Text(part)
        for line in (*found[:MOST_CURES], *more)
        for part in textwrap.wrap(visible(line), max(width, 1), subsequent_indent="  ", break_on_hyphens=False)
    ]


def _shown(cell: Cell) -> Text:
    look = _look(cell)
    if not cell.present:
        return Text(look)
    if cell.slowdown is None:
        return Text(look, Style(dim=True, reverse=cell.flagged))
    step = step_of(cell.slowdown)
    return Text(look, Style(color=step.ink, bgcolor=step.colour, bold=cell.flagged))


def _head(rows: Sequence[GpuRow], sensitivity: str, width: int) -> list[Text]:
    nodes = len({row.node for row in rows})
    what = f"class {sensitivity}: slowdown against the model's median GPU; "
    return _wrapped(f"{what}{counted(len(rows), 'GPU')} of {counted(nodes, 'node')}", width, "bold")


def _wrapped(text: str, width: int, style: str) -> list[Text]:
    return [Text(line, style) for line in textwrap.wrap(text, max(width, 1))]


def _legend(rows: Sequence[GpuRow], sensitivity: str, width: int) -> list[Text]:
    """What the digits mean and how many GPUs have each."""
    cells = [cell(row, sensitivity) for row in rows]
    known = counts([c.slowdown for c in cells if c.slowdown is not None])
    words = [Text(f"{s.digit} ", Style(color=s.ink, bgcolor=s.colour)).append(f" {s.text}", "none") for s in STEPS]
    numbers = [str(n) for n in known]
    words.append(Text(f"{UNKNOWN} ", "dim").append(" unknown", "none"))
    words.append(Text(f"{FLAGGED} ", "bold").append(" flag", "none"))
    words.append(Text(f"{FAULTY} ", "bold").append(" fault", "none"))
    bad = sum(c.faulty for c in cells)
    numbers += [str(len(cells) - sum(known)), str(sum(c.flagged for c in cells) - bad), str(bad)]
    wide = max(len(word) for word in words) + 2 + max(len(n) for n in numbers) + 2
    per_line = max(1, min(len(words), width // wide))
    parts = []
    for word, number in zip(words, numbers, strict=True):
        plain = Text().append_text(word)
        plain.append(" " * (wide - 4 - len(word) - len(number) + 2) + number + "  ", "dim")
        parts.append(plain)
    found = [Text()]
    for i in range(0, len(parts), per_line):
        text = Text().join(parts[i : i + per_line])
        text.rstrip()
        found.append(text)
    said = "digit, slowdown, number of GPUs; lower digits are faster, 4 is about the median"
    return [*found, *_wrapped(said, width, "dim")]
