# SPDX-License-Identifier: MIT
"""The allocation policies by name; adding one is one row."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from slurm_pal.allocation.finish_time import finish_time_fairness
from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import Allocation, Problem
from slurm_pal.allocation.throughput_sum import cost, cost_slo, max_sum
from slurm_pal.allocation.water_filling import hierarchical
from slurm_pal.base.errors import UsageError
from slurm_pal.research.agnostic import flattened
from slurm_pal.research.allox import allox
from slurm_pal.research.fifo import fifo, fifo_packing, fifo_perf, sjf
from slurm_pal.research.gandiva import gandiva
from slurm_pal.research.packing import finish_time_fairness_packing, makespan_packing
from slurm_pal.research.pairs import cost_packing, max_min_packing, max_sum_packing
from slurm_pal.research.references import isolated, proportional

PACKING = "+packing"
"""Suffix of a name: jobs may share GPUs in pairs."""

Allocate = Callable[[Problem, Random], Allocation]
Plain = Callable[[Problem], Allocation]


class AllocationPolicy(NamedTuple):
    """What is known of one policy besides its shares."""

    allocate: Allocate
    summary: str
    packing: Plain | None = None  # the same where jobs may share GPUs
    pairs: bool = False  # pairs of jobs may be in the answer
    flat: str = ""  # agnostic: "ones", or "reference", the column whose throughput stands for all
    shuffled: bool = False  # the published rounds draw the order of types
    entitled_only: bool = False  # the published rounds give nothing to a job without a share
    one_gpu: bool = False  # for jobs of 1 GPU only
    priced: bool = False  # looks at prices

    def seen(self, problem: Problem, reference: int = 0, *, as_published: bool = False) -> Problem:
        """The problem as the policy sees it; `reference` is the column that stands for all where one does.

        `as_published`: an agnostic policy does not even know where a job cannot run.
        """
        if not self.flat:
            return problem
        return flattened(problem, None if self.flat == "ones" else reference, as_published=as_published)


def _plain(function: Plain) -> Allocate:
    return lambda problem, draws: function(problem)


POLICIES: dict[str, AllocationPolicy] = {
    "gavel:fifo": AllocationPolicy(
        fifo, "in order, to any type with room; agnostic", shuffled=True, entitled_only=True
    ),
    "gavel:fifo-perf": AllocationPolicy(
        _plain(fifo_perf), "in order, to the fastest type with room", fifo_packing, entitled_only=True
    ),
    "gavel:sjf": AllocationPolicy(_plain(sjf), "shortest job first, to the fastest type with room"),
    "gavel:max-min": AllocationPolicy(
        _plain(max_min), "max-min fairness of normalised throughput (LAS)", max_min_packing
    ),
    "gavel:max-min-agnostic": AllocationPolicy(
        _plain(max_min), "the same, all types alike", flat="ones", shuffled=True
    ),
    "gavel:ftf": AllocationPolicy(
        _plain(finish_time_fairness), "finish-time fairness (Themis)", finish_time_fairness_packing
    ),
    "gavel:ftf-agnostic": AllocationPolicy(
        _plain(finish_time_fairness), "the same, all types as the first", flat="reference", shuffled=True
    ),
    "gavel:makespan": AllocationPolicy(_plain(makespan), "least makespan of the jobs at hand", makespan_packing),
    "gavel:makespan-agnostic": AllocationPolicy(
        _plain(makespan), "the same, all types as the first", flat="reference", shuffled=True
    ),
    "gavel:max-sum": AllocationPolicy(_plain(max_sum), "largest sum of normalised throughput", max_sum_packing),
    "gavel:cost": AllocationPolicy(_plain(cost), "largest sum of throughput per price", cost_packing, priced=True),
    "gavel:cost-slo": AllocationPolicy(
        _plain(cost_slo), "the same among shares that miss deadlines least", priced=True
    ),
    "gavel:hierarchical": AllocationPolicy(_plain(hierarchical), "max-min fairness level by level, by entity"),
    "gavel:allox": AllocationPolicy(_plain(allox), "least mean completion time of waiting jobs (AlloX)", one_gpu=True),
    "gavel:gandiva": AllocationPolicy(
        gandiva, "equal time, for random pairs where the cluster is too small", pairs=True
    ),
    "gavel:isolated": AllocationPolicy(_plain(isolated), "each job its own equal part of every type", shuffled=True),
    "gavel:proportional": AllocationPolicy(
        _plain(proportional), "equal time, spread over types by their GPUs", shuffled=True
    ),
}


def policy(name: str) -> AllocationPolicy:
    """The policy of this name, with its suffix if any. Raises UsageError for a name that is not known."""
    base = name.removesuffix(PACKING)
    if base not in POLICIES:
        raise UsageError(f"policy {name!r} is not one of {', '.join(names())}")
    found = POLICIES[base]
    if base == name:
        return found
    if found.packing is None:
        able = [other for other, row in POLICIES.items() if row.packing]
        raise UsageError(f"policy {base} has no {PACKING}; those that have are {', '.join(able)}")
    return found._replace(allocate=_plain(found.packing), pairs=True)


def names() -> list[str]:
    """All names, also those with a suffix."""
    return [*POLICIES, *(name + PACKING for name, row in POLICIES.items() if row.packing)]
