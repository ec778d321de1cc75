# SPDX-License-Identifier: MIT
"""What became of this user's jobs that had a choice of places: how long they waited and ran, beside what was planned.

One small file of the user's own, in their state folder. Starts and ends come from sacct where there is accounting,
else from slurmctld while it still knows the job.
"""

from __future__ import annotations

import os

from slurm_pal.base import state
from slurm_pal.base.errors import DataError, SlurmError
from slurm_pal.base.files import read_plain, write_atomic
from slurm_pal.base.light import NamedTuple, json
from slurm_pal.sensitivity.keys import checksum

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurm_pal.slurm.question import Runner

SCHEMA = "pal.places/1"
KEPT, NEWEST = 200, 8
RUNS = 3
"""After so many runs their median counts, and not what the user said."""
DOUBT = 4.0
"""So many waits weigh as much as Slurm's own plan."""
SLACK_S = 60.0
"""Waits below a minute are alike."""
_FAR = 16.0
_ASKED = 50
_SQUEUE = ",".join(f"{name}:|" for name in ("JobID", "SubmitTime", "StartTime", "EndTime", "State"))


class Ran(NamedTuple):
    """One job."""

    job_id: int
    key: str  # of its name
    place: str
    partition: str
    planned_s: float  # how long Slurm thought that it would wait
    submit_s: float  # Unix s
    wait_s: float = -1.0  # -1: not known yet
    run_s: float = -1.0  # of a job that has completed; -1: not known yet, -2: never will be


def key_of(name: str) -> str:
    """Under which jobs of one name are remembered."""
    return checksum(name.strip().encode(errors="surrogateescape"))


def _path() -> str:
    return os.path.join(state.folder("places", state.cluster_key()), "history.json")


def read() -> list[Ran]:
    """The newest jobs, oldest first; [] where there are none, or where the file makes no sense."""
    try:
        body = json.loads(read_plain(_path()))
        return [Ran(*row) for row in body["jobs"]][-KEPT:] if body["schema"] == SCHEMA else []
    except (OSError, DataError, ValueError, TypeError, KeyError, RecursionError):
        return []


def write(jobs: Sequence[Ran]) -> None:
    """Raises OSError."""
    body = {"schema": SCHEMA, "jobs": [tuple(job) for job in jobs[-KEPT:]]}
    write_atomic(_path(), json.dumps(body) + "\n", 0o600, durable=False)


def add(job: Ran) -> None:
    """Remember one more job. Raises OSError."""
    write([*(one for one in read() if one.job_id != job.job_id), job])


def corrected(jobs: Sequence[Ran], partition: str, planned_s: float) -> tuple[float, int]:
    """How long a job is expected to wait there, and by how many earlier waits.

    No plan knows who is to come, or how long others run; the median of what this user's last jobs there waited over
    what was planned says how far that holds.
    """
    seen = [one for one in jobs if one.partition == partition and one.wait_s >= 0][-NEWEST:]
    if not seen:
        return planned_s, 0
    ratios = sorted((one.wait_s + SLACK_S) / (one.planned_s + SLACK_S) for one in seen)
    ratio = min(_FAR, max(1.0 / _FAR, ratios[len(ratios) // 2]))
    share = len(seen) / (len(seen) + DOUBT)
    wait_s = max(0.0, (planned_s + SLACK_S) * ratio**share - SLACK_S)
    return wait_s, len(seen)


def run_s(jobs: Sequence[Ran], name: str, place: str) -> float | None:
    """The median run time of completed jobs of this name in this place, None before the third."""
    key = key_of(name)
    same = [one.run_s for one in jobs if one.key == key and one.place == place and one.run_s >= 0]
    seen = sorted(same[-NEWEST:])
    return seen[len(seen) // 2] if len(seen) >= RUNS else None


def settle(run: Runner) -> None:
    """Look up what is not known yet. Never raises for what cannot be found out; raises OSError for our own file."""
    jobs = read()
    open_ = [job for job in jobs if job.wait_s == -1.0 or job.run_s == -1.0][-_ASKED:]
    if not open_:
        return
    ids = ",".join(str(job.job_id) for job in open_)
    told = _told(run, ["sacct", "-n", "-X", "-P", "-j", ids, "-o", "JobIDRaw,Submit,Start,End,State"])
    if not told:
        told = _told(run, ["squeue", "-h", "-t", "all", "-j", ids, "-O", _SQUEUE])
    # Where a node boots for a job, sacct calls it running, with a start that Slurm sets anew once the node is up.
    new = [str(job.job_id) for job in open_ if job.wait_s == -1.0 and told.get(job.job_id, [""])[-1] == "RUNNING"]
    booting = _told(run, ["squeue", "-h", "-t", "CF", "-j", ",".join(new), "-O", _SQUEUE]) if new else {}
    found = [_settled(job, booting.get(job.job_id, told.get(job.job_id))) for job in jobs]
    if found != jobs:
        write(found)


def _told(run: Runner, argv: Sequence[str]) -> dict[int, list[str]]:
    try:
        done = run(argv, "")
    except SlurmError:
        return {}
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return {int(row[0]): row for row in rows if len(row) >= 5 and row[0].isascii() and row[0].isdigit()}


def _settled(job: Ran, row: list[str] | None) -> Ran:
    if row is None:
        return job
    from slurm_pal.slurm.parse import unix_s

    submit_s, start_s, end_s = (unix_s(text) for text in row[1:4])
    ended = row[4].split(" ")[0].upper()
    if job.wait_s < 0 and start_s and submit_s and ended not in ("PENDING", "CONFIGURING"):
        job = job._replace(wait_s=max(0.0, start_s - submit_s))
    if ended == "COMPLETED" and start_s and end_s:
        return job._replace(run_s=max(0.0, end_s - start_s))
    if ended not in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "REQUEUED"):
        return job._replace(run_s=-2.0, wait_s=job.wait_s if job.wait_s >= 0 else -2.0)
    return job
