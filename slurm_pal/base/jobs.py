# SPDX-License-Identifier: MIT
"""The nouns of a job: what it asks for, and what Slurm says it is doing."""

from __future__ import annotations

from slurm_pal.base.light import NamedTuple

SENSITIVITY_CLASSES = ("A", "B", "C")
"""A: compute-bound, suffers most; B: mixed; C: memory-bound or insensitive (PAL, SC'24)."""

UNKNOWN_CLASS = "?"
"""Shown for a job without a known class; to be cautious, it is placed like class A."""


class GpuShape(NamedTuple):
    """How many GPUs a job wants, and how they may be spread.

    `nodes` x `per_node` when both are given; otherwise `total` GPUs on as few nodes
    as Slurm needs. `nodes` is None when Slurm may choose their number.
    """

    total: int
    nodes: int | None = None
    per_node: int | None = None
    gpu_type: str = ""
    whole_nodes: bool = False  # --exclusive: the job is given every GPU of its nodes


FOR_NODES = ("None", "Resources", "Priority", "ReqNodeNotAvail", "Nodes_required_for_job")
"""How the reasons of jobs that wait for nodes begin; limits, licenses and holds are other reasons."""


class Asks(NamedTuple):
    """What a job asks for besides its GPUs, as far as Slurm shows it in numbers."""

    gpus: bool = False  # GPUs, in whatever form
    gpus_in_all: int = 0  # where it asks for a total
    gpu_types: frozenset[str] = frozenset()
    cpus: int = 0  # of all its nodes
    nodes_min: int = 1
    nodes_max: int = 1
    node_memory_mib: float = 0.0
    cpu_memory_mib: float = 0.0
    whole_nodes: bool = False


class SlurmJob(NamedTuple):
    """One job as Slurm shows it (scontrol(1), show job): what matters is parsed once, in `slurm/`."""

    job_id: int
    state: str  # a name from slurm.states, or "UNKNOWN"
    reason: str  # why it waits, in the form of squeue: "_" for each blank
    user: str
    name: str
    partition: str
    gpus: dict[str, tuple[int, ...]]  # node -> Slurm's GPU indexes, empty while pending
    nodes: tuple[str, ...]
    req_nodes: tuple[str, ...]
    exc_nodes: tuple[str, ...]
    submit_s: float  # Unix seconds; 0.0 where unknown
    start_s: float
    end_s: float
    time_limit_s: int | None
    restarts: int
    comment: str
    gpus_per_node: int  # requested; 0 where the request has another form
    array_job_id: int | None = None
    array_task_id: int | None = None
    uid: int = -1  # -1: not known
    account: str = ""
    qos: str = ""
    admin_comment: str = ""
    priority: int | None = None  # 0: held, or no node of its partitions fits
    eligible_s: float = 0.0  # it may start from then on; 0.0 where unknown
    unlimited: bool = False  # without a time limit
    batch: bool = False
    may_requeue: bool = False
    het: bool = False  # a part of a heterogeneous job
    exit_code: str = ""
    gpus_given: int = 0  # also when it has ended; 0 where Slurm does not say
    asks: Asks = Asks()
    nice: int = 0
    raw: dict[str, str] = {}  # Slurm's key=value pairs, for `slurm/` only

    @property
    def held(self) -> bool:
        """Whether Slurm starts it only after somebody has changed it."""
        return self.priority == 0 or self.reason.startswith("JobHeld")

    @property
    def rank(self) -> tuple[int, int]:
        """Slurm's order of pending jobs, the first one lowest: by priority, first come first."""
        return -(self.priority or 0), self.job_id

    @property
    def waits_for_nodes(self) -> bool:
        """Whether it waits only for nodes, by the last scheduling pass."""
        # Of several partitions one may be down, as loan.waits always is: the job waits for nodes of the others.
        other = self.reason.startswith("PartitionDown") and "," in self.partition
        return not self.held and (not self.reason or other or self.reason.startswith(FOR_NODES))
