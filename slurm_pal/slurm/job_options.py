# SPDX-License-Identifier: MIT
"""What a job in Slurm asks for, as options of sbatch, from the key=value pairs of `scontrol show job -d`.

Forms seen on 22.05, 24.11 and 26.05; scontrol(1) does not describe them.
"""

from __future__ import annotations

import re
from math import ceil
from typing import NamedTuple

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.parse import value, whole

_SAME = {
    "Partition": "partition", "TimeLimit": "time", "Reservation": "reservation", "Features": "constraint",
    "TresPerNode": "gres", "TresPerSocket": "gpus-per-socket", "NtasksPerTRES": "ntasks-per-gpu",
    "Switches": "switches", "BurstBuffer": "bb", "ClusterFeatures": "cluster-constraint", "BatchFeatures": "batch",
    "Extra": "extra", "Dependency": "dependency", "SegmentSize": "segment", "MinCPUsNode": "mincpus",
}  # fmt: skip
"""scontrol's key -> sbatch's option that takes the same value."""
_SPECIAL = {"CoreSpec": "core-spec", "ThreadSpec": "thread-spec"}
_NUMBERED = {"Contiguous": "contiguous", "Reboot": "reboot", "MinTmpDiskNode": "tmp"}
"""The same, where 0 stands for an option not given."""
_WHOLE_NODES = {"OK": None, "YES": None, "NO": "", "EXCLUSIVE": "", "USER": "user", "MCS": "mcs", "TOPO": "topo"}
"""OverSubscribe's word -> the value of --exclusive, None without. 26.05 says NO for any job; see its key Exclusive."""
_NO_LIMIT = "UNLIMITED", "365-00:00:00"
"""See moves/worth.py, `stated_limit_s`; a job that is requeued still shows the year."""
_GPUS = re.compile(r"(?:gres[:/])?gpu[:/=](.+)")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTP]?)")
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


class _DoubtError(Exception):
    """No options of sbatch would ask for the same; the text says why."""


class NodeRange(NamedTuple):
    """How many nodes the user asked for."""

    low: int
    high: int | None  # None: open


def options_of(job: SlurmJob, gather: bool = False, own: NodeRange | None = None) -> dict[str, str] | str:
    """Options of sbatch that ask for the same, long name -> value; or the reason why there are none.

    With `gather` also for a total of GPUs on an open number of nodes; `own` is then what is written down of that.

    The job's node lists are not among them: they may be ours.
    """
    try:
        return _options(job, gather, own)
    except _DoubtError as why:
        return str(why)


def _options(job: SlurmJob, gather: bool, own: NodeRange | None) -> dict[str, str]:
    pairs = job.raw | {"Partition": job.partition}
    _check(job)
    options = {name: text for key, name in _SAME.items() if (text := value(pairs, key))}
    options |= {name: text for key, name in _NUMBERED.items() if (text := value(pairs, key)) not in ("", "0")}
    if options.get("time") in _NO_LIMIT:
        del options["time"]
    if value(pairs, "Prefer"):
        options["prefer"] = value(pairs, "Prefer")
    options |= _exclusive(pairs) | _tasks(pairs) | _memory(pairs) | _gpus(pairs)
    return options | _nodes(job, options, gather, own)


def _check(job: SlurmJob) -> None:
    """Raise _DoubtError for what no single option of sbatch asks for."""
    if job.het:
        raise _DoubtError("heterogeneous job: its components are placed together by Slurm")
    if stands_for_array(job):
        raise _DoubtError("an array has one node list for all its tasks")
    if "," in job.partition:
        raise _DoubtError(f"partitions {job.partition}: which of them the job will run in is open")
    if job.reason == "BeginTime":
        raise _DoubtError("--begin: the job does not start now")


def stands_for_array(job: SlurmJob) -> bool:
    """Whether a change of this job id changes every task of an array (seen on 22.05).

    That holds for the record of the tasks still to come, and for the one task that has inherited
    the array's own id. Other tasks have their own ids, and are held, changed and released alone.
    """
    return job.array_job_id is not None and (job.array_job_id == job.job_id or job.array_task_id is None)


def _exclusive(pairs: dict[str, str]) -> dict[str, str]:
    key = "Exclusive" if "Exclusive" in pairs else "OverSubscribe"
    word = pairs.get(key, "OK")
    if key == "Exclusive" and word == "NO":
        return {}
    if key == "Exclusive" or word not in _WHOLE_NODES:
        raise _DoubtError(f"{key}={word}: what this means for the job's nodes is not known here")
    exclusive = _WHOLE_NODES[word]
    return {} if exclusive is None else {"exclusive": exclusive}


def _tasks(pairs: dict[str, str]) -> dict[str, str]:
    tasks, cpus = whole(pairs.get("NumTasks", ""), 1), whole(pairs.get("CPUs/Task", ""), 1)
    per_node = whole(pairs.get("NtasksPerN:B:S:C", ""))
    options = {"ntasks": str(tasks), "cpus-per-task": str(cpus)}
    # For a range of nodes, 22.05 shows tasks for more nodes than it shows CPUs for.
    if 0 < whole(pairs.get("NumCPUs", "")) < cpus * tasks and tasks > _count(pairs).high:
        options["overcommit"] = ""
    if per_node:
        options["ntasks-per-node"] = str(per_node)
    options |= _cores(pairs)
    if count := _of_gpus(pairs, "CpusPerTres"):
        options["cpus-per-gpu"] = count
    return options


def _cores(pairs: dict[str, str]) -> dict[str, str]:
    """What is asked of sockets, cores and threads: `NtasksPerN:B:S:C=0:0:*:1`, `ReqB:S:C:T=0:0:*:1`."""
    tasks, asked = pairs.get("NtasksPerN:B:S:C", "").split(":"), pairs.get("ReqB:S:C:T", "").split(":")
    if len(tasks) != 4 or len(asked) != 4:
        return {}
    numbers = {
        "ntasks-per-socket": tasks[2], "ntasks-per-core": tasks[3], "sockets-per-node": asked[1],
        "cores-per-socket": asked[2], "threads-per-core": asked[3],
    }  # fmt: skip
    found = {name: text for name, text in numbers.items() if whole(text)}
    return found | {name: text for key, name in _SPECIAL.items() if (text := value(pairs, key)) not in ("", "*", "0")}


def _memory(pairs: dict[str, str]) -> dict[str, str]:
    """The one of the three that is in force. MinMemoryNode=0 means all of a node's memory, which does not
    matter where Slurm does not account for memory."""
    if count := _of_gpus(pairs, "MemPerTres"):
        return {"mem-per-gpu": _mib(count)}
    for key, name in (("MinMemoryCPU", "mem-per-cpu"), ("MinMemoryNode", "mem")):
        if text := value(pairs, key):
            return {name: _mib(text)}
    return {}


def _mib(text: str) -> str:
    match = _SIZE.fullmatch(text)
    if not match:
        raise _DoubtError(f"{text} is not an amount of memory")
    return str(ceil(float(match[1]) * _MIB[match[2]]))


def _of_gpus(pairs: dict[str, str], key: str) -> str:
    """What follows `gres:gpu:` in a value that names only GPUs; "" where there is none."""
    # From 23.11 on TresPerTask shows the CPUs too.
    text = ",".join(part for part in value(pairs, key).split(",") if not part.startswith("cpu"))
    match = _GPUS.fullmatch(text)
    if text and (not match or "," in text):
        raise _DoubtError(f"{key}={text}: not only GPUs are asked for")
    return match[1].replace("=", ":") if match else ""


def _gpus(pairs: dict[str, str]) -> dict[str, str]:
    found = {"gpus": _of_gpus(pairs, "TresPerJob"), "gpus-per-task": _of_gpus(pairs, "TresPerTask")}
    return {name: text for name, text in found.items() if text}


def _nodes(job: SlurmJob, options: dict[str, str], gather: bool, own: NodeRange | None) -> dict[str, str]:
    """--nodes, where it is stated, or known because the job runs.

    Until a job has started Slurm shows what its user asked for, a range or nothing. From then on it shows how
    many nodes the job has or had, so for a total of GPUs that may be spread the range is the one written down.
    """
    count, waits = _count(job.raw), job.state == "PENDING"
    open_total = "ntasks-per-node" not in options and _total(options) > 1
    if waits and not count.stated:
        if gather and open_total and job.restarts and own is not None:
            return _as_written(own, own.low == count.asked)
        if job.restarts and (count.high > 1 or (gather and open_total)):
            raise _DoubtError("how many nodes it may have is not known after a restart")
        if open_total and not gather:
            raise _DoubtError("a number of GPUs on an open number of nodes")
        return {}
    if not waits and count.high > 1 and open_total:
        if not gather or own is None:
            raise _DoubtError("how many nodes its GPUs may be spread over is not known while it runs")
        return _as_written(own, own.low <= count.high <= (own.high or count.high))
    return {"nodes": f"{count.low}-{count.high}"}


def _as_written(own: NodeRange, fits: bool) -> dict[str, str]:
    """The range that is written down on the job; `fits` says whether it agrees with what Slurm shows."""
    if not fits or (own.high is None and own.low > 1):
        raise _DoubtError("the number of nodes written down at its submission is not what Slurm shows now")
    return {} if own.high is None else {"nodes": f"{own.low}-{own.high}"}


def _total(options: dict[str, str]) -> int:
    """GPUs of a request that states their total or the number per task; 0 for any other."""
    text = options.get("gpus") or options.get("gpus-per-task", "")
    last = digits(text.rpartition(":")[2])
    gpus = int(bool(text)) if last is None else last
    return gpus if "gpus" in options else gpus * int(options["ntasks"])


class _Count(NamedTuple):
    """How many nodes a job wants."""

    low: int
    high: int
    stated: bool  # by the user; else Slurm's estimate, or what it has or had
    asked: int = 1  # the least number in the request, as far as Slurm shows it


def _count(pairs: dict[str, str]) -> _Count:
    """Read `NumNodes=2` (open, or running), `NumNodes=1-3`, or `NumNodes=3-3`.

    The last is also printed for a range up to 3: its minimum is in the TRES.
    """
    first, dash, last = pairs.get("NumNodes", "").partition("-")
    low = whole(first, 1)
    high = whole(last, low)
    asked = re.search(r"(?:^|,)node=([0-9]{1,9})", pairs.get("ReqTRES") or pairs.get("TRES", ""))
    least = int(asked[1]) if asked else 1
    return _Count(max(1, min(low, least)) if dash and asked else low, high, bool(dash), least)
