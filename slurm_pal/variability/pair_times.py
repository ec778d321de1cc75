# SPDX-License-Identifier: MIT
"""What an all-reduce between two nodes took: one line of JSON from each of the two, checked like any word of a node."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from slurm_pal.base.errors import DataError, one_line
from slurm_pal.base.numbers import MOST_GPUS
from slurm_pal.variability.records import check_schema
from slurm_pal.variability.validate import check_fields

SCHEMA = "pal.pair/1"
LEAST_S, MOST_S = 1e-9, 1e4
"""Seconds of one all-reduce: far beyond every network, and the ratio of two such numbers is still a number."""


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Seconds of one all-reduce, over the GPUs of this node and over those of both; of a large and a small message."""

    sweep_id: str
    slurm_job_id: int
    node: str
    nodes: tuple[str, ...]
    gpus: int  # of each node
    backend: str
    ts: float  # Unix seconds, UTC
    large_within_s: float
    large_between_s: float
    small_within_s: float
    small_between_s: float

    def to_json(self) -> str:
        """One line, schema first."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, separators=(",", ":"), allow_nan=False)


def from_json(line: str) -> PairTimes:
    """Parse and check one line. Raises DataError saying what is wrong."""
    try:
        table = json.loads(line)
        if not isinstance(table, dict):
            raise DataError(f"the times of a pair are a JSON object, not {type(table).__name__}")
        check_schema(table.pop("schema", None), SCHEMA)
        found = PairTimes(nodes=tuple(table.pop("nodes")), **table)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"not the times of a pair: {one_line(error)}") from None
    check_fields(found)
    if len(set(found.nodes)) != 2 or found.node not in found.nodes or not all(found.nodes) or not found.sweep_id:
        raise DataError(f"nodes = {','.join(found.nodes)[:60]!r} must be two, {found.node[:60]!r} one of them")
    if not 2 <= found.gpus <= MOST_GPUS:
        raise DataError(f"gpus = {found.gpus} must be from 2 to {MOST_GPUS}")
    for name in ("large_within_s", "large_between_s", "small_within_s", "small_between_s"):
        if not LEAST_S <= getattr(found, name) <= MOST_S:
            raise DataError(f"{name} = {getattr(found, name):g} must be from {LEAST_S:g} to {MOST_S:g}")
    return found
