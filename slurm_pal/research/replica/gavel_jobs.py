# SPDX-License-Identifier: MIT
"""What Gavel's simulator is given: GPU types with a number of GPUs, and a trace with the throughputs of its jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Matrix
from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.inputs.gavel import NO_DEADLINE, GavelRow
from slurm_pal.simulate.throughput_file import Key, Throughputs

_PART = re.compile(r"(?P<type>[\w.-]+):(?P<gpus>[1-9][0-9]{0,5})(?:/(?P<per>[1-9][0-9]{0,5}))?", re.ASCII)


class GavelCluster(NamedTuple):
    """GPU types in the order in which rounds fill them. In the published simulator each GPU is a server of its own."""

    types: tuple[str, ...]
    gpus: tuple[int, ...]
    per_node: tuple[int, ...] = ()  # GPUs of a node of each type; without it a type is one node

    def text(self) -> str:
        sizes = [f"/{size}" for size in self.per_node] or [""] * len(self.types)
        return ",".join(f"{name}:{count}{size}" for name, count, size in zip(self.types, self.gpus, sizes, strict=True))

    def nodes(self) -> list[list[int]]:
        """GPUs of each node, by type."""
        sizes = self.per_node or self.gpus
        return [[size] * (count // size) for count, size in zip(self.gpus, sizes, strict=True)]


def parse_types(text: str) -> GavelCluster:
    """`TYPE:GPUS,...`, fastest type first, like v100:12,p100:12,k80:12; all with `/GPUS_PER_NODE`, or none.

    Raises UsageError for anything else.
    """
    parts = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    found = [(part["type"], int(part["gpus"])) for part in parts if part is not None]
    types = tuple(name for name, _ in found)
    if len(found) < len(parts) or len(set(types)) < len(types):
        raise UsageError(
            f"cluster {text!r} must be TYPE:GPUS,... with own names and 1 to 999999 GPUs each, "
            "like v100:12,p100:12,k80:12"
        )
    sizes = [int(part["per"]) for part in parts if part is not None and part["per"]]
    whole = not sizes or (
        len(sizes) == len(found) and all(count % size == 0 for (_, count), size in zip(found, sizes, strict=True))
    )
    if not whole:
        raise UsageError(
            f"cluster {text!r}: give /GPUS_PER_NODE for every type or for none, and whole nodes, like t4:24/4,a100:16/8"
        )
    return GavelCluster(types, tuple(count for _, count in found), tuple(sizes))


class GavelJob(NamedTuple):
    """One job; its number is its row in the trace."""

    number: int
    arrival_s: float
    steps: int
    gpus: int
    weight: float
    deadline_s: float  # when it must end, on the clock of the trace; inf: none
    kind: int  # row of GavelWorkload.rates


class GavelWorkload(NamedTuple):
    """A trace on a cluster. Columns are the GPU types by name, as Gavel's programs have them."""

    jobs: tuple[GavelJob, ...]
    cluster: GavelCluster
    columns: tuple[str, ...]
    rates: Matrix  # (kinds, n) steps/s alone
    pairs: NDArray[np.float64]  # (kinds, kinds, n) steps/s of the first beside the second

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPUs of each column."""
        return tuple(self.cluster.gpus[self.cluster.types.index(name)] for name in self.columns)

    @property
    def turn(self) -> list[int]:
        """The columns in the order of the cluster."""
        return [self.columns.index(name) for name in self.cluster.types]


def workload(rows: Sequence[GavelRow], cluster: GavelCluster, table: Throughputs) -> GavelWorkload:
    """Look up every job. Raises DataError for one that is not in the table, UsageError for one that fits nowhere.

    A deadline is a multiple of the run time on the first type of the cluster, from arrival on.
    """
    columns = tuple(sorted(cluster.types))
    kinds: dict[Key, int] = {}
    for row in rows:
        kinds.setdefault((row.job_type, row.scale_factor), len(kinds))
    rates = np.array([table.rates(model, size, columns) for model, size in kinds]).reshape(len(kinds), len(columns))
    found = GavelWorkload((), cluster, columns, rates, _pairs(table, list(kinds), columns))
    for model, size in kinds:
        able = rates[kinds[model, size]] > 0
        if not (able & (np.array(found.gpus) >= size)).any():
            raise UsageError(f"{model!r} on {size} GPUs runs on no type of {cluster.text()}; give more GPUs")
    first = columns.index(cluster.types[0])
    jobs = [_job(i, row, kinds[row.job_type, row.scale_factor], rates[:, first]) for i, row in enumerate(rows)]
    return found._replace(jobs=tuple(jobs))


def _job(number: int, row: GavelRow, kind: int, reference: NDArray[np.float64]) -> GavelJob:
    deadline_s = float("inf")
    if row.slo != NO_DEADLINE and reference[kind] > 0:
        deadline_s = row.arrival_s + row.slo * row.total_steps / float(reference[kind])
    return GavelJob(number, row.arrival_s, row.total_steps, row.scale_factor, row.priority_weight, deadline_s, kind)


def _pairs(table: Throughputs, kinds: Sequence[Key], columns: Sequence[str]) -> NDArray[np.float64]:
    places = table.places(columns)
    none = (0.0,) * len(table.types)
    found = [[[table.pairs.get((a, b), none)[place] for place in places] for b in kinds] for a in kinds]
    return np.array(found).reshape(len(kinds), len(kinds), len(columns))
