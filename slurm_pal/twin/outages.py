# SPDX-License-Identifier: MIT
"""When nodes fail and come back: by a file, or by a rate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.files import MOST_BYTES, read_plain
from slurm_pal.simulate.inputs import csv_rows
from slurm_pal.simulate.inputs.collect import Unusable, number
from slurm_pal.simulate.settings import Failures

COLUMNS = ("node", "down_s", "up_s")


class Outage(NamedTuple):
    """One node is away; s from the start of the trace."""

    node: str
    down_s: float
    up_s: float


def read(path: str) -> tuple[Outage, ...]:
    """A CSV with the columns node,down_s,up_s. Raises UsageError for a file that is not one, naming the line."""
    try:
        lines = read_plain(path, MOST_BYTES).decode(errors="replace").splitlines()
    except (OSError, DataError) as error:
        raise UsageError(
            f"failures {path}: {getattr(error, 'strerror', None) or error}; name a readable file"
        ) from None
    if not lines or not csv_rows.has_columns(lines[0], COLUMNS):
        raise UsageError(f"failures {path}: the first line must be {','.join(COLUMNS)}")
    names = [name.strip() for name in csv_rows.cells(lines[0])]
    found = []
    for line, text in enumerate(lines[1:], 2):
        if not text.strip():
            continue
        try:
            values = csv_rows.cells(text)
            if len(values) != len(names):
                raise Unusable(f"{len(values)} columns, but the header has {len(names)}")
            row = dict(zip(names, values, strict=True))
            down_s = number("down_s", row["down_s"], 0.0)
            up_s = number("up_s", row["up_s"], 0.0)
            if up_s <= down_s:
                raise Unusable(f"up_s = {up_s:g} must be above down_s = {down_s:g}")
        except Unusable as error:
            raise UsageError(f"failures {path}, line {line}: {error}") from None
        found.append(Outage(row["node"].strip(), down_s, up_s))
    return tuple(found)


def drawn(failures: Failures, nodes: Sequence[str], seed: int) -> Iterator[Outage]:
    """Exponential times between failures of each node, without end, in order of time."""
    draw = random.Random(f"outages {seed}")
    rate = len(nodes) / failures.mtbf_s
    now_s, away = 0.0, dict.fromkeys(nodes, 0.0)
    while True:
        now_s += draw.expovariate(rate)
        name = nodes[draw.randrange(len(nodes))]
        if away[name] <= now_s:  # one that is away does not fail
            away[name] = now_s + failures.repair_s
            yield Outage(name, now_s, away[name])
