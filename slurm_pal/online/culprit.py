# SPDX-License-Identifier: MIT
"""Which rank the others of a job wait for, from records of its collectives. Pure.

A rank's time in a collective begins when it arrives. All end together, so the rank that arrives last has the shortest
time, and the others were waiting for it by the difference. One late arrival means nothing (a file, a signal), nor do
times that all ranks share (the network). A culprit is late in most stretches of the job. Where the other ranks of
its node are late with it, the node is named, not the GPU; where it waits for another itself, in a communicator of
the two, the other one is named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, median_high
from typing import NamedTuple

from slurm_pal.online.collectives import SYMMETRIC, Collective

LEAST = 0.02
"""A smaller share of the job's time is nobody's fault: ranks never have quite the same work."""
MOSTLY = 0.75
"""A culprit is the last in this share of the stretches."""
TOGETHER = 0.5
"""The others of its node are late with it by at least this share of its own delay: then it is the node."""
LEAST_STRETCHES = 6
STRETCH = 7
"""Steps of a stretch; what happens in fewer than half of them (a stall, a burst on the network) does not count."""
LONGEST_STEP = 256
REPEATS = 0.95
MOST_MULTIPLE, CLEARLY = 16, 0.2
"""Where all collectives look alike, the step shows in their times: by an autocorrelation so much higher."""
PAUSE_US = 30e6
"""A process that wrote nothing for so long before another of its node began has ended."""
MOST_NUMBERS = 4000
"""Collectives of one communicator that are looked at, the newest."""

Member = tuple[str, str, int]
"""(host, file, how many ranks of lower number that file has in the communicator): one rank of the job."""


class Culprit(NamedTuple):
    """A rank, or all ranks of a node, that the others wait for."""

    host: str
    position: int | None  # place among the ranks of its node; None: the node as a whole
    of: int  # ranks of the job on that node
    rank: int | None  # in the largest communicator that it is in
    share: float  # of the job's time that the others wait for it
    sure: float  # share of the stretches in which it was the last
    alone: bool  # the job has no other rank on that node: the node may be meant

    @property
    def factor(self) -> float:
        """How many times longer the job takes than without this delay."""
        return 1.0 / (1.0 - min(self.share, 0.95))


class Found(NamedTuple):
    """What the records of a job show."""

    culprit: Culprit | None
    also: tuple[Culprit, ...]  # others that are late, by less
    ranks: int
    hosts: int
    collectives: int  # that could be compared
    span_s: float  # of the job's time that they cover
    why_not: str = ""  # why nobody can be named


class _Late(NamedTuple):
    """How late one member, or a node, is in one communicator."""

    share: float
    sure: float
    members: frozenset[Member]
    waiting: frozenset[Member]  # who waits for it
    node: bool
    apart: bool  # beside other ranks of its node, which are late by far less


class _Comm(NamedTuple):
    """One communicator: stretch by stretch the time of each member in its collectives, us."""

    members: tuple[Member, ...]
    times: list[list[float]]  # of a usual step of the stretch
    whole_us: float  # of the job's time in a step
    collectives: int
    span_s: float


def find(collectives: Iterable[Collective]) -> Found:
    """Who holds the job up."""
    by_comm: dict[str, list[Collective]] = defaultdict(list)
    for one in _of_this_step(collectives):
        if one.kind.partition(" ")[0] in SYMMETRIC:
            by_comm[one.comm].append(one)
    ordinals = _Ordinals(by_comm)
    comms = [comm for records in by_comm.values() if (comm := _comm(records, ordinals)) is not None]
    ranks, hosts = len(ordinals.members), len({member[0] for member in ordinals.members})
    seen = sum(comm.collectives for comm in comms)
    span_s = max((comm.span_s for comm in comms), default=0.0)
    if not comms:
        why = "no collective of two ranks is recorded" if not by_comm else "too few collectives are recorded so far"
        return Found(None, (), ranks, hosts, seen, span_s, why)
    named = _named([late for comm in comms for late in _late(comm)], ordinals)
    return Found(named[0] if named else None, tuple(named[1:]), ranks, hosts, seen, span_s)


def _of_this_step(collectives: Iterable[Collective]) -> list[Collective]:
    """Those of the processes that ran last on each node: an earlier step of the job is over, and its ranks with it."""
    every = list(collectives)
    spans: dict[tuple[str, str, int], tuple[float, float]] = {}
    for one in every:
        process = one.host, one.source, one.pid
        first, last = spans.get(process, (one.at_us, one.at_us))
        spans[process] = min(first, one.at_us), max(last, one.at_us)
    newest: dict[str, float] = {}
    for (host, _, _), (first, _) in spans.items():
        newest[host] = max(newest.get(host, 0.0), first)
    return [one for one in every if spans[one.host, one.source, one.pid][1] >= newest[one.host] - PAUSE_US]


class _Ordinals:
    """Who is who: ranks of a communicator as members of the job, and the places of members on their nodes."""

    def __init__(self, by_comm: Mapping[str, Sequence[Collective]]) -> None:
        self._members: dict[tuple[str, int], Member] = {}
        self._pids: dict[Member, int] = {}
        self._sizes: dict[str, int] = {}
        for comm, records in by_comm.items():
            homes = {one.rank: (one.host, one.source, one.pid) for one in records}
            count: Counter[tuple[str, str]] = Counter()
            for rank, (host, source, pid) in sorted(homes.items()):
                member = (host, source, count[host, source])
                count[host, source] += 1
                self._members[comm, rank] = member
                self._pids[member] = pid
            self._sizes[comm] = len(homes)

    @property
    def members(self) -> frozenset[Member]:
        return frozenset(self._pids)

    def member(self, comm: str, rank: int) -> Member:
        return self._members[comm, rank]

    def rank(self, member: Member) -> int:
        """Its rank in the largest communicator."""
        own = [(-self._sizes[comm], comm, rank) for (comm, rank), one in self._members.items() if one == member]
        return min(own)[2]

    def on(self, host: str) -> list[Member]:
        """The members of a node in the order of their ranks in one communicator of all of them, else as started."""
        here = {member for member in self._pids if member[0] == host}
        by_comm: dict[str, dict[Member, int]] = defaultdict(dict)
        for (comm, rank), member in self._members.items():
            if member in here:
                by_comm[comm][member] = rank
        whole = [(-self._sizes[comm], comm) for comm, ranks in by_comm.items() if len(ranks) == len(here)]
        if whole:
            ranks = by_comm[min(whole)[1]]
            return sorted(here, key=lambda member: ranks[member])
        return sorted(here, key=lambda member: (self._pids[member], member))


def _comm(records: Sequence[Collective], ordinals: _Ordinals) -> _Comm | None:
    """Those collectives of a communicator that all its known ranks recorded; None for too few of them."""
    ranks = sorted({one.rank for one in records})
    if len(ranks) < 2:
        return None
    rows: dict[int, dict[int, Collective]] = defaultdict(dict)
    for one in records:
        rows[one.number][one.rank] = one
    numbers = [
        number for number, row in sorted(rows.items())
        if len(row) == len(ranks) and len({one.kind for one in row.values()}) == 1
    ][-MOST_NUMBERS:]  # fmt: skip
    rows_of = [[rows[number][rank].exec_us for rank in ranks] for number in numbers]
    step = _step([rows[number][ranks[0]].kind for number in numbers], [median(row) for row in rows_of])
    length = step * STRETCH
    if len(numbers) < length * LEAST_STRETCHES:
        return None
    skipped = len(numbers) % length
    numbers, rows_of = numbers[skipped:], rows_of[skipped:]
    times = [_usual(rows_of[start : start + length], step) for start in range(0, len(rows_of), length)]
    span_us = _span_us([[rows[number][rank].at_us for number in (numbers[0], numbers[-1])] for rank in ranks])
    # Records that were overwritten before they could be written took time as well.
    each_us = span_us / max(1, numbers[-1] - numbers[0])
    whole_us = max(each_us * step, median(median(row) for row in times))
    members = tuple(ordinals.member(records[0].comm, rank) for rank in ranks)
    return _Comm(members, times, whole_us, len(numbers), span_us / 1e6)


def _usual(rows: Sequence[Sequence[float]], step: int) -> list[float]:
    """The time of each rank in a usual step: at each place in the step the median over the steps of its distance from
    the median rank, so that what hits all ranks alike does not count at all."""
    sums = [0.0] * len(rows[0])
    for place in range(step):
        here = rows[place::step]
        middles = [median(row) for row in here]
        usual = median(middles)
        for rank in range(len(sums)):
            apart = median(row[rank] - middle for row, middle in zip(here, middles, strict=True))
            sums[rank] += usual + apart
    return sums


def _span_us(ends: Sequence[Sequence[float]]) -> float:
    """From the first to the last collective, by each process's own clock."""
    return max(0.0, median(last - first for first, last in ends))


def _step(kinds: Sequence[str], times: Sequence[float]) -> int:
    """Collectives of one step of the job: the period in which their kinds come again, and their times with them."""
    found = 1
    for period in range(1, min(LONGEST_STEP, len(kinds) // 2) + 1):
        ahead = kinds[period:]
        if sum(a == b for a, b in zip(kinds, ahead, strict=False)) >= REPEATS * len(ahead):
            found = period
            break
    alike = {
        many: _autocorrelation(times, many * found) for many in range(1, MOST_MULTIPLE + 1)
        if many * found * STRETCH * LEAST_STRETCHES <= len(times)
    }  # fmt: skip
    best = max(alike, key=lambda many: (alike[many], -many), default=1)
    clear = best > 1 and alike[best] > alike[1] + CLEARLY
    return found * next(many for many in alike if alike[many] >= alike[best] - CLEARLY / 2) if clear else found


def _autocorrelation(times: Sequence[float], lag: int) -> float:
    ranks = sorted(times)
    low, high = ranks[len(ranks) // 20], ranks[-1 - len(ranks) // 20]  # bursts would hide everything else
    bounded = [min(max(value, low), high) for value in times]
    mean = fmean(bounded)
    spread = sum((value - mean) ** 2 for value in bounded)
    if not spread:
        return 0.0
    together = sum((a - mean) * (b - mean) for a, b in zip(bounded, bounded[lag:], strict=False))
    return together / spread * len(times) / (len(times) - lag)


def _late(comm: _Comm) -> list[_Late]:
    """The member, or the node, that the others of one communicator wait for; the next ones of as clear a delay."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for place, member in enumerate(comm.members):
        by_host[member[0]].append(place)
    everybody = frozenset(comm.members)
    first = [min(row) for row in comm.times]
    first_node = [min(_of_node(row, there) for there in by_host.values()) for row in comm.times]
    found = []
    for places in [
        *([place] for place in range(len(comm.members))),
        *(there for there in by_host.values() if len(there) > 1),
    ]:
        node = len(places) > 1
        if node and len(by_host) < 2:
            continue
        sure = _last(comm, places, first_node if node else first)
        if sure < MOSTLY:
            continue  # which most of them are: no more is worked out for them
        others = [place for place in range(len(comm.members)) if place not in places]
        share = _delay(comm, places, others) if others else 0.0
        if share < LEAST:
            continue
        mates = [place for place in by_host[comm.members[places[0]][0]] if place not in places]
        if not node and mates and len(by_host) > 1 and _with_it(comm, places[0], mates, others):
            continue
        members = frozenset(comm.members[place] for place in places)
        found.append(_Late(share, sure, members, everybody - members, node, not node and bool(mates)))
    return found


def _of_node(row: Sequence[float], places: Sequence[int]) -> float:
    """A node is as late as the better half of its ranks, so that one of them does not make it late."""
    return median_high(row[place] for place in places)


def _last(comm: _Comm, places: Sequence[int], first: Sequence[float]) -> float:
    """Share of the stretches in which these had the shortest time, that is, were the last of their rivals."""
    return sum(_of_node(row, places) <= least for row, least in zip(comm.times, first, strict=True)) / len(comm.times)


def _delay(comm: _Comm, places: Sequence[int], others: Sequence[int]) -> float:
    """Share of the job's time that the others wait for these."""
    delays = [median(row[place] for place in others) - _of_node(row, places) for row in comm.times]
    return median(delays) / comm.whole_us if comm.whole_us > 0 else 0.0


def _with_it(comm: _Comm, place: int, mates: Sequence[int], others: Sequence[int]) -> bool:
    """Whether the other ranks of its node are late as well, so that the node is."""
    elsewhere = [other for other in others if other not in mates]
    own = median(median(row[other] for other in elsewhere) - row[place] for row in comm.times)
    theirs = median(median(row[other] for other in elsewhere) - median(row[mate] for mate in mates)
                    for row in comm.times)  # fmt: skip
    return theirs >= TOGETHER * own


def _named(late: Sequence[_Late], ordinals: _Ordinals) -> list[Culprit]:
    """Who is to blame, the largest delay first: not those who wait for another themselves."""
    guilty = [
        one for one in late
        if not any(one.members & other.waiting and other.share >= TOGETHER * one.share
                   and not one.members & other.members for other in late)
    ]  # fmt: skip
    by_host: dict[str, dict[Member, _Late]] = defaultdict(dict)
    nodes: dict[str, _Late] = {}
    for one in sorted(guilty, key=lambda one: one.share):
        host = next(iter(one.members))[0]
        if one.node:
            nodes[host] = one
        else:
            by_host[host].update(dict.fromkeys(one.members, one))
    for host, members in by_host.items():  # each in a communicator of its own, with no other rank of the node in it
        if len(members) > 1 and len(members) == len(ordinals.on(host)):
            shares = [one.share for one in members.values()]
            if min(shares) >= TOGETHER * max(shares):
                worst = max(members.values(), key=lambda one: one.share)
                nodes.setdefault(host, worst._replace(share=median(shares), node=True))
    for host, members in by_host.items():
        apart = max((one.share for one in members.values() if one.apart), default=0.0)
        if host in nodes and TOGETHER * apart > nodes[host].share:
            del nodes[host]
    found = [_culprit(host, None, one, ordinals) for host, one in nodes.items()]
    found += [
        _culprit(host, member, one, ordinals)
        for host, members in by_host.items() if host not in nodes for member, one in members.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: -one.share)


def _culprit(host: str, member: Member | None, late: _Late, ordinals: _Ordinals) -> Culprit:
    here = ordinals.on(host)
    hosts = {one[0] for one in ordinals.members}
    alone = member is not None and len(here) == 1 and len(hosts) > 1
    position = None if member is None else here.index(member)
    rank = None if member is None else ordinals.rank(member)
    return Culprit(host, position, len(here), rank, late.share, late.sure, alone)


def place(culprit: Culprit, gpus: Mapping[str, Sequence[int]]) -> tuple[str, tuple[int, ...]]:
    """The culprit's node and GPUs among those of the job (node -> Slurm's indexes); ("", ()) for no node of the job.

    The ranks of a node are taken to use its GPUs in order, as srun, mpirun and torchrun start them. Where they are
    not as many as the GPUs, no single GPU can be named, and the indexes are those of the node.
    """
    by_name = {node.lower(): node for node in gpus}
    host = culprit.host.lower()
    node = by_name.get(host) or by_name.get(host.partition(".")[0]) or ""
    indexes = tuple(sorted(gpus[node])) if node else ()
    if culprit.position is None or culprit.of != len(indexes):
        return node, indexes
    return node, (indexes[culprit.position],)
