# SPDX-License-Identifier: MIT
"""Policies for unequal GPUs with moves charged, by name; adding one is one row.

pal-share                      ours, with moves of running jobs
nonpreemptive-completion,
nonpreemptive-makespan         ours in the tick: no job is ever stopped
hadar                          in rounds, by prices
srpt, las                      in rounds, in an order of jobs
sia, pal-sia                   in rounds, by an integer program; the second knows single GPUs
sia+elastic, pal-sia+elastic   the same, as if every job could run on other numbers of GPUs
slurm                          a list of all partitions, no moves
gavel:NAME                     in the published rounds
gavel:NAME+nonpreemptive       by the same shares jobs wait for some types; no job is ever stopped
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Vector
from slurm_pal.allocation.steady import COST, HADAR, NONPREEMPTIVE_MAKESPAN, PAL_SIA, SIA, STEADY
from slurm_pal.base.errors import UsageError
from slurm_pal.research import allocation_policies
from slurm_pal.research.anew_rounds import AnewRounds, HadarPlace, LasPlace, srpt
from slurm_pal.research.sia_rounds import PUBLISHED, WHOLE, PalSiaRounds, SiaParts, SiaRounds
from slurm_pal.research.sia_rounds import ROUND_S as SIA_REVIEW_S
from slurm_pal.research.unequal import Chosen, Moment, Policy, pal_share_policy
from slurm_pal.research.unequal_jobs import UnequalWorkload
from slurm_pal.research.unequal_queue import Belonging, Listed
from slurm_pal.research.unequal_rounds import REVIEW_S, Rounds

OURS, SLURM, SRPT, LAS = "pal-share", "slurm", "srpt", "las"
NO_MOVES = "+nonpreemptive"
"""Suffix of a name: no running job is stopped."""
TICK_S = 300.0
"""Time between two looks of a policy that may give up waiting in between."""

ELASTIC = "+elastic"
"""Suffix of a name: jobs may get other numbers of GPUs than they ask for."""

WITHOUT = {
    "V": ("variability", "without variability classes"),
    "L": ("locality", "without locality"),
    "type": ("types", "without the types' speeds"),
    "restart": ("restarts", "that counts no restarts"),
    "relabel": ("relabel", "that does not deal GPUs anew"),
    "moves": ("moves", "that moves no running job"),
}
"""Parts of pal-sia that a policy's name takes out: field of SiaParts, and words."""

Make = Callable[[UnequalWorkload, Vector, int], Policy]
"""A policy for one run: the jobs, their arrivals (s), and a seed for what it draws."""


class UnequalPolicy(NamedTuple):
    make: Make
    summary: str
    review_s: float = 1800.0  # it is asked at least this often
    one_gpu: bool = False  # for jobs of 1 GPU only
    priced: bool = False  # needs a price of each type


def _told(policy: Policy, work: UnequalWorkload) -> Policy:
    """The policy, given the weights and accounts of jobs too."""
    entity_weight = np.ones(int(work.entity.max()) + 1)

    def told(moment: Moment) -> NDArray[np.int64] | Chosen:
        weight, entity = work.weight[moment.job], work.entity[moment.job]
        seen = moment.problem._replace(weight=weight, entity=entity, entity_weight=entity_weight)
        return policy(moment._replace(problem=seen))

    return told


def _ours(work: UnequalWorkload, arrival_s: Vector, seed: int) -> Policy:
    return _told(pal_share_policy(), work)


def _slurm(work: UnequalWorkload, arrival_s: Vector, seed: int) -> Policy:
    return Listed(work.limit_s)


def _hadar(work: UnequalWorkload, arrival_s: Vector, seed: int) -> Policy:
    return _told(AnewRounds(HadarPlace(arrival_s.size)), work)


def _srpt(work: UnequalWorkload, arrival_s: Vector, seed: int) -> Policy:
    return AnewRounds(srpt)


def _las(work: UnequalWorkload, arrival_s: Vector, seed: int) -> Policy:
    return AnewRounds(LasPlace(arrival_s.size))


def _sia(work: UnequalWorkload, arrival_s: Vector, seed: int, *, parts: SiaParts = PUBLISHED) -> Policy:
    return _told(SiaRounds(work.jobs, parts), work)


def _pal_sia(work: UnequalWorkload, arrival_s: Vector, seed: int, *, parts: SiaParts) -> Policy:
    return _told(PalSiaRounds(work.jobs, parts), work)


def _steady(work: UnequalWorkload, arrival_s: Vector, seed: int, *, name: str) -> Policy:
    return _told(Belonging(work.limit_s, STEADY[name]), work)


def _rounds(work: UnequalWorkload, arrival_s: Vector, seed: int, *, name: str) -> Policy:
    row = allocation_policies.policy(name)
    price = np.array([work.price.get(kind, 1.0) for kind in work.cluster.types])
    return Rounds(row, work.weight, arrival_s + work.deadline_s, work.entity, price, seed)


def _of_gavel(name: str, row: allocation_policies.AllocationPolicy) -> UnequalPolicy:
    return UnequalPolicy(partial(_rounds, name=name), row.summary, REVIEW_S, row.one_gpu, row.priced)


def _followed(name: str) -> str:
    """What a policy of the tick is called here."""
    return name if name.startswith("nonpreemptive-") else name + NO_MOVES


_ALL = WHOLE._replace(sizes=True)
_RESIZED = "as if all jobs could run on other numbers of GPUs, up to twice as many from round to round"

POLICIES: dict[str, UnequalPolicy] = {
    SLURM: UnequalPolicy(
        _slurm, "stock Slurm: all types as a list of partitions in the order of --cluster, EASY backfill"
    ),
    OURS: UnequalPolicy(_ours, "completion times first, a promise for the makespan, moves that pay"),
    HADAR: UnequalPolicy(
        _hadar, "prices that rise as GPUs are given out, jobs by payoff, rounds of 360 s (Hadar, IPDPS'24)", REVIEW_S
    ),
    SRPT: UnequalPolicy(
        _srpt, "shortest remaining time first, each job to the fastest type with room, rounds of 360 s", REVIEW_S
    ),
    LAS: UnequalPolicy(
        _las,
        "least GPU time so far first, in three queues, the fastest type with room, rounds of 360 s (Tiresias, NSDI'19)",
        REVIEW_S,
    ),
    SIA: UnequalPolicy(
        _sia, "an integer program of speed-ups and restart costs, rounds of 60 s (Sia, SOSP'23)", SIA_REVIEW_S
    ),
    PAL_SIA: UnequalPolicy(
        partial(_pal_sia, parts=WHOLE), "the same by variability class and locality; with --profile", SIA_REVIEW_S
    ),
    SIA + ELASTIC: UnequalPolicy(
        partial(_sia, parts=PUBLISHED._replace(sizes=True)), f"{SIA} {_RESIZED}", SIA_REVIEW_S
    ),
    PAL_SIA + ELASTIC: UnequalPolicy(partial(_pal_sia, parts=_ALL), f"{PAL_SIA} {_RESIZED}", SIA_REVIEW_S),
    **{
        f"{whole}-{name}": UnequalPolicy(
            partial(_pal_sia, parts=parts._replace(**{part: False})), f"{whole} {summary}", SIA_REVIEW_S
        )
        for whole, parts in ((PAL_SIA, WHOLE), (PAL_SIA + ELASTIC, _ALL))
        for name, (part, summary) in WITHOUT.items()
    },
    **{name: _of_gavel(name, row) for name, row in allocation_policies.POLICIES.items() if not row.pairs},
    **{
        _followed(name): UnequalPolicy(
            partial(_steady, name=name), "jobs wait where it says that they belong; no moves", TICK_S
        )
        for name in STEADY
        if name not in (PAL_SIA, COST)  # columns are types here: it would be Sia; and they have no prices
    },
}

RENAMED = {f"{OURS}+steady": NONPREEMPTIVE_MAKESPAN, **{f"{name}+steady": _followed(name) for name in STEADY}}
"""Earlier names of policies, which are accepted."""


def check(name: str, work: UnequalWorkload) -> None:
    """Raises UsageError for a policy that cannot be run on these jobs, or is not known."""
    row = POLICIES.get(name)
    if row is None:
        if name in allocation_policies.names():
            raise UsageError(f"policy {name!r} lets jobs share GPUs, which is simulated with --replica gavel only")
        raise UsageError(f"policy {name!r} is not one of {', '.join(POLICIES)}")
    wide = next((job for job in work.jobs if job.scale > 1), None)
    if row.one_gpu and wide is not None:
        raise UsageError(f"{name} is for jobs of 1 GPU; job {wide.id} has {wide.scale}: leave that policy out")
    if row.priced:
        work.check_prices()
