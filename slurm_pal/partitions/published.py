# SPDX-License-Identifier: MIT
"""The file by which palsub and the publisher learn of partitions; no solver is imported for it.

Each tick may have to remove it, and each palsub to read it.
"""

from __future__ import annotations

import os

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import read_trusted, write_atomic
from slurm_pal.base.light import json, suppress
from slurm_pal.decide.steering import Market, of_json, path_of, to_json


def publish(snapshot_path: str, made: Market | None) -> None:
    """Replace the file beside the snapshot; None: nobody publishes it any more. Raises OSError."""
    path = path_of(snapshot_path)
    if made is not None:
        write_atomic(path, json.dumps(to_json(made)) + "\n", 0o644)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def read(snapshot_path: str, now_s: float) -> Market | None:
    """What the tick has published; None where there is none, it is too old or makes no sense: Slurm chooses then."""
    try:
        return of_json(json.loads(read_trusted(path_of(snapshot_path))), now_s)
    except (OSError, DataError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
