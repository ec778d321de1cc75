# SPDX-License-Identifier: MIT
"""What Slurm knows of a cluster beside its GPUs: sizes of nodes, rules of partitions, shares, QOS, outages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Partition
from slurm_pal.simulate.job_room import NodeSize
from slurm_pal.slurm.shares import Association
from slurm_pal.twin.outages import Outage
from slurm_pal.twin.room import Take

CPU, MEMORY, GPU = "cpu", "mem", "gres/gpu"
_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_WEIGHT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})([KMGT]?)")


class SlurmSide(NamedTuple):
    """Nothing is known of what is empty, and nothing follows from it."""

    sizes: tuple[NodeSize, ...] = ()  # of each node; none: CPUs and memory never run out
    rules: Mapping[str, Partition] = {}  # Slurm partition -> what slurm.conf says of it
    associations: tuple[Association, ...] = ()
    qos: Mapping[str, int] = {}  # name -> Priority
    billing: Mapping[str, Mapping[str, float]] = {}  # partition -> TRESBillingWeights, where it has any
    outages: tuple[Outage, ...] = ()

    @property
    def counts_memory(self) -> bool:
        """Whether jobs take memory from each other."""
        return bool(self.sizes) and (not self.rules or any(rule.counting.memory for rule in self.rules.values()))

    def rule(self, place: str) -> Partition | None:
        """The rules of a partition of the virtual cluster, which may be one of a GPU type (`gpu:a100`)."""
        return self.rules.get(place) or self.rules.get(place.partition(":")[0])

    def bill(self, place: str, takes: Sequence[Take]) -> float:
        """What a job is charged for a second: GPUs where nothing is known of CPUs, else CPUs, or by weights."""
        gpus = sum(take.gpus.bit_count() for take in takes)
        if not self.sizes:
            return float(gpus)
        cpus, memory_mib = sum(take.cpus for take in takes), sum(take.memory_mib for take in takes)
        weights = self.billing.get(place) or self.billing.get(place.partition(":")[0]) or {CPU: 1.0}
        return sum(weights.get(key, 0.0) * had for key, had in ((CPU, cpus), (MEMORY, memory_mib), (GPU, gpus)))


NOTHING_KNOWN = SlurmSide()


def billing_of(text: str) -> dict[str, float]:
    """TRESBillingWeights, like `CPU=1.0,Mem=0.25G,GRES/gpu=2.0`; memory by MiB. Words that are neither count 0."""
    found = {}
    for word in text.split(","):
        key, _, value = word.strip().partition("=")
        match = _WEIGHT.fullmatch(value)
        if match:
            number = float(match[1])
            found[key.lower()] = number / _UNITS[match[2]] if key.lower() == MEMORY else number
    return found
