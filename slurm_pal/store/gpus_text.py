# SPDX-License-Identifier: MIT
"""gpus.txt (pal.gpus/1): the scores of all GPUs as plain text, for the plug-in on the nodes.

    # pal.gpus/1 epoch=17 written_s=1763712345 cluster=palab
    n0 0:A=v1@1.037:B=v1@1.016:C=v0@1 1:A=v0@0.98
    # end 17

One line for each node, by name: index, then class=bin@slowdown; GPUs without a score are left out.
"""

from __future__ import annotations

import math

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import read_trusted, write_atomic
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.store.lua_table import NAME
from slurm_pal.store.snapshot import NO_CLASS, Snapshot

SCHEMA = "pal.gpus/1"
DIGITS = 4
"""Decimals of a slowdown: more than any benchmark resolves."""


def decimal(value: float) -> str:
    """A slowdown without superfluous zeros."""
    return f"{value:.{DIGITS}f}".rstrip("0").rstrip(".")


def encode(snapshot: Snapshot) -> str:
    """The text of a snapshot. Raises DataError for a node or cluster whose name the plug-in could not read."""
    strange = [name for name in snapshot.nodes if not NAME.fullmatch(name)]
    strange += [snapshot.cluster] if snapshot.cluster and not NAME.fullmatch(snapshot.cluster) else []
    if strange:
        raise DataError(f"the name {strange[0]!r} in the snapshot holds more than A-Z a-z 0-9 _ . -: gpus.txt stays")
    lines = [
        f"# {SCHEMA} epoch={snapshot.epoch} written_s={snapshot.written_s:.0f} cluster={snapshot.cluster}",
        *(" ".join([node, *(_gpu(snapshot, row) for row in snapshot.rows[node])]) for node in sorted(snapshot.nodes)),
        f"# end {snapshot.epoch}",
    ]
    return "\n".join(lines) + "\n"


def _gpu(snapshot: Snapshot, row: int) -> str:
    columns = snapshot.columns
    words = [str(columns["index"][row])]
    for c in SENSITIVITY_CLASSES:
        slowdown, number = columns[f"slowdown_{c}"][row], columns[f"class_{c}"][row]
        if number != NO_CLASS and not math.isnan(slowdown):
            words.append(f"{c}=v{number}@{decimal(slowdown)}")
    return ":".join(words)


def write(path: str, snapshot: Snapshot) -> bool:
    """Update gpus.txt; return whether it had to be written.

    Raises DataError when it cannot be written (the old one, if any, stays).
    """
    text = encode(snapshot)
    if _current(path) == text:
        return False
    try:
        write_atomic(path, text, 0o644)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}); the snapshot itself is in place") from None
    return True


def _current(path: str) -> str | None:
    try:
        return read_trusted(path).decode()
    except (OSError, UnicodeDecodeError, DataError):
        return None
