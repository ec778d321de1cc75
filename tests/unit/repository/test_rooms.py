# SPDX-License-Identifier: MIT
"""The table of docs/architecture.md holds: every room is in it, no import is outside it, and there is no circle."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `([a-z/]+)` \|.*\| ([a-z/, ]+) \|$", re.MULTILINE)


@cache
def table() -> dict[str, set[str]]:
    """Room -> the rooms that it may import."""
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## Rooms")[2].partition("\n## ")[0]
    rows = {room: {*words.split(", ")} - {"nothing"} for room, words in ROW.findall(page)}
    return {room: (rows.keys() - {room} if words == {"everything"} else words) for room, words in rows.items()}


def room_of(module: str) -> str:
    """The room of a dotted name; "" for the package itself."""
    parts = module.split(".")[1:]
    return "/".join(parts[:2]) if parts[1:2] and "/".join(parts[:2]) in table() else "".join(parts[:1])


@cache
def imports() -> dict[tuple[str, str], str]:
    """(room, room that it imports) -> one place where it does."""
    found = {}
    for path in [f for top in ("slurm_pal", "cli", "profiling") for f in (ROOT / top).rglob("*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        own = room_of(".".join(parts if parts[0] == "slurm_pal" else ("slurm_pal", *parts)))
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom) and node.module in ("slurm_pal", "slurm_pal.profiling"):
                names = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "__version__"]
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for other in {room_of(name) for name in names if name.startswith("slurm_pal.")} - {own}:
                found[own, other] = f"{path.relative_to(ROOT)}:{node.lineno}"
    return found


def test_every_room_is_in_the_table() -> None:
    folders = {
        f.parent.relative_to(ROOT) for top in ("slurm_pal", "cli", "profiling") for f in (ROOT / top).glob("*/*.py")
    }
    rooms = {"/".join(f.parts[1:] if f.parts[0] == "slurm_pal" else f.parts) for f in folders} | {"cli", "profiling"}
    assert table().keys() == rooms - {"cli/simulate"}


def test_no_import_is_outside_the_table() -> None:
    allowed = table()
    outside = {way: place for way, place in imports().items() if way[0] and way[1] not in allowed[way[0]]}
    assert not outside


def test_the_table_has_no_circle_and_no_arrow_too_many() -> None:
    allowed, used = table(), imports()
    [*TopologicalSorter(allowed).static_order()]  # raises CycleError
    spare = {(room, other) for room, others in allowed.items() for other in others if room != "cli"} - used.keys()
    assert not spare
