# SPDX-License-Identifier: MIT
"""The file by which palsub and the publisher learn of partitions (submit/market.py reads it).

Each tick may have to remove it: no solver is imported for that.
"""

from __future__ import annotations

import contextlib
import json
import os

from slurm_pal.base.files import write_atomic
from slurm_pal.decide.steering import Market, path_of, to_json


def publish(snapshot_path: str, made: Market | None) -> None:
    """Replace the file beside the snapshot; None: nobody publishes it any more. Raises OSError."""
    path = path_of(snapshot_path)
    if made is not None:
        write_atomic(path, json.dumps(to_json(made)) + "\n", 0o644)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
