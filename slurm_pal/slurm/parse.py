# SPDX-License-Identifier: MIT
"""Slurm's one-line text forms (`scontrol -o`) into nouns.

The text form is the cheapest that every release from 22.05 on prints, and the only one
with GPU indexes. Checked against real outputs of three releases in tests/data.
Values may hold spaces, so a value ends where the next ` Key=` begins; the first
occurrence of a key wins, since all keys that matter come before the user's free
text (Comment, Command, WorkDir); a job's name, which comes before them, is taken
out first.
"""

from __future__ import annotations

import time
from sys import intern

from slurm_pal.base.cluster import Counting, Node, Partition
from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import Asks, SlurmJob
from slurm_pal.base.light import Any, cached, pattern
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.gres import gpu_count, gpu_indexes, gpu_types, gpu_types_asked, other_gres
from slurm_pal.slurm.states import job_state, node_states
from slurm_pal.slurm.told import NOTHING

_KEY = pattern(r"(?:^| )([A-Z][A-Za-z0-9_/:.]*)=")
_SPAN = pattern(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_NAME = pattern(r"(?s)^(JobId=[0-9]+ .*?\bJobName=)(.*?)(?= (?:(?:SLUID|HetJobIdSet)=\S* )*UserId=)")
_ONCE = (" UserId=", " JobState=")
_EACH = frozenset({"Nodes", "CPU_IDs", "Mem", "GRES"})
"""Keys that occur in a record once for each group of nodes."""
LEASE_MARK = "pal:lease="
"""How the mark of a lease begins, in a job's comment or admin comment."""
_SUBMIT_LINE, _AFTER_IT = " SubmitLine=", " WorkDir=/"
"""The user's command line, from 26.05 on: it may hold any words, and comes before keys that matter."""
_ASKED = (
    "NumCPUs", "NumNodes", "MinMemoryNode", "MinMemoryCPU", "Exclusive", "OverSubscribe",
    "TresPerNode", "TresPerJob", "TresPerTask", "TresPerSocket", "ReqTRES",
)  # fmt: skip
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_STAMP_LENGTH = len("2026-11-22T08:30:00")
_KEY_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_/:."


def fields(line: str) -> dict[str, str]:
    """The key=value pairs of one `-o` line, first occurrence of a key first."""
    text = line.rstrip("\n")
    before, submitted, rest = text.partition(_SUBMIT_LINE)
    if submitted and _AFTER_IT in rest:
        text = before + rest[rest.index(_AFTER_IT) :]
    keys: list[str] = []
    values: list[str] = []
    for word in text.split(" "):
        key, sign, said = word.partition("=")
        if sign and key and not key.strip(_KEY_LETTERS) and "A" <= key[0] <= "Z":
            keys.append(intern(key))
            values.append(said)
        elif values:
            values[-1] += f" {word}"
    values = [text.strip() for text in values]
    pairs = dict(zip(keys, values, strict=True))
    if len(pairs) < len(keys):
        pairs |= zip(reversed(keys), reversed(values), strict=True)
    return pairs


def value(pairs: dict[str, str], key: str) -> str:
    """A value, or "" where Slurm prints one of its words for nothing."""
    text = pairs.get(key, "")
    return "" if text in NOTHING else text


def whole(text: str, default: int = 0) -> int:
    """A whole number at the start of a text; `default` where there is none."""
    number = digits(text)
    if number is not None:
        return number
    rest = text.removeprefix("-")
    number = digits(rest[: len(rest) - len(rest.lstrip("0123456789"))])
    return default if number is None else -number if len(rest) < len(text) else number


def seconds(text: str) -> int | None:
    """Slurm's `[days-]hours:minutes:seconds` and its shorter forms; None for unlimited or unset.

    Forms by sbatch(1), --time: "minutes", "minutes:seconds", "hours:minutes:seconds",
    "days-hours", "days-hours:minutes" and "days-hours:minutes:seconds".
    """
    days, dash, rest = text.strip().rpartition("-")
    day, numbers = digits(days), [number for part in rest.split(":") if (number := digits(part)) is not None]
    if len(numbers) != rest.count(":") + 1 or (dash and day is None) or len(numbers) > 3:
        return None
    if dash:
        hours, minutes, secs = (*numbers, 0, 0)[:3]
        return (((day or 0) * 24 + hours) * 60 + minutes) * 60 + secs
    if len(numbers) == 3:
        return (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    return numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)


def unix_s(text: str) -> float:
    """Slurm's local time stamp as Unix seconds; 0.0 for Unknown and the like."""
    numbers = [digits(part) for part in (text[:4], *(text[at : at + 2] for at in (5, 8, 11, 14, 17)))]
    if len(text) < _STAMP_LENGTH or text[4:17:3] != "--T::" or None in numbers:
        return 0.0
    year, month, day, hour, minute, second = (number or 0 for number in numbers)
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return 0.0


def has_task(text: str, index: int) -> bool:
    """Whether an array's task is among those that wait: `3,5-9:2%4`. A list that Slurm cuts short may hold it."""
    for part in text.partition("%")[0].strip("[]").split(","):
        span, _, step = part.partition(":")
        match = _SPAN.fullmatch(span)
        if part.endswith("..."):
            return True
        if match and int(match[1]) <= index <= int(match[2] or match[1]):
            return (index - int(match[1])) % (digits(step) or 1) == 0
    return False


def node(line: str) -> Node:
    """One line of `scontrol show node -d -o`.

    The line is not split as a whole: the submit path reads hundreds of them, and the
    dozen values needed here hold no blanks.
    """
    gres, used = word(line, "Gres"), word(line, "GresUsed")
    return Node(
        name=word(line, "NodeName"),
        states=_states_of(word(line, "State")),
        gpu_types=_types_of(gres),
        gpus_used=_count_of(used),
        cpus=whole(word(line, "CPUEfctv") or word(line, "CPUTot")),
        cpus_used=whole(word(line, "CPUAlloc")),
        memory_mib=whole(word(line, "RealMemory")),
        memory_used_mib=whole(word(line, "AllocMem")),
        features=frozenset(filter(None, word(line, "ActiveFeatures").split(","))),
        partitions=tuple(filter(None, word(line, "Partitions").split(","))),
        weight=whole(word(line, "Weight"), 1),
        available=_features_of(word(line, "AvailableFeatures")),
        threads=_threads_of(word(line, "CPUTot"), word(line, "Sockets"), word(line, "CoresPerSocket")),
        others_free=_others_of(gres, used) if "," in gres else (),
    )


@cached(256)
def _threads_of(cpus: str, sockets: str, cores: str) -> int:
    """CPUs for each core; 1 where the site counts cores only (CPUs= in slurm.conf(5)), whatever hardware has."""
    return max(1, whole(cpus) // max(1, whole(sockets) * whole(cores))) if sockets and cores else 1


@cached(256)
def _others_of(gres: str, used: str) -> tuple[tuple[str, int], ...]:
    taken = other_gres(used)
    shared = {name for name in other_gres(gres) if f"{name}:no_consume" in gres or f"{name}(no_consume)" in gres}
    return tuple((name, n - (0 if name in shared else taken.get(name, 0))) for name, n in other_gres(gres).items())


# Most nodes of a cluster have the same few texts.
_states_of = cached(256)(node_states)
_types_of = cached(256)(gpu_types)
_count_of = cached(256)(gpu_count)


@cached(256)
def _features_of(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def word(line: str, key: str) -> str:
    """The value of the first ` key=` of a line up to the next blank, "" for Slurm's words for nothing."""
    _, found, rest = line.partition(f" {key}=")
    if not found:
        if not line.startswith(f"{key}="):
            return ""
        rest = line[len(key) + 1 :]
    text = rest.partition(" ")[0]
    return "" if text in NOTHING else text.rstrip("\n")


def counting(pairs: dict[str, str]) -> Counting:
    """What Slurm adds to requests, by the pairs of one partition or of its configuration."""
    # What slurm.conf says word by word scontrol shows in one.
    jobs = pairs | dict(part.partition("=")[::2] for part in value(pairs, "JobDefaults").split(","))
    select = pairs.get("SelectTypeParameters", "").upper()
    return Counting(
        memory="MEMORY" in select,
        mem_cpu_mib=whole(pairs.get("DefMemPerCPU", "")),
        mem_node_mib=whole(pairs.get("DefMemPerNode", "")),
        mem_gpu_mib=whole(jobs.get("DefMemPerGPU", "")),
        cpus_gpu=whole(jobs.get("DefCpuPerGPU", "")),
        most_mem_cpu_mib=whole(pairs.get("MaxMemPerCPU", "")),
        most_cpus=whole(pairs.get("MaxCPUsPerNode", "")),
        one_task_per_core="ONE_TASK_PER_CORE" in select,
    )


_ADMITS = (
    "AllowGroups", "AllowAccounts", "AllowQos", "DenyAccounts", "DenyQos", "RootOnly", "ReqResv", "AllocNodes",
)  # fmt: skip
"""What of a partition says who may run there."""


def partition(line: str) -> Partition:
    """One line of `scontrol show partition -o`."""
    return partition_of(fields(line))


def partition_of(pairs: dict[str, str]) -> Partition:
    """A partition from its pairs."""
    return Partition(
        name=pairs["PartitionName"],
        default=pairs.get("Default") == "YES",
        up=pairs.get("State") == "UP",
        nodes=expand(value(pairs, "Nodes")),
        max_time_s=seconds(pairs.get("MaxTime", "")),
        default_time_s=seconds(pairs.get("DefaultTime", "")),
        counting=counting(pairs),
        tier=whole(pairs.get("PriorityTier", ""), 1),
        job_factor=whole(pairs.get("PriorityJobFactor", ""), 1),
        preempt=value(pairs, "PreemptMode"),
        grace_s=whole(pairs.get("GraceTime", "")),
        billing=value(pairs, "TRESBillingWeights"),
        topology=value(pairs, "Topology"),
        own_blocks=pairs.get("ExclusiveTopo") == "YES" or pairs.get("Exclusive") == "TOPO",
        admits=tuple((key, text) for key in _ADMITS if (text := value(pairs, key)) not in ("", "ALL", "NO")),
    )


def reservation(line: str) -> tuple[str, tuple[str, ...]] | None:
    """Name and nodes of one line of `scontrol show reservation -o`; None while it is not active."""
    pairs = fields(line)
    if pairs.get("State") == "INACTIVE":
        return None
    return pairs["ReservationName"], expand(value(pairs, "Nodes"))


def plain(text: str) -> str:
    """A user's text with a blank for each line end."""
    return text.replace("\n", " ")


def unclear(line: str) -> bool:
    """Whether a user's text on a job looks like Slurm's keys, so that the real ones cannot be identified.

    Then nobody knows where the job's name or another text ends.
    """
    if any(line.count(key) > 1 for key in _ONCE):
        return True
    keys = [
        key for key in _KEY.findall(line.partition(" UserId=")[2].partition(" MinCPUsNode=")[0]) if key not in _EACH
    ]
    return len(set(keys)) < len(keys)


def job(line: str) -> SlurmJob:
    """One record of `scontrol show job -d -o` that stands alone, because it was asked for by its id.

    A job whose record is unclear is nobody's, holds no known GPUs, and has no marks.
    """
    named = _NAME.match(line)
    pairs = fields(line[: named.end(1)] + line[named.end() :] if named else line)
    if named:
        pairs["JobName"] = named[2]
    if unclear(line):
        return nobodys(whole(pairs["JobId"]), pairs)
    return job_of(pairs, line.partition(" JobState=")[2].partition(" MinCPUsNode=")[0])


def work_dir(job: SlurmJob) -> str:
    """Where a job started, a text of its user; "" where it is not known, as of jobs that were read in bulk."""
    return value(job.raw, "WorkDir")


def nobodys(job_id: int, pairs: dict[str, str]) -> SlurmJob:
    """A job of which only its existence and its state are believed: nobody steers it."""
    return SlurmJob(
        job_id=job_id, state=job_state(pairs.get("JobState", "")), reason="", user="", name=pairs.get("JobName", ""),
        partition="", gpus={}, nodes=(), req_nodes=(), exc_nodes=(), submit_s=0.0, start_s=0.0, end_s=0.0,
        time_limit_s=None, restarts=0, comment="", gpus_per_node=0,
    )  # fmt: skip


def husk(job: SlurmJob) -> SlurmJob:
    """The job without its user's texts, and so without our marks: only who may start when."""
    return job._replace(name="", comment="", admin_comment="", account="", asks=Asks(), raw={})


def job_of(pairs: dict[str, str], layout: str) -> SlurmJob:
    """A job from its pairs, and from the text that shows which GPUs it has on which nodes ("": none does)."""
    try:
        gpus = {name: gpu_indexes(gres) for nodes, gres in _layout(layout) for name in expand(nodes)}
        nodes, req_nodes, exc_nodes = (expand(value(pairs, key)) for key in ("NodeList", "ReqNodeList", "ExcNodeList"))
    except UsageError:  # Slurm prints no such list
        return nobodys(whole(pairs["JobId"]), pairs)
    return SlurmJob(
        job_id=whole(pairs["JobId"]),
        state=job_state(pairs.get("JobState", "")),
        user=pairs.get("UserId", "").partition("(")[0],
        name=pairs.get("JobName", ""),
        partition=pairs.get("Partition", ""),
        gpus=gpus,
        nodes=nodes,
        req_nodes=req_nodes,
        exc_nodes=exc_nodes,
        start_s=unix_s(pairs.get("StartTime", "")),
        end_s=unix_s(pairs.get("EndTime", "")),
        comment=value(pairs, "Comment"),
        raw=pairs,
        **decisive(pairs),
    )


def decisive(pairs: dict[str, str]) -> dict[str, Any]:
    """Those of a job's pairs that decide, by the names of `SlurmJob`."""
    limit, priority = pairs.get("TimeLimit", ""), digits(pairs.get("Priority", ""))
    return {
        "reason": reason(pairs.get("Reason", "")),
        "submit_s": unix_s(pairs.get("SubmitTime", "")),
        "eligible_s": unix_s(pairs.get("EligibleTime", "")),
        "time_limit_s": seconds(limit),
        "unlimited": limit == "UNLIMITED",
        "restarts": whole(pairs.get("Restarts", "")),
        "gpus_per_node": _count_of(value(pairs, "TresPerNode")),
        "array_job_id": digits(value(pairs, "ArrayJobId")),
        "array_task_id": digits(value(pairs, "ArrayTaskId")),
        "uid": whole(pairs.get("UserId", "").rpartition("(")[2], -1),
        "account": value(pairs, "Account"),
        "qos": value(pairs, "QOS"),
        "admin_comment": value(pairs, "AdminComment"),
        "priority": priority,
        "batch": pairs.get("BatchFlag") == "1",
        "may_requeue": pairs.get("Requeue") == "1",
        "het": bool(value(pairs, "HetJobId")),
        "exit_code": pairs.get("ExitCode", ""),
        "gpus_given": _count_of(value(pairs, "JOB_GRES")),
        "nice": signed(pairs.get("Nice", "")),
        "asks": _asks(*(pairs.get(key, "") for key in _ASKED)),
    }


def signed(text: str) -> int:
    """A whole number, perhaps below 0; 0 for what is none."""
    return -whole(text[1:]) if text.startswith("-") else whole(text)


def reason(text: str) -> str:
    """Why a job waits, in one form: squeue and scontrol print blanks or "_", and squeue sometimes adds brackets."""
    return text.lstrip("(").replace(" ", "_")


@cached(1024)  # most jobs ask for the same few things
def _asks(cpus: str, nodes: str, node_memory: str, cpu_memory: str, exclusive: str, shared: str, *tres: str) -> Asks:
    first, _, last = nodes.partition("-")
    low = whole(first, 1)
    return Asks(
        gpus=any("gpu" in text for text in tres),
        gpus_in_all=gpu_count(tres[1]),
        gpu_types=frozenset(kind for text in tres for kind in gpu_types_asked(text)),
        cpus=whole(cpus),
        nodes_min=low,
        nodes_max=whole(last, low),
        node_memory_mib=_mib(node_memory),
        cpu_memory_mib=_mib(cpu_memory),
        # From 26.05 on OverSubscribe is NO for every job, and another key shows whole nodes.
        whole_nodes=exclusive != "NO" if exclusive else shared == "NO",
    )


def _mib(text: str) -> float:
    unit = text[-1:] if text[-1:] in _MIB else ""
    whole_part, point, rest = text.removesuffix(unit).partition(".")
    if digits(whole_part) is None or len(whole_part) > 15 or (point and (digits(rest) is None or len(rest) > 3)):
        return 0.0
    return float(text.removesuffix(unit)) * _MIB[unit]


def _layout(text: str) -> list[tuple[str, str]]:
    """(nodes, GRES there) of each ` Nodes=n1 CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1)`; a pending job has none."""
    found = []
    before, *groups = text.split(" CPU_IDs=")
    for group in groups:
        nodes = before.rpartition(" ")[2]
        _, memory, gres = (*group.split(" ", 3), "", "")[:3]
        names, given = nodes.removeprefix("Nodes="), gres.removeprefix("GRES=")
        if memory.startswith("Mem=") and names not in ("", nodes) and given != gres:
            found.append((names, given))
        before = group
    return found
