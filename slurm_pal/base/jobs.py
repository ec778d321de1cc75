# SPDX-License-Identifier: MIT
"""The nouns of a job: what it asks for, and what Slurm says it is doing."""

from __future__ import annotations

from slurm_pal.base.light import NamedTuple

SENSITIVITY_CLASSES = ("A", "B", "C")
"""A: compute-bound, suffers most; B: mixed; C: memory-bound or insensitive (PAL, SC'24)."""

UNKNOWN_CLASS = "?"
"""Shown for a job nobody classified; placed like class A, the cautious reading."""


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


class SlurmJob(NamedTuple):
    """One job as `scontrol show job -d` tells it."""

    job_id: int
    state: str  # a name from slurm.states, or "UNKNOWN"
    reason: str
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
    fields: dict[str, str] = {}  # the raw key=value pairs, for display
