# SPDX-License-Identifier: MIT
"""The nouns of the cluster: nodes and their GPUs, as Slurm shows them.

These are imported by `palsub`, hence NamedTuples and no third-party import.
"""

from __future__ import annotations

from slurm_pal.base.light import NamedTuple

Gpu = tuple[str, int]
"""One physical GPU as Slurm addresses it: (node name, index in Slurm's list)."""


class Node(NamedTuple):
    """One node at one moment."""

    name: str
    states: frozenset[str]  # base state and flags, e.g. {"IDLE", "DRAIN"}; see slurm.states
    gpu_types: tuple[str, ...]  # one entry per GPU index, "" where the GRES has no type
    gpus_used: int
    cpus: int
    cpus_used: int
    memory_mib: int
    memory_used_mib: int
    features: frozenset[str]  # active ones
    partitions: tuple[str, ...]
    weight: int = 1
    available: tuple[str, ...] | None = None  # available features in Slurm's order; None: not known
    threads: int = 1  # CPUs that Slurm counts for each core, which it gives to one job as a whole
    others_free: tuple[tuple[str, int], ...] = ()  # gres beside GPUs, by name, or name:type: how many are not in use

    @property
    def n_gpus(self) -> int:
        return len(self.gpu_types)


class Counting(NamedTuple):
    """What Slurm adds to a request that does not state it, and its limits (slurm.conf(5)); 0: none."""

    memory: bool = False  # it counts memory; then a job without a default takes all of a node's
    mem_cpu_mib: int = 0  # DefMemPerCPU
    mem_node_mib: int = 0  # DefMemPerNode
    mem_gpu_mib: int = 0  # DefMemPerGPU
    cpus_gpu: int = 0  # DefCpuPerGPU
    most_mem_cpu_mib: int = 0  # MaxMemPerCPU
    most_cpus: int = 0  # MaxCPUsPerNode: of all the partition's jobs together
    one_task_per_core: bool = False  # CR_ONE_TASK_PER_CORE

    def over(self, site: Counting) -> Counting:
        """A partition's own, and the site's where it says nothing."""
        found = site._replace(**{name: number for name, number in self._asdict().items() if number})
        if self.mem_cpu_mib or self.mem_node_mib:  # each of the two replaces both
            return found._replace(mem_cpu_mib=self.mem_cpu_mib, mem_node_mib=self.mem_node_mib)
        return found


class Partition(NamedTuple):
    """One partition, as far as placement needs it."""

    name: str
    default: bool
    up: bool
    nodes: tuple[str, ...]
    max_time_s: int | None = None  # None: unlimited
    default_time_s: int | None = None
    counting: Counting = Counting()
    tier: int = 1  # PriorityTier: jobs of a higher one are looked at first
    job_factor: int = 1  # PriorityJobFactor
    preempt: str = ""  # PreemptMode, "" where it is not known
    grace_s: int = 0  # GraceTime: so long a job that is preempted runs on
    billing: str = ""  # TRESBillingWeights
    topology: str = ""  # its own network of topology.yaml; "": that of the cluster
    own_blocks: bool = False  # its jobs share no block with others, as with --exclusive=topo
    admits: tuple[tuple[str, str], ...] = ()  # who may run there, by Slurm's names (AllowAccounts); (): everybody
