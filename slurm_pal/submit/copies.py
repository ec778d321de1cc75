# SPDX-License-Identifier: MIT
"""Local copies of inputs that this user's jobs have reported (pal have): a small file for each node, in their state
folder, which all nodes must see."""

from __future__ import annotations

import os

from slurm_pal.base import state
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import read_plain, write_atomic
from slurm_pal.base.light import json

SCHEMA = "pal.copies/1"
BELIEVED_S = 7 * 86400.0
"""A copy that nobody has reported again for so long may be gone."""
MOST = 200

Held = dict[str, tuple[int, float]]
"""Path -> (bytes, Unix s)."""


def _folder() -> str:
    return state.folder("copies", state.cluster_key())


def _one(path: str, now_s: float) -> Held:
    try:
        body = json.loads(read_plain(path))
        rows = body["copies"] if body["schema"] == SCHEMA else {}
        held = {str(name): (int(size), float(at_s)) for name, (size, at_s) in rows.items()}
    except (OSError, DataError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return {name: row for name, row in held.items() if now_s - row[1] <= BELIEVED_S}


def read(now_s: float) -> dict[str, Held]:
    """Node -> what it holds; {} where nothing is known."""
    try:
        folder = _folder()
        names = [name for name in os.listdir(folder) if name.endswith(".json")]
    except OSError:
        return {}
    return {name.removesuffix(".json"): _one(os.path.join(folder, name), now_s) for name in names}


def covers(held: Held, path: str) -> int:
    """The bytes of a copy of the path, or of a directory above it; 0 where there is none."""
    inside = [size for name, (size, _) in held.items() if path == name or path.startswith(name.rstrip("/") + "/")]
    return max((max(1, size) for size in inside), default=0)


def add(node: str, paths: dict[str, int], now_s: float) -> None:
    """Remember that the node holds copies of these paths, of so many bytes. Raises OSError."""
    file = os.path.join(_folder(), f"{node}.json")
    held = {**_one(file, now_s), **{path: (size, now_s) for path, size in paths.items()}}
    newest = sorted(held.items(), key=lambda row: row[1][1])[-MOST:]
    write_atomic(file, json.dumps({"schema": SCHEMA, "copies": dict(newest)}) + "\n", 0o600)


def remove(node: str, paths: list[str], now_s: float) -> None:
    """These are gone from the node. Raises OSError."""
    file = os.path.join(_folder(), f"{node}.json")
    held = {path: row for path, row in _one(file, now_s).items() if path not in paths}
    write_atomic(file, json.dumps({"schema": SCHEMA, "copies": held}) + "\n", 0o600)
