# SPDX-License-Identifier: MIT
"""The heartbeat beside the snapshot: a daemon that clears leases is alive. Standard library only, for palsub."""

from __future__ import annotations

import os

from slurm_pal.base.clock import CLOCK_SKEW_S
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import SMALL_BYTES, read_trusted, write_atomic
from slurm_pal.base.light import json, suppress

SCHEMA = "pal.heartbeat/1"
BEATS = 3.0
"""A heartbeat counts as fresh for this many of its own intervals."""


def beat(snapshot_path: str, at_s: float, every_s: float) -> None:
    """Write that a daemon that clears leases is alive and repeats this every `every_s`. Raises OSError on failure."""
    text = json.dumps({"schema": SCHEMA, "at_s": at_s, "every_s": every_s, "clears_leases": True})
    write_atomic(snapshot_path + ".heartbeat", text + "\n", 0o644)


def end(snapshot_path: str) -> None:
    """The daemon ends: from now on nobody clears leases."""
    with suppress(OSError):
        os.unlink(snapshot_path + ".heartbeat")


def fresh(snapshot_path: str, now_s: float, max_age_s: float) -> bool:
    """Whether a daemon that clears leases is alive; a beat from the future (clock set back) does not count.

    The daemon may miss two beats, and a beat is believed for at most `max_age_s`.
    """
    try:
        beat = json.loads(read_trusted(snapshot_path + ".heartbeat", SMALL_BYTES))
        if beat.get("schema") != SCHEMA or beat.get("clears_leases") is not True:
            return False
        age_s = min(max_age_s, BEATS * float(beat.get("every_s", max_age_s)))
        return -CLOCK_SKEW_S <= now_s - float(beat["at_s"]) <= age_s
    except (OSError, DataError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
