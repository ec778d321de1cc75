# SPDX-License-Identifier: MIT
"""The `SlurmClient` protocol: all that slurm-pal asks of Slurm, and nothing else.

Backends: `slurm.cli.CliClient` (scontrol, squeue, sbatch; works on 22.05 and later;
the default), `CliClient` over `slurm.fake.FakeSlurm` (tests), `slurm.pyslurm_client.PyslurmClient`
(extra `[pyslurm]`), and `slurm.rest_client.RestClient` (slurmrestd).
"""

from __future__ import annotations

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.light import NamedTuple, Protocol, Sequence
from slurm_pal.slurm.question import Completed as Completed
from slurm_pal.slurm.question import Runner as Runner
from slurm_pal.slurm.states import JOB_ACTIVE, JOB_UNKNOWN
from slurm_pal.slurm.topology import Topology

AGAIN_S = (0.05, 0.05, 0.1, 0.1, 0.2)
"""Pauses before each new try of what Slurm could not do at that moment; after them the next tick tries.

From 24.11 on slurmctld refuses to change a pending job that is in a scheduling cycle. With a cycle every second that
is nine tries in ten, whenever they come (26.05, measured: 12 tries and .5 s in the median, 39 and 1.5 s at the most),
so many short pauses succeed where few long ones do not."""
LAST_S = (*AGAIN_S, *(0.1,) * 50)
"""The same where no tick follows."""


class Overview(NamedTuple):
    """The cluster at one moment, from one bulk query."""

    nodes: tuple[Node, ...]  # in Slurm's order
    jobs: tuple[SlurmJob, ...]
    partitions: tuple[Partition, ...]
    reservations: dict[str, tuple[str, ...]]  # name -> nodes, of those active now
    queued: frozenset[tuple[str, str]] = frozenset()  # (partitions, reason) of the pending jobs left out
    network: Topology = Topology()

    @property
    def up(self) -> frozenset[str]:
        """The partitions that take jobs now and start them."""
        return frozenset(partition.name for partition in self.partitions if partition.up)


def in_overview(
    jobs: Sequence[SlurmJob], marked: bool, whole: frozenset[str]
) -> tuple[tuple[SlurmJob, ...], frozenset[tuple[str, str]]]:
    """The jobs that belong in an overview, and what the other pending ones wait for: as `Sealed.counting`."""
    found: list[SlurmJob] = []
    queued: set[tuple[str, str]] = set()
    for job in jobs:
        if job.state != "PENDING":
            found += [job] if job.state in JOB_ACTIVE or job.state == JOB_UNKNOWN else []
            continue
        ours = " pal:" in f" {job.comment} {job.admin_comment}"
        if job.req_nodes or (marked and (job.exc_nodes or ours or whole & {*job.partition.split(",")})):
            found.append(job)
        elif marked and job.priority != 0:
            queued.add((job.partition, job.reason))
    return tuple(found), frozenset(queued)


class SlurmClient(Protocol):
    """Every method raises SlurmError, with Slurm's own words, when Slurm does not answer."""

    def overview(
        self, reservations: bool = False, marked: bool = False, whole: frozenset[str] = frozenset()
    ) -> Overview:
        """Nodes, jobs and partitions in one process (three or four RPCs).

        Pending jobs are those with a required node list; with `marked` also those with our marks
        or a list of excluded nodes, all those of the partitions `whole`, and, for the others, what they wait for
        (`queued`).
        """
        ...

    def nodes(self) -> tuple[Node, ...]:
        """All nodes in Slurm's order."""
        ...

    def jobs(self) -> tuple[SlurmJob, ...]:
        """All jobs slurmctld still knows, with GPU indexes where they run."""
        ...

    def job(self, job_id: int) -> SlurmJob | None:
        """One job, or None when slurmctld no longer knows it."""
        ...

    def jobs_of(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        """Those of these jobs that slurmctld still knows, from one process (one small RPC each)."""
        ...

    def tasks(self, array_id: int, indexes: Sequence[int]) -> dict[int, int]:
        """Of those of these tasks of an array that exist the job ids: their own, or the array's for one that waits."""
        ...

    def job_states(self, name_prefix: str = "", user: str = "") -> dict[int, tuple[str, str]]:
        """job id -> (state, reason) of jobs in the queue, by one cheap squeue call."""
        ...

    def submit(self, argv: Sequence[str], script: str) -> int:
        """sbatch `argv` with the script on stdin; the job id. sbatch, and so the job, has `told.job_environment`."""
        ...

    def update_job(self, job_id: int, **fields: str) -> None:
        """scontrol update JobId=... key=value ... in one command."""
        ...

    def update_jobs(self, job_ids: Sequence[int], **fields: str) -> None:
        """The same for several jobs; one that Slurm refuses does not keep the others from it. Without jobs nothing."""
        ...

    def cancel(self, job_ids: Sequence[int], pending_only: bool = False) -> None:
        """Cancel these jobs; those that have already ended do not matter."""
        ...

    def signal_batch(self, job_id: int, name: str) -> None:
        """Send a signal (`USR1`) only to the batch shell of a running job."""
        ...

    def requeue(self, job_id: int) -> None:
        """Stop a job's run and put it back into the queue; do nothing for a job that is not running (any more).

        It keeps its place in the queue, and Slurm starts it again after a delay
        (cred_expire + 1 s, see slurm.conf(5), AuthInfo) that `StartTime=now` ends.
        """
        ...

    def unhold(self, job_id: int) -> None:
        """scontrol release: a job that Slurm holds is to wait again."""
        ...

    def update_nodes(self, names: Sequence[str], **fields: str) -> None:
        """scontrol update NodeName=... key=value ... in one command; without names nothing is done."""
        ...

    def update_partition(self, name: str, **fields: str) -> None:
        """scontrol update PartitionName=... key=value ... in one command.

        With fewer `Nodes` its jobs that run elsewhere run on, and pending ones that no longer fit wait.
        """
        ...

    def reserve(self, name: str, node: str, minutes: int, user: str) -> None:
        """Reserve a node for a user from now on (scontrol(1), create reservation). Fails where jobs run there."""
        ...

    def fence(self, name: str, nodes: Sequence[str], after_s: float, lasts_s: float, user: str) -> None:
        """Reserve nodes, whatever runs there, for a time that begins in `after_s` and lasts `lasts_s`.

        No job that asks for no reservation starts there unless it ends, by its limit, before that time begins.
        It ends by itself. Needs an operator; fails where another reservation has some of the nodes at that time.
        """
        ...

    def release(self, name: str) -> None:
        """Delete a reservation; one that is gone already does not matter."""
        ...

    def node_reason(self, name: str) -> str:
        """Why a node is drained or down, as somebody wrote it; "" without a reason."""
        ...

    def site_factors(self) -> dict[int, int]:
        """Pending job -> its SiteFactor; Slurm shows it only with priority/multifactor."""
        ...

    def statistics(self) -> dict[str, str]:
        """What sdiag shows, e.g. "Server thread count" -> "3"; for a name that occurs twice, the first."""
        ...

    def version(self) -> tuple[int, int]:
        """Slurm's release, e.g. (22, 5)."""
        ...

    def cluster(self) -> str:
        """The cluster's name, "" where it is not shown."""
        ...

    def config(self) -> dict[str, str]:
        """`scontrol show config` as pairs."""
        ...
