# SPDX-License-Identifier: MIT
"""What the tick has published of partitions, for palsub and for the table of the submit filter."""

from __future__ import annotations

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import read_trusted
from slurm_pal.base.light import json
from slurm_pal.decide.steering import Market, of_json, path_of


def read(snapshot_path: str, now_s: float) -> Market | None:
    """None where there is none, or it is too old or makes no sense: Slurm chooses then, as it always did."""
    try:
        return of_json(json.loads(read_trusted(path_of(snapshot_path))), now_s)
    except (OSError, DataError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
