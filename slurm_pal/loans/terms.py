# SPDX-License-Identifier: MIT
"""What a site says of owners and guests ([loan] in pal.toml), and whether Slurm is set up for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_pal.allocation.demand import HOUR_S, WEEK_H
from slurm_pal.base.cluster import Partition
from slurm_pal.base.config import Config
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.slurm import releases
from slurm_pal.slurm.client import Overview

BY_PARTITION, BY_QOS = "preempt/partition_prio", "preempt/qos"
_STAYS_OFF = frozenset({"OFF", "SUSPEND", "GANG", "SUSPEND,GANG", "GANG,SUSPEND"})
"""A guest that is suspended keeps its GPUs."""


class LoanTerms(NamedTuple):
    """The settings for loans."""

    owners: tuple[str, ...]  # partitions
    guest: str  # partition
    interval_s: float = 300.0  # between two orders
    grace_s: float = 60.0  # that a job has for its checkpoint
    headroom: float = 0.02  # share of the owners' nodes that stays closed beyond what they need
    quantile: float = 0.75  # of past demand
    restart_s: float = 60.0  # what a restart costs a guest beside lost work
    hour_s: float = HOUR_S  # demand is counted by so long, of which WEEK_H repeat
    waits: str = ""  # partition that is down, in which guests wait that no open node fits; "" none

    @property
    def names(self) -> str:
        """The owners as one word."""
        return ",".join(sorted(self.owners))

    @property
    def key(self) -> str:
        """The word by which their demand is remembered."""
        return self.names if self.hour_s == HOUR_S else f"{self.names} {self.hour_s:g}"


class Preemption(NamedTuple):
    """How Slurm itself preempts (slurm.conf(5)), and what else matters of its configuration."""

    kind: str = ""  # PreemptType; "" unknown
    limits: str = "NO"  # EnforcePartLimits
    preempted: frozenset[str] | None = None  # QOS that jobs of some other QOS may preempt; None: not known
    version: str = ""  # of Slurm, "24.11.5"; "" not known


def preemption_of(pairs: Mapping[str, str], preempted: frozenset[str] | None = None) -> Preemption:
    """From `scontrol show config`. `preempted` is known from sacctmgr only."""
    kind, limits = pairs.get("PreemptType", ""), pairs.get("EnforcePartLimits", "NO")
    return Preemption(kind, limits, preempted, pairs.get("SLURM_VERSION", ""))


def terms_of(config: Config) -> LoanTerms | None:
    """The settings; None where no owner lends."""
    owners = tuple(dict.fromkeys(filter(None, (word.strip() for word in config.text("loan", "owners").split(",")))))
    if not owners:
        return None
    return LoanTerms(
        owners, config.text("loan", "guest").strip(), config.number("loan", "interval_s"),
        config.number("loan", "grace_s"), config.number("loan", "headroom"), config.number("loan", "quantile"),
        config.number("rebalance", "move_cost_s"), config.number("loan", "period_s") / WEEK_H,
        config.text("loan", "waits").strip(),
    )  # fmt: skip


def refused(terms: LoanTerms, overview: Overview, slurm: Preemption) -> str:
    """Why nothing can be lent at this site, one line; "" where it can.

    Whatever fails here, the guests' partition keeps the nodes that slurm.conf gives it.
    """
    known = {partition.name: partition for partition in overview.partitions}
    named = (*terms.owners, terms.guest, *([terms.waits] if terms.waits else []))
    missing = [name for name in named if name not in known]
    if not terms.guest:
        return "nothing is lent: loan.owners is set and loan.guest is not: name the guests' partition"
    if missing:
        shown = ", ".join(sorted(known)[:8])
        return f"nothing is lent: Slurm has no partition {missing[0]!r} ([loan] in pal.toml); it has {shown}"
    if terms.guest in terms.owners:
        return f"nothing is lent: partition {terms.guest} is both in loan.owners and loan.guest; it must be one of them"
    empty = [name for name in terms.owners if not known[name].nodes]
    if empty:
        return (
            f"nothing is lent: owner partition {empty[0]} has no nodes: set Nodes in slurm.conf, or change loan.owners"
        )
    if slurm.limits not in ("NO", ""):
        return (
            f"nothing is lent: EnforcePartLimits={slurm.limits} would refuse guests that ask for more nodes than are "
            "open; loans need EnforcePartLimits=NO in slurm.conf"
        )
    return _refusing(terms, known, slurm) or _unprotected(terms, known, slurm)


def _refusing(terms: LoanTerms, known: Mapping[str, Partition], slurm: Preemption) -> str:
    """Why Slurm would refuse guests that no open node fits, instead of letting them wait."""
    if not terms.waits:
        if slurm.version and releases.has(releases.printed(slurm.version, "Slurm"), "narrow partitions refuse jobs"):
            return (
                f"nothing is lent: Slurm {slurm.version} refuses guests that ask for more nodes than are open; make a "
                f"partition with the nodes of {terms.guest} and State=DOWN in slurm.conf, name it in loan.waits, and "
                "let guests submit to both (the submit filter and palsub do that)"
            )
        return ""
    waits = known[terms.waits]
    if terms.waits in (*terms.owners, terms.guest):
        return (
            f"nothing is lent: loan.waits is {terms.waits}, which lends or borrows; it must be a partition of its own"
        )
    if waits.up:
        return (
            f"nothing is lent: partition {waits.name} (loan.waits) is UP, so guests would start there; set State=DOWN"
        )
    lacks = [name for name in known[terms.guest].nodes if name not in waits.nodes]
    if lacks:
        return f"nothing is lent: partition {waits.name} (loan.waits) lacks {lacks[0]}, which {terms.guest} has"
    return ""


def _unprotected(terms: LoanTerms, known: Mapping[str, Partition], slurm: Preemption) -> str:
    """Why Slurm itself would let an owner wait for guests: what it does is all that owners have when we are away."""
    guest = known[terms.guest]
    if slurm.kind not in (BY_PARTITION, BY_QOS):
        return (
            f"nothing is lent: PreemptType={slurm.kind or 'unknown'} lets owners wait for guests; loans need "
            f"{BY_PARTITION} or {BY_QOS} in slurm.conf"
        )
    if slurm.kind == BY_QOS:
        return ""
    if guest.preempt.upper() in _STAYS_OFF:
        return (
            f"nothing is lent: PreemptMode={guest.preempt} of partition {guest.name} lets owners wait for guests; "
            "it must be REQUEUE or CANCEL"
        )
    low = [name for name in terms.owners if known[name].tier <= guest.tier]
    if low:
        return (
            f"nothing is lent: PriorityTier={known[low[0]].tier} of partition {low[0]} is not above that of "
            f"{guest.name} ({guest.tier}), so its jobs would wait for guests"
        )
    return ""


def unpreempted(guests: Iterable[SlurmJob], slurm: Preemption) -> list[str]:
    """One line for each QOS of guests that no other may preempt."""
    if slurm.kind != BY_QOS or slurm.preempted is None:
        return []
    by_qos: dict[str, list[int]] = {}
    for job in guests:
        if job.qos not in slurm.preempted:
            by_qos.setdefault(job.qos, []).append(job.job_id)
    return [
        f"QOS {qos or '(none)'} of guests may be preempted by none, so owners may wait for job"
        f"{'s' if len(jobs) > 1 else ''} {', '.join(map(str, jobs[:5]))}{', ...' if len(jobs) > 5 else ''}: "
        f"sacctmgr modify qos OWNERS_QOS set preempt+={qos or 'QOS'}"
        for qos, jobs in sorted(by_qos.items())
    ]
