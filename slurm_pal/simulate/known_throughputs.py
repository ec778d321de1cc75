# SPDX-License-Identifier: MIT
"""Any file that --throughputs takes, in one form: throughputs by application, GPUs and type of GPUs.

Two kinds: the site's own table (partitions/throughput_table.py) and a table as Gavel has it (throughput_file.py),
whose models are the applications.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping

from slurm_pal.allocation.throughputs import Entry, ThroughputKey
from slurm_pal.partitions import throughput_table
from slurm_pal.simulate.throughput_file import Throughputs, read_throughputs

_SITE_NAMES = ("schema", "throughputs")
"""One of these at the top makes a JSON file the site's own; Gavel's has types of GPUs there."""
_GAVEL_COLUMN = "model"
"""The first column of Gavel's CSV; the site's own must not have it."""


def read_known(path: str, now_s: float) -> dict[ThroughputKey, Entry]:
    """The table at `path`, of either kind, without pairs of jobs; ages count from `now_s` (Unix s).

    Raises DataError as the reader of its kind does; a file that cannot be read at all is reported as the site's own.
    """
    return _entries(read_throughputs(path)) if _is_gavels(path) else throughput_table.read(path, now_s)


def read_gavels(path: str, now_s: float) -> Throughputs:
    """The same in the form of Gavel's reader, with pairs if the table has them. Raises DataError as `read_known`."""
    return read_throughputs(path) if _is_gavels(path) else as_gavels(throughput_table.read(path, now_s))


def as_gavels(known: Mapping[ThroughputKey, Entry]) -> Throughputs:
    """The same as Gavel's reader has it: 0 for what is not in the table, relative speeds left out."""
    types = tuple(dict.fromkeys(key.type for key in known))
    rates = {key: entry.steps_per_s for key, entry in known.items() if not entry.relative}
    rows = dict.fromkeys((key.application, key.gpus) for key in rates)
    return Throughputs(types, {row: tuple(rates.get(ThroughputKey(*row, name), 0.0) for name in types) for row in rows})


def _is_gavels(path: str) -> bool:
    try:
        with open(path, encoding="utf-8-sig") as stream:
            if path.endswith(".json"):
                body = json.load(stream)
                return isinstance(body, dict) and not any(name in body for name in _SITE_NAMES)
            header = next(csv.reader([stream.readline(1 << 16)]), [])
            return bool(header) and header[0].strip() == _GAVEL_COLUMN
    except (OSError, csv.Error, ValueError, RecursionError):
        return False


def _entries(table: Throughputs) -> dict[ThroughputKey, Entry]:
    return {
        ThroughputKey(model, gpus, name): Entry(rate, throughput_table.STATED_ERROR)
        for (model, gpus), rates in table.packed.items()
        for name, rate in zip(table.types, rates, strict=True)
    }
