# SPDX-License-Identifier: MIT
"""Any trace as jobs on unequal GPUs: steps to do, and a throughput on each type of the cluster.

A Gavel trace counts steps. Other traces have run times: steps are run time x throughput on the
reference type, the one that the job asked for (GPU type or partition) if the cluster has it, else the
cluster's first. What the throughput table does not know is estimated (allocation/throughputs.py).

For policies that may change a job's number of GPUs each job has all configurations of Sia: powers of two within a
node, whole nodes beyond. Its throughput there is that of the table where both numbers have steps/s, else its own
times the ratio of the numbers to the power that the table shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Matrix, Vector
from slurm_pal.allocation.throughputs import (
    ESTIMATED,
    PRIOR,
    Entry,
    Estimates,
    Model,
    ThroughputKey,
    matrix,
    model,
)
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.research.replica.gavel_jobs import GavelCluster
from slurm_pal.research.replica.gavel_published import PRICES
from slurm_pal.research.unequal import GangJob
from slurm_pal.simulate.inputs.gavel import NO_DEADLINE, GavelRow
from slurm_pal.simulate.trace import Trace, TraceJob

GUESSED = (ESTIMATED, PRIOR)
Size = tuple[int, tuple[float, ...]]
"""Another number of GPUs, and the throughput of the whole job there, by column."""
_SHOWN = 5  # jobs in an error


class UnequalWorkload(NamedTuple):
    """m jobs on a cluster; columns are its types in their order. Arrays have a row for each job."""

    name: str
    cluster: GavelCluster
    jobs: tuple[GangJob, ...]
    weight: Vector
    deadline_s: Vector  # after arrival; inf: none
    entity: NDArray[np.int64]  # account, as a number
    limit_s: Vector  # time limit for backfill, long enough for the slowest type that the job fits on
    guessed: int = 0  # jobs with an estimated throughput
    from_run_times: bool = False  # steps are run time x throughput on a reference type
    price: Mapping[str, float] = PRICES  # of a GPU for an hour, by type; a type may have none

    def check_prices(self) -> None:
        """Raises UsageError for a type of the cluster that has none."""
        without = [kind for kind in self.cluster.types if kind not in self.price]
        if without:
            raise UsageError(
                f"no price of GPU type {without[0]!r}; those that have one are {', '.join(self.price)}: "
                f"give it with --prices {without[0]}=1.5, or leave policies out that need prices"
            )


class _Given(NamedTuple):
    """What a trace says of its jobs, whatever its format."""

    ids: Sequence[str]
    arrival_s: Sequence[float]
    steps: Vector
    gpus: Sequence[int]
    slack: Vector  # time limit over run time
    weight: Vector
    deadline_s: Vector
    accounts: Sequence[str]
    sensitivity: Sequence[str]
    penalty: Sequence[float]  # for several nodes


class _Estimated(NamedTuple):
    """Throughputs of all jobs."""

    at: Estimates
    sizes: tuple[tuple[Size, ...], ...]


def of_rows(
    name: str,
    rows: Sequence[GavelRow],
    cluster: GavelCluster,
    known: Mapping[ThroughputKey, Entry],
    limit_factor: float,
    locality_penalty: float = 1.0,
) -> UnequalWorkload:
    """A Gavel trace; its jobs have no class.

    A deadline is a multiple of the run time on the first type of the cluster, from arrival on.

    Raises UsageError for a type that is not in the table and for jobs that fit nowhere, DataError for a
    model without steps/s.
    """
    found = _estimates(cluster, known, [(row.job_type, row.scale_factor) for row in rows])
    for row, absolute in zip(rows, found.at.absolute, strict=True):
        if not absolute:
            raise DataError(
                f"the throughput table has no steps/s of {row.job_type!r}, which a trace that counts steps needs; "
                "add a row with steps_per_s"
            )
    steps = np.array([float(row.total_steps) for row in rows])
    slo = np.array([np.inf if row.slo == NO_DEADLINE else row.slo for row in rows])
    first = found.at.throughput[:, 0]
    given = _Given(
        ids=[str(number) for number in range(len(rows))],
        arrival_s=[row.arrival_s for row in rows],
        steps=steps,
        gpus=[row.scale_factor for row in rows],
        slack=np.full(len(rows), limit_factor),
        weight=np.array([row.priority_weight for row in rows]),
        deadline_s=slo * np.divide(steps, first, out=np.full(len(rows), np.inf), where=first > 0),
        accounts=[""] * len(rows),
        sensitivity=[UNKNOWN_CLASS] * len(rows),
        penalty=[locality_penalty] * len(rows),
    )
    return _workload(name, cluster, given, found)


def of_trace(
    trace: Trace, cluster: GavelCluster, known: Mapping[ThroughputKey, Entry], limit_factor: float,
    locality_penalty: float = 1.0,
) -> UnequalWorkload:  # fmt: skip
    """A trace with run times. A job without a time limit gets `limit_factor` x its run time.

    `locality_penalty` counts where an application has none of its own, and only on a cluster with nodes.

    Raises UsageError for a trace without jobs, for a type that is not in the table and for jobs that fit nowhere.
    """
    jobs = trace.jobs
    if not jobs:
        skipped = sum(trace.skipped.values())
        raise UsageError(f"trace {trace.name}: no job to replay: {len(trace.bad)} bad rows, {skipped} skipped")
    spelled = {key.application.lower(): key.application for key in known}
    kinds = [(spelled.get(job.app.lower(), job.app), job.shape.total) for job in jobs]
    found = _estimates(cluster, known, kinds)
    run_s = np.array([job.ideal_s for job in jobs])
    slack = np.array([limit_factor if job.limit_s is None else max(1.0, job.limit_s / job.ideal_s) for job in jobs])
    given = _Given(
        ids=[job.job_id for job in jobs],
        arrival_s=[job.submit_s for job in jobs],
        steps=run_s * _reference(jobs, cluster, found.at.throughput),
        gpus=[job.shape.total for job in jobs],
        slack=slack,
        weight=np.ones(len(jobs)),
        deadline_s=np.full(len(jobs), np.inf),
        accounts=[job.account for job in jobs],
        sensitivity=[job.sensitivity for job in jobs],
        penalty=[job.locality_penalty or locality_penalty for job in jobs],
    )
    return _workload(trace.name, cluster, given, found)._replace(from_run_times=True)


def _estimates(
    cluster: GavelCluster, known: Mapping[ThroughputKey, Entry], kinds: Sequence[tuple[str, int]]
) -> _Estimated:
    types = sorted({key.type for key in known})
    for name in cluster.types:
        if name not in types:
            raise UsageError(
                f"GPU type {name!r} of --cluster is not in the throughput table, which has {', '.join(types) or 'none'}"
            )
    made = model(known, cluster.types)
    found = matrix(made, kinds)
    first = dict(zip(reversed(kinds), reversed(range(len(kinds))), strict=True))
    sizes = {kind: _sizes(made, cluster, kind, found.throughput[k], found.absolute[k]) for kind, k in first.items()}
    return _Estimated(found, tuple(sizes[kind] for kind in kinds))


def _sizes(
    made: Model, cluster: GavelCluster, kind: tuple[str, int], throughput: Vector, absolute: bool
) -> tuple[Size, ...]:
    """The other numbers of GPUs on which a job of this kind could run."""
    application, own = kind
    allowed = [configurations(nodes) for nodes in cluster.nodes()]
    counts = sorted({count for some in allowed for count in some} - {own})
    told = matrix(made, [(application, count) for count in counts])
    found = []
    for count, at, known in zip(counts, told.throughput, told.absolute, strict=True):
        speeds = at if absolute and known else throughput * (count / own) ** made.exponent[0]
        able = np.array([count in some for some in allowed]) & (throughput > 0)
        if able.any():
            found.append((count, tuple(np.where(able, speeds, 0.0).tolist())))
    return tuple(found)


def configurations(nodes: Sequence[int]) -> frozenset[int]:
    """Numbers of GPUs that a job may have of nodes of one size: powers of two inside a node, then whole nodes (Sia)."""
    if not nodes:
        return frozenset()
    size = nodes[0]
    inside = (2**power for power in range(size.bit_length()))
    return frozenset((*inside, *(size * count for count in range(2, len(nodes) + 1))))


def _reference(jobs: Sequence[TraceJob], cluster: GavelCluster, throughput: Matrix) -> Vector:
    """(m,) throughput where the run time was taken; on the first type that can run the job where that one cannot."""
    place = {name: column for column, name in enumerate(cluster.types)}
    column = np.array([place.get(job.shape.gpu_type, place.get(job.partition, 0)) for job in jobs])
    rows = np.arange(len(jobs))
    able = np.where(throughput[rows, column] > 0, column, (throughput > 0).argmax(axis=1))
    return np.asarray(throughput[rows, able])


def _workload(name: str, cluster: GavelCluster, given: _Given, estimated: _Estimated) -> UnequalWorkload:
    found, scale = estimated.at, np.array(given.gpus)
    fits = (found.throughput > 0) & (scale[:, None] <= np.array(cluster.gpus))
    _check_fit(cluster, given, fits)
    slowest = np.where(fits, found.throughput, np.inf).min(axis=1)
    accounts = {account: number for number, account in enumerate(dict.fromkeys(given.accounts))}
    jobs = [
        GangJob(job_id, at_s, steps, gpus, speeds, sensitivity=sensitivity, locality_penalty=penalty, sizes=sizes)
        for job_id, at_s, steps, gpus, speeds, sensitivity, penalty, sizes in zip(
            given.ids, given.arrival_s, given.steps.tolist(), given.gpus, map(tuple, found.throughput.tolist()),
            given.sensitivity, given.penalty, estimated.sizes, strict=True,
        )
    ]  # fmt: skip
    return UnequalWorkload(
        name, cluster, tuple(jobs), given.weight, given.deadline_s,
        np.array([accounts[account] for account in given.accounts]), given.slack * given.steps / slowest,
        sum(any(source in GUESSED for source in sources) for sources in found.source),
    )  # fmt: skip


def _check_fit(cluster: GavelCluster, given: _Given, fits: NDArray[np.bool_]) -> None:
    wide = np.flatnonzero(~fits.any(axis=1)).tolist()
    if wide:
        said = ", ".join(f"job {given.ids[i]} ({given.gpus[i]} GPUs)" for i in wide[:_SHOWN])
        more = f" and {len(wide) - _SHOWN} more" if len(wide) > _SHOWN else ""
        raise UsageError(
            f"no type of {cluster.text()} has the GPUs and a throughput for {said}{more}; "
            "give more GPUs, or take the jobs out of the trace"
        )
