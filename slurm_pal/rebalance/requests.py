"""What a job in Slurm asks for, from the key=value pairs of `scontrol show job -d`.

The pairs are put back into words of sbatch and read by the same code as a submission, so
that a job is understood alike when it is submitted and while it waits. Forms seen on
22.05, 24.11 and 26.05; scontrol(1) does not describe them.
"""

from __future__ import annotations

import re
from math import ceil

from slurm_pal.hostlist import fold
from slurm_pal.jobs import SlurmJob
from slurm_pal.rebalance.leases import in_force
from slurm_pal.slurm.parse import value, whole
from slurm_pal.submit.argv import CommandLine
from slurm_pal.submit.request import Conflict, Request, build

OURS_SOFT = "pal_"
"""How the names of our class features begin."""

_SAME = {
    "Partition": "partition", "TimeLimit": "time", "Reservation": "reservation", "Features": "constraint",
    "TresPerNode": "gres", "TresPerSocket": "gpus-per-socket", "NtasksPerTRES": "ntasks-per-gpu",
    "Switches": "switches", "BurstBuffer": "bb", "ClusterFeatures": "cluster-constraint", "BatchFeatures": "batch",
    "Extra": "extra", "Dependency": "dependency", "NumTasks": "ntasks", "MinCPUsNode": "mincpus",
}  # fmt: skip
"""scontrol's key -> sbatch's option that takes the same value."""
_NUMBERED = {"Contiguous": "contiguous", "Reboot": "reboot", "MinTmpDiskNode": "tmp"}
"""The same, where 0 stands for an option not given."""
_SHARED = {"OK": "", "YES": "", "NO": "", "EXCLUSIVE": "", "USER": "user", "MCS": "mcs", "TOPO": "topo"}
"""Words of OverSubscribe: whole nodes where they are in _WHOLE."""
_WHOLE = frozenset({"NO", "EXCLUSIVE", "USER", "MCS", "TOPO"})
_GPUS = re.compile(r"(?:gres[:/])?gpu[:/=](.+)")
_SIZE = re.compile(r"([\d.]+)([KMGTP]?)")
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


def request_of(job: SlurmJob, own_req: str | None = None, own_exc: str | None = None) -> Request:
    """The request of a job in the queue. Pure, never raises: doubts end in `leave`.

    `own_req` and `own_exc` are the user's own node lists where the job's present ones are
    not his; None: as they stand on the job, a list that a mark has set (`pal:lease=`)
    replaced by the one it tells. For a running job the number of nodes is the one it has.
    """
    marked = in_force(job)
    lists = {
        "nodelist": marked.get("ReqNodeList", fold(job.req_nodes)) if own_req is None else own_req,
        "exclude": marked.get("ExcNodeList", fold(job.exc_nodes)) if own_exc is None else own_exc,
    }
    try:
        options = _options(job) | {name: text for name, text in lists.items() if text}
    except Conflict as reason:
        return Request(leave=str(reason))
    return build(CommandLine(tuple(options.items()), (), (), (), None, False, ""), {}, None)


def _options(job: SlurmJob) -> dict[str, str]:
    """sbatch options that ask for the same; raises Conflict where there are none."""
    pairs = job.fields
    _check(job)
    options = {name: text for key, name in _SAME.items() if (text := value(pairs, key))}
    options |= {name: text for key, name in _NUMBERED.items() if (text := value(pairs, key)) not in ("", "0")}
    if options.get("time") == "UNLIMITED":
        del options["time"]
    preferred = [name for name in re.split(r"[|&]", value(pairs, "Prefer")) if not name.startswith(OURS_SOFT)]
    if any(preferred):
        options["prefer"] = value(pairs, "Prefer")
    return options | _exclusive(pairs) | _tasks(pairs) | _memory(pairs) | _gpus(pairs) | _nodes(job)


def _check(job: SlurmJob) -> None:
    """What sbatch has no single option for."""
    if value(job.fields, "HetJobId"):
        raise Conflict("heterogeneous job: its components are placed together by Slurm")
    if stands_for_array(job):
        raise Conflict("an array has one node list for all its tasks")
    if "," in job.partition:
        raise Conflict(f"partitions {job.partition}: it is open in which one the job will run")
    if job.reason == "BeginTime":
        raise Conflict("--begin: the job does not start now")


def stands_for_array(job: SlurmJob) -> bool:
    """Whether what is done to this job id is done to every task of an array (seen on 22.05).

    That is the record of the tasks still to come, and the one task that has inherited the
    array's own id. Other tasks have an id of their own, and are held, changed and released alone.
    """
    if not value(job.fields, "ArrayJobId"):
        return False
    return job.array_job_id in (None, job.job_id) or not value(job.fields, "ArrayTaskId").isdigit()


def _exclusive(pairs: dict[str, str]) -> dict[str, str]:
    shared = pairs.get("OverSubscribe", "OK")
    if shared not in _SHARED:
        raise Conflict(f"OverSubscribe={shared}: what this means for the job's nodes is not known here")
    return {"exclusive": _SHARED[shared]} if shared in _WHOLE else {}


def _tasks(pairs: dict[str, str]) -> dict[str, str]:
    tasks, cpus = whole(pairs.get("NumTasks", ""), 1), whole(pairs.get("CPUs/Task", ""), 1)
    per_node = whole(pairs.get("NtasksPerN:B:S:C", ""))
    options = {"cpus-per-task": str(cpus)}
    # Of a range of nodes 22.05 shows tasks for all of them beside CPUs for the fewest.
    if 0 < whole(pairs.get("NumCPUs", "")) < tasks * cpus and tasks > _nodes_wanted(pairs)[1]:
        options["overcommit"] = ""
    if per_node:
        options["ntasks-per-node"] = str(per_node)
    if count := _of_gpus(value(pairs, "CpusPerTres"), "CpusPerTres"):
        options["cpus-per-gpu"] = count
    return options


def _memory(pairs: dict[str, str]) -> dict[str, str]:
    """One of the three; without any memory limit on the cluster MinMemoryNode=0 asks for what nobody counts."""
    if count := _of_gpus(value(pairs, "MemPerTres"), "MemPerTres"):
        return {"mem-per-gpu": _mib(count)}
    for key, name in (("MinMemoryCPU", "mem-per-cpu"), ("MinMemoryNode", "mem")):
        if text := value(pairs, key):
            return {name: _mib(text)}
    return {}


def _mib(text: str) -> str:
    match = _SIZE.fullmatch(text)
    if not match:
        raise Conflict(f"{text} is not an amount of memory")
    return str(ceil(float(match[1]) * _MIB[match[2]]))


def _of_gpus(text: str, key: str) -> str:
    """The words after `gres:gpu:` of a text that may name nothing but GPUs; "" where there is none."""
    match = _GPUS.fullmatch(text)
    if text and (not match or "," in text):
        raise Conflict(f"{key}={text}: not only GPUs are asked for")
    return match[1].replace("=", ":") if match else ""


def _gpus(pairs: dict[str, str]) -> dict[str, str]:
    per_task = [part for part in value(pairs, "TresPerTask").split(",") if not part.startswith("cpu")]
    found = {
        "gpus": _of_gpus(value(pairs, "TresPerJob"), "TresPerJob"),
        "gpus-per-task": _of_gpus(",".join(per_task), "TresPerTask"),
    }
    return {name: text for name, text in found.items() if text}


def _nodes(job: SlurmJob) -> dict[str, str]:
    """The number of nodes where it is stated, or known since the job runs.

    Open for a number of GPUs as a whole, it cannot be kept by a node list: the job may be
    spread when the list is gone.
    """
    low, high, stated = _nodes_wanted(job.fields)
    if job.state not in ("PENDING", "REQUEUED") or stated:
        if job.state != "PENDING" and low > 1 and _total(job.fields) > 1:
            raise Conflict("how many nodes its GPUs may be spread over is not known while it runs")
        return {"nodes": f"{low}-{high}"}
    if job.restarts and high > 1:
        raise Conflict("how many nodes it may have is not known after a restart")
    if _total(job.fields) > 1:
        raise Conflict("a number of GPUs on an open number of nodes")
    return {}


def _total(pairs: dict[str, str]) -> int:
    """GPUs of a job that tells their number as a whole or by tasks; 0 of others."""
    tasks = whole(pairs.get("NumTasks", ""), 1) if "gpu" in value(pairs, "TresPerTask") else 0
    text = value(pairs, "TresPerJob") or value(pairs, "TresPerTask")
    count = re.search(r"gpu\D*?(?:[:=/][^,:=]*?)??[:=](\d+)", text)
    return (int(count[1]) if count else 1) * (tasks or 1) if "gpu" in text else 0


def _nodes_wanted(pairs: dict[str, str]) -> tuple[int, int, bool]:
    """Fewest and most nodes, and whether they are stated.

    `NumNodes=2` is Slurm's estimate for a pending job and the count of a running one,
    `NumNodes=1-3` is a range; 22.05 to 26.05 print `3-3` for a range up to 3 too, whose
    fewest nodes then stand in the TRES.
    """
    first, dash, last = pairs.get("NumNodes", "1").partition("-")
    low, high = whole(first, 1), whole(last or first, 1)
    asked = re.search(r"(?:^|,)node=(\d+)", pairs.get("ReqTRES") or pairs.get("TRES", ""))
    if dash and asked and 1 <= int(asked[1]) < low:
        low = int(asked[1])
    return low, high, bool(dash)
