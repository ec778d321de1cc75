# SPDX-License-Identifier: MIT
"""Running jobs that their users want where it costs least: which other of their places come into question. Pure.

A job with a goal has its places in a mark (decide/place_mark.py). `planning` decides whether a move pays, by the rule
of `decide/alternatives.py`; here is decided which places may be considered at all, and said why others are not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.prices import Prices
from slurm_pal.decide import place_mark
from slurm_pal.decide.alternatives import MOVE_LEFT_S, TIME, usage
from slurm_pal.decide.partition_mark import noted_partitions
from slurm_pal.decide.place_mark import MarkedPlace, PlaceMark
from slurm_pal.moves.money import Money
from slurm_pal.moves.planning import Elsewhere, Running
from slurm_pal.partitions.claimants import PartitionNodes
from slurm_pal.slurm.client import Overview

_OF_JOB = {"Accounts": "account", "Qos": "qos"}


class MoneyTerms(NamedTuple):
    """What a tick knows of money."""

    prices: Prices
    egress: float  # of one move
    closed: Collection[str]  # partitions for whose nodes jobs wait
    failed: Collection[tuple[int, str]]  # (job, partition): moves that are not tried again


def with_cheaper(
    overview: Overview, running: Sequence[Running], terms: MoneyTerms, now_s: float
) -> tuple[tuple[Running, ...], dict[int, str]]:
    """The running jobs with the places where they might go on for less, and of jobs that have a goal why others of
    their places do not come into question."""
    site, found, notes = _Site(overview, terms, now_s), [], {}
    for one in running:
        mark = place_mark.read(one.job) if place_mark.bears(one.job) else None
        if mark is None or mark.goal.kind == TIME:
            found.append(one)
            continue
        changed, why = site.looked_at(one, mark)
        found.append(changed)
        if why:
            notes[one.job.job_id] = why
    return tuple(found), notes


class _Site:
    """The partitions and prices of one tick."""

    def __init__(self, overview: Overview, terms: MoneyTerms, now_s: float) -> None:
        self._terms, self._now_s = terms, now_s
        self._nodes = PartitionNodes(overview)
        self._partitions: Mapping[str, Partition] = {p.name: p for p in overview.partitions}

    def looked_at(self, one: Running, mark: PlaceMark) -> tuple[Running, str]:
        """The job with those places, and why others are none."""
        here = next((place for place in mark.places if place.partition == one.job.partition), None)
        if here is None or one.own_partitions or noted_partitions(one.job):
            return one, "its partitions are not those of its goal any more"
        if why := self._stays(one):
            return one, why
        others, notes = [], []
        for there in mark.places:
            if there is not here:
                why = self._closed(one, here, there)
                others += [] if why else [self._elsewhere(one, mark, here, there)]
                notes += [f"not in its place {there.partition}: {why}"] if why else []
        if not others:
            return one, "; ".join(notes)
        left_s = one.stated_s
        if left_s is None and here.run_s:
            left_s = max(0.0, here.run_s - (self._now_s - one.job.start_s))
        found = one._replace(elsewhere=tuple(others), own_partitions=(here.partition,), stated_s=left_s)
        return found, "; ".join(notes)

    def _stays(self, one: Running) -> str:
        """Why it goes nowhere for money; "" where it may."""
        if self._terms.prices.trouble:
            return self._terms.prices.trouble
        if one.request.leave or one.request.req_nodes or one.request.reservation or one.request.shape is None:
            return "its request ties it to where it runs"
        if one.last_move_s and self._now_s - one.last_move_s < MOVE_LEFT_S:
            return f"it was moved, or was to be, less than {MOVE_LEFT_S / 3600:g} h ago"
        return self._price(one, one.job.partition)

    def _price(self, one: Running, name: str) -> str:
        """Why the price of a partition is no reason to move anything; "" where it may be one."""
        if name in self._terms.prices.old:
            return f"the live price of {name} is older than a day"
        known = self._terms.prices.per_hour(name, usage(one.request)) is not None
        return "" if known else f"no price of {name} is known"

    def _closed(self, one: Running, here: MarkedPlace, there: MarkedPlace) -> str:
        """Why a place does not come into question; "" where it does."""
        job, name = one.job, there.partition
        if (here.gres, here.cpus, here.time) != (there.gres, there.cpus, there.time):
            return "it differs in more than the partition"
        if (job.job_id, name) in self._terms.failed:
            return "a move there has failed"
        if name not in self._nodes.up:
            return "the partition takes no jobs now"
        if why := self._refuses(job, name):
            return why
        limit_s = math.inf if job.time_limit_s is None else job.time_limit_s
        if self._nodes.place(name, one.request, limit_s) is None:
            return "it could not run there with its request and time limit"
        if name in self._terms.closed:
            return "jobs wait for its nodes"
        return self._price(one, name)

    def _refuses(self, job: SlurmJob, name: str) -> str:
        """Why a partition may not take a job of its user, as far as Slurm shows; "" where it does as much as that
        where the job runs."""
        same = self._partitions[job.partition].admits if job.partition in self._partitions else ()
        for key, text in self._partitions[name].admits:
            if (key, text) in same:
                continue
            field = next((field for end, field in _OF_JOB.items() if key.endswith(end)), "")
            named = bool(field) and getattr(job, field) in text.split(",")
            if not field or named != key.startswith("Allow"):
                return f"its {key}={text} may not admit the job"
        return ""

    def _elsewhere(self, one: Running, mark: PlaceMark, here: MarkedPlace, there: MarkedPlace) -> Elsewhere:
        used = usage(one.request)
        now, then = (self._terms.prices.per_hour(name, used) or 0.0 for name in (here.partition, there.partition))
        limit_s = math.inf if one.job.time_limit_s is None else one.job.time_limit_s
        money = Money(now, then, self._terms.egress, min(limit_s, mark.goal.until_s - self._now_s))
        speed = here.run_s / there.run_s if here.run_s and there.run_s else 1.0
        return Elsewhere(there.partition, speed, money)
