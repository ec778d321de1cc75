# SPDX-License-Identifier: MIT
"""Choose again, for pending jobs with several places: pure, by the sum of `decide/alternatives.py`.

A job changes its place only for one where it can start now, or when a node has booted: how long it would wait in
another queue nobody knows. So it loses nothing by the change, and is given its nodes with the next pass of Slurm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.prices import Prices
from slurm_pal.decide import place_mark
from slurm_pal.decide.alternatives import TIME, Alternative, best, usage, worth_changing
from slurm_pal.decide.job_request import request_at
from slurm_pal.decide.place_mark import NO_GPUS, MarkedPlace, PlaceMark
from slurm_pal.decide.request import Request
from slurm_pal.decide.room import awake, fits_now
from slurm_pal.decide.waits import Expects, Waiting, expected_wait_s, pool
from slurm_pal.slurm.client import Overview

AGAIN_S = 300.0
"""A place that was chosen stands for so long."""
_WAITS = ("Resources", "Priority", "ReqNodeNotAvail", "Nodes_required_for_job")


class PlaceChange(NamedTuple):
    """A job that is to wait, and at once start, somewhere else."""

    job_id: int
    fields: Mapping[str, str]  # for scontrol update
    there: str  # name of the place
    why: str


def changes(
    overview: Overview, barred: Collection[int], prices: Prices, expects: Expects, now_s: float,
    gpus_stay: bool = False, boots_s: Mapping[str, float] | None = None,
) -> list[PlaceChange]:  # fmt: skip
    """What to change now, at most one job for each partition: the next tick sees what is free after it.

    `barred` are jobs that something else looks after. The overview has all pending jobs of the partitions where such
    jobs wait. `gpus_stay`: this release of Slurm takes no GPUs away from a pending job, so that one that asks for some
    goes only where there are some. `boots_s`: partition -> the time in which a node boots that is powered down;
    None: not known, so that no job goes to one.
    """
    found: list[PlaceChange] = []
    woken = overview if boots_s is None else awake(overview)
    taken: set[str] = set()
    waiting = [job for job in overview.jobs if job.state == "PENDING" and job.job_id not in barred]
    for job in sorted(waiting, key=lambda job: job.rank):
        mark = place_mark.read(job)
        fixed = job.req_nodes or job.exc_nodes or job.array_job_id is not None
        if mark is None or fixed or not job.waits_for_nodes or now_s - mark.at_s < AGAIN_S:
            continue
        change = _change(job, mark, overview, woken, taken, prices, expects, now_s, gpus_stay, boots_s or {})
        if change is not None:
            found.append(change)
            taken.add(change.fields["Partition"])
    return found


def _change(
    job: SlurmJob, mark: PlaceMark, overview: Overview, woken: Overview, taken: Collection[str], prices: Prices,
    expects: Expects, now_s: float, gpus_stay: bool, boots_s: Mapping[str, float],
) -> PlaceChange | None:  # fmt: skip
    by_name = {place.name: place for place in mark.places}
    here = by_name[mark.chosen]
    if job.partition != here.partition:  # somebody has changed it since
        return None
    open_places = [
        place
        for place in mark.places
        if place.name != mark.chosen
        and place.partition not in taken
        and (place.cpus or mark.cpus) >= mark.cpus
        and not (gpus_stay and place.gres == NO_GPUS and gpus_of(job))
        and not _queued(overview, place.partition, job.job_id)
        and fits_now(woken, _request(job, mark, place), place.partition)
    ]
    if not open_places:
        return None
    waits = [Alternative(here.name, here.partition, _wait_s(job, overview, expects, now_s), float(here.run_s), None)]
    for place in open_places:
        up = fits_now(overview, _request(job, mark, place), place.partition)
        wait_s = 0.0 if up else boots_s.get(place.partition, 0.0)
        waits.append(Alternative(place.name, place.partition, wait_s, float(place.run_s), None, boot_s=wait_s))
    rows = [
        row._replace(per_hour=prices.per_hour(row.partition, usage(_request(job, mark, by_name[row.name]))))
        for row in waits
    ]
    if mark.goal.kind != TIME:  # nobody knows what a node that boots is worth where a price is not known
        known = rows[0].per_hour is not None
        rows[1:] = [row for row in rows[1:] if not row.boot_s or (known and row.per_hour is not None)]
    chosen = best(rows, mark.goal, now_s)
    there = rows[chosen.at]
    if chosen.at == 0 or not worth_changing(rows[0], there, mark.goal, now_s):
        return None
    place = by_name[there.name]
    fields = _fields(job, mark, place, now_s)
    return PlaceChange(job.job_id, fields, place.name, chosen.why) if fields else None


def _wait_s(job: SlurmJob, overview: Overview, expects: Expects, now_s: float) -> float:
    """How long it may still wait where it is. Of a job without GPUs: as long as it has waited."""
    gpus = gpus_of(job)
    if not gpus:
        return max(0.0, now_s - max(job.submit_s, job.eligible_s))
    free, running = pool(overview, job.partition, now_s)
    before = [other for other in overview.jobs if other.state == "PENDING" and other.rank < job.rank]
    ahead = [
        Waiting(gpus_of(other), float(other.time_limit_s or 0))
        for other in sorted(before, key=lambda other: other.rank)
        if job.partition in other.partition.split(",") and other.waits_for_nodes
    ]
    return expected_wait_s(gpus, free, running, ahead, expects)


def gpus_of(job: SlurmJob) -> int:
    """The GPUs that a pending job asks for, in all."""
    return job.asks.gpus_in_all or job.gpus_per_node * max(1, job.asks.nodes_min)


def _queued(overview: Overview, partition: str, but: int) -> bool:
    """Whether some job waits for nodes of this partition: it comes first."""
    rows = [(job.partition, job.reason) for job in overview.jobs if job.state == "PENDING" and job.job_id != but]
    return any(
        partition in names.split(",") and reason.startswith(_WAITS) for names, reason in (*rows, *overview.queued)
    )


def _request(job: SlurmJob, mark: PlaceMark, place: MarkedPlace) -> Request:
    changed = {"partition": place.partition, "nodelist": "", "exclude": ""}
    if place.gres == NO_GPUS:
        changed |= dict.fromkeys(("gres", "gpus", "gpus-per-node", "gpus-per-task"), "")
    elif place.gres:
        changed["gres"] = place.gres
    if place.cpus:
        changed["cpus-per-task"] = str(max(mark.cpus, place.cpus))
    if place.time:
        changed["time"] = place.time
    return request_at(job, changed)


def _fields(job: SlurmJob, mark: PlaceMark, place: MarkedPlace, now_s: float) -> dict[str, str]:
    """The update, {} where the job's comment has no room for the mark."""
    marked = place_mark.put(job, mark._replace(chosen=place.name, at_s=now_s))
    if not marked:
        return {}
    found = {"Partition": place.partition}
    if place.gres == NO_GPUS:
        found["TresPerNode"] = ""
    elif place.gres:
        found["Gres"] = place.gres
    if place.cpus:
        found["NumCPUs"] = str(max(mark.cpus, place.cpus))
    if place.time:
        found["TimeLimit"] = place.time
    return found | marked
