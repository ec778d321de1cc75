# SPDX-License-Identifier: MIT
"""Locality penalties that the steps of a user's jobs showed: FOLDER/<uid>.locality.jsonl, a job name and a number of
GPUs a line (user_files). Written by a tick."""

from __future__ import annotations

from slurm_pal.base.light import NamedTuple, json
from slurm_pal.placement.penalties import MOST, Penalties
from slurm_pal.sensitivity.keys import name_key
from slurm_pal.store.user_files import Kind

LOCALITIES = Kind("pal.locality/1", "locality penalties", ".locality.jsonl", "ticks write a new one")
MOST_KEYS = 500
"""The most keys of each user; those that were shown longest ago are forgotten."""
MOST_LEVELS = 16


class Locality(NamedTuple):
    """The penalties of one kind of work."""

    penalties: Penalties
    at_s: float  # when steps last showed them, Unix s


Localities = dict[str, Locality]
"""Key -> penalties."""


def key_of(name: str, gpus: int) -> str:
    """The key of jobs of one name on so many GPUs, "" for a name that says nothing of the work."""
    named = name_key(name)
    return f"{named}:{gpus}" if named else ""


def read(path: str) -> Localities:
    """All in a file; {} if there is none. Raises DataError for a file that cannot be used."""
    return dict(_decoded(path, line) for line in LOCALITIES.lines(path))


def lookup(path: str, key: str) -> Locality | None:
    """That of one key, the only one decoded. Raises DataError like `read`."""
    return next((_decoded(path, line)[1] for line in LOCALITIES.found(path, [key])), None)


def write(path: str, found: Localities, reader: int | None = None) -> None:
    """Replace a user's file by the newest of these. Raises DataError if it cannot be written."""
    newest = sorted(found, key=lambda key: found[key].at_s)[-MOST_KEYS:]
    rows = [json.dumps({"key": key, "penalties": found[key].penalties, "at_s": found[key].at_s}) for key in newest]
    LOCALITIES.write(path, rows, reader)


def _decoded(path: str, line: bytes) -> tuple[str, Locality]:
    try:
        row = json.loads(line)
        penalties, at_s = tuple(map(float, row["penalties"])), float(row["at_s"])
        if not 0 < len(penalties) <= MOST_LEVELS or not all(1.0 <= factor <= MOST for factor in penalties):
            raise ValueError(f"penalties must be between 1 and {MOST:g}")
        if not 0 <= at_s < 2.0**40:
            raise ValueError("not a time")
        return str(row["key"]), Locality(penalties, at_s)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LOCALITIES.damaged(path, error) from None
