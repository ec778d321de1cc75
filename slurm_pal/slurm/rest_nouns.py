# SPDX-License-Identifier: MIT
"""What slurmrestd shows of nodes, partitions, reservations and jobs, into nouns.

The versions of its data differ in form, not in meaning: v0.0.37 and 38 (Slurm 22.05) have plain numbers, texts and
null, later ones {"set", "infinite", "number"}, lists of words, and partitions in groups. The form of each value is
looked at, not the version. Values become Slurm's `Key=value` pairs first, so that there is one reading of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.slurm import gres, parse
from slurm_pal.slurm.states import JOB_ENDED

Row = Mapping[str, Any]

_FLAGS_FIRST = ("COMPLETING", "CONFIGURING")
_JOB_BASE = frozenset(
    {
        "PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED",
        "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
    }
)  # fmt: skip
_PREEMPT = {"DISABLED": "OFF"}
_LIMITS = {
    "DefMemPerCPU": ("default_memory_per_cpu", ("defaults", "partition_memory_per_cpu")),
    "DefMemPerNode": ("default_memory_per_node", ("defaults", "partition_memory_per_node")),
    "MaxMemPerCPU": ("maximum_memory_per_cpu", ("maximums", "partition_memory_per_cpu")),
    "MaxCPUsPerNode": ("maximum_cpus_per_node", ("maximums", "cpus_per_node")),
    "GraceTime": ("preemption_grace_time", ("grace_time",)),
    "PriorityTier": ("priority_tier", ("priority", "tier")),
    "PriorityJobFactor": ("priority_job_factor", ("priority", "job_factor")),
}
"""scontrol's key -> where the number is in v0.0.37 and 38, and in later versions."""
_ADMITS = {
    "AllowGroups": ("allowed_groups", ("groups", "allowed")),
    "AllowAccounts": ("allowed_accounts", ("accounts", "allowed")),
    "AllowQos": ("allowed_qos", ("qos", "allowed")),
    "DenyAccounts": ("denied_accounts", ("accounts", "deny")),
    "DenyQos": ("denied_qos", ("qos", "deny")),
    "AllocNodes": ("allowed_allocation_nodes", ("nodes", "allowed_allocation")),
}
_TEXTS = {
    "JobName": "name", "Account": "account", "QOS": "qos", "Partition": "partition", "NodeList": "nodes",
    "ReqNodeList": "required_nodes", "ExcNodeList": "excluded_nodes", "Features": "features", "Prefer": "prefer",
    "Reservation": "resv_name", "Comment": "comment", "AdminComment": "admin_comment", "Command": "command",
    "WorkDir": "current_working_directory", "StdOut": "standard_output", "StdErr": "standard_error",
    "TresPerNode": "tres_per_node", "TresPerJob": "tres_per_job", "TresPerTask": "tres_per_task",
    "TresPerSocket": "tres_per_socket", "ReqTRES": "tres_req_str", "Dependency": "dependency",
    "CpusPerTres": "cpus_per_tres", "MemPerTres": "memory_per_tres",
}  # fmt: skip
_NUMBERS = {"Restarts": "restart_cnt", "NumCPUs": "cpus", "NumTasks": "tasks", "Priority": "priority", "Nice": "nice"}
_TIMES = {"submit_s": "submit_time", "eligible_s": "eligible_time", "start_s": "start_time", "end_s": "end_time"}


def number(value: object) -> int | None:
    """A whole number in either form; None where it is not set or has no end."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") is True and value.get("infinite") is not True else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < 2**62 else None


def text(value: object) -> str:
    """A text on one line; of a list its words."""
    return ",".join(words(value)) if isinstance(value, list) else parse.plain(value) if isinstance(value, str) else ""


def words(value: object) -> list[str]:
    """Words, from a list of them or from a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return [part for part in parts if isinstance(part, str) and part]


def rows(value: object) -> list[Row]:
    """The objects of a list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _at(row: Row, path: Iterable[str]) -> object:
    found: object = row
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _either(row: Row, flat: str, path: Iterable[str]) -> object:
    return row[flat] if flat in row else _at(row, path)


def node(row: Row) -> Node:
    """One entry of `nodes`."""
    states = [*words(row.get("state")), *words(row.get("state_flags"))]
    pairs = {
        "NodeName": text(row.get("name")),
        "CPUAlloc": number(row.get("alloc_cpus")),
        "CPUEfctv": number(row.get("effective_cpus")),
        "CPUTot": number(row.get("cpus")),
        "CoresPerSocket": number(row.get("cores")),
        "AvailableFeatures": text(row.get("features")),
        "ActiveFeatures": text(row.get("active_features")),
        "Gres": text(row.get("gres")),
        "GresUsed": text(row.get("gres_used")),
        "RealMemory": number(row.get("real_memory")),
        "AllocMem": number(row.get("alloc_memory")),
        "Sockets": number(row.get("sockets")),
        "State": "+".join(states),
        "Weight": number(row.get("weight")),
        "Partitions": text(row.get("partitions")),
    }
    # As scontrol's line, in which no value holds a blank.
    return parse.node(" ".join(f"{key}={''.join(str(value).split())}" for key, value in pairs.items() if value))


def partition(row: Row) -> Partition:
    """One entry of `partitions`. v0.0.42 does not show which one is the default, nor how jobs are preempted."""
    flags = {flag.upper() for flag in words(row.get("flags"))}
    modes = words(row.get("preemption_mode")) or words(row.get("preempt_mode"))
    pairs = {
        "PartitionName": text(row.get("name")),
        "Default": "YES" if "DEFAULT" in flags else "NO",
        "State": text(row.get("state")) or text(_at(row, ("partition", "state"))),
        "Nodes": text(row["nodes"]) if isinstance(row.get("nodes"), str) else text(_at(row, ("nodes", "configured"))),
        "MaxTime": _minutes(_either(row, "max_time_limit", ("maximums", "time"))),
        "DefaultTime": _minutes(_either(row, "default_time_limit", ("defaults", "time"))),
        "JobDefaults": text(_at(row, ("defaults", "job"))),
        "TRESBillingWeights": text(_either(row, "billing_weights", ("tres", "billing_weights"))),
        "Topology": text(row.get("topology")),
        "Exclusive": text(_at(row, ("partition", "exclusive"))).upper(),
        "RootOnly": "YES" if "ROOT_ONLY" in flags else "NO",
        "ReqResv": "YES" if flags & {"REQ_RESV", "REQUIRE_RESERVATION"} else "NO",
        "PreemptMode": ",".join(_PREEMPT.get(mode.upper(), mode.upper()) for mode in modes),
    }
    pairs |= {key: text(_either(row, *place)) for key, place in _ADMITS.items()}
    limits = {key: number(_either(row, *place)) for key, place in _LIMITS.items()}
    return parse.partition_of(pairs | {key: str(limit) for key, limit in limits.items() if limit and limit > 0})


def _minutes(value: object) -> str:
    """A limit in minutes as scontrol may write it; "" for none."""
    limit = number(value)
    return "" if limit is None or limit < 0 else str(limit)


def reservation(row: Row, now_s: float) -> tuple[str, tuple[str, ...]] | None:
    """Name and nodes of one entry of `reservations`; None while it is not active."""
    start_s, end_s = number(row.get("start_time")) or 0, number(row.get("end_time"))
    if start_s > now_s or (end_s is not None and 0 < end_s <= now_s):
        return None
    return text(row.get("name")), expand(text(row.get("node_list")))


def job(row: Row) -> SlurmJob:
    """One entry of `jobs`."""
    pairs = {key: text(row.get(name)) for key, name in _TEXTS.items()}
    pairs |= {key: str(count) for key, name in _NUMBERS.items() if (count := number(row.get(name))) is not None}
    pairs |= _ids(row) | _amounts(row)
    pairs["JobState"] = _state(row.get("job_state"))
    pairs["Reason"] = text(row.get("state_description")) or text(row.get("state_reason"))
    pairs["UserId"] = f"{text(row.get('user_name'))}({number(row.get('user_id'))})"
    pairs["BatchFlag"] = "1" if row.get("batch_flag") is True else "0"
    pairs["Requeue"] = "1" if row.get("requeue") is True else "0"
    pairs["ExitCode"] = _exit_code(row.get("exit_code"))
    limit = number(row.get("time_limit"))
    pairs["TimeLimit"] = "UNLIMITED" if limit is None else str(limit)
    details = words(row.get("gres_detail")) if isinstance(row.get("gres_detail"), list) else []
    found = parse.job_of(pairs, "")
    times: dict[str, Any] = {name: float(number(row.get(key)) or 0) for name, key in _TIMES.items()}
    given = sum(gres.gpu_count(detail) for detail in details)
    if limit is None and found.state not in JOB_ENDED:  # Slurm counts a year, or more
        times["end_s"] = 0.0
    return found._replace(gpus=_gpus(row, details), gpus_given=given, **times)


def _ids(row: Row) -> dict[str, str]:
    array, index = number(row.get("array_job_id")), number(row.get("array_task_id"))
    pairs = {"JobId": str(number(row.get("job_id")) or 0)}
    if array:
        pairs["ArrayJobId"] = str(array)
        pairs["ArrayTaskId"] = str(index) if index is not None else text(row.get("array_task_string"))
    if het := number(row.get("het_job_id")):
        pairs["HetJobId"] = str(het)
    return pairs


def _amounts(row: Row) -> dict[str, str]:
    """Nodes, memory, and whether it has its nodes for itself."""
    low, high = number(row.get("node_count")) or 1, number(row.get("max_nodes"))
    waits = _state(row.get("job_state")) == "PENDING"
    pairs = {"NumNodes": f"{low}-{high}" if waits and high else str(low)}
    for key, name in (("MinMemoryNode", "memory_per_node"), ("MinMemoryCPU", "memory_per_cpu")):
        if mib := number(row.get(name)):
            pairs[key] = f"{mib}M"
    if "none" in words(row.get("shared")):
        pairs["OverSubscribe"] = "NO"
    return pairs


def _state(value: object) -> str:
    """The state that squeue would show: what happens with a job comes before what it is."""
    names = [name.upper() for name in words(value)]
    first = [name for name in _FLAGS_FIRST if name in names] + [name for name in names if name not in _JOB_BASE]
    return (first or names or [""])[0]


def _exit_code(value: object) -> str:
    """`code:signal`, from wait(2)'s number or from an object."""
    if isinstance(value, Mapping):
        return f"{number(value.get('return_code')) or 0}:{number(_at(value, ('signal', 'id'))) or 0}"
    status = number(value) or 0
    return f"{status >> 8}:{status & 127}"


def _gpus(row: Row, details: list[str]) -> dict[str, tuple[int, ...]]:
    """Node -> GPU indexes, while the job holds its nodes; gres_detail has one text for each of them."""
    held = row.get("job_resources")
    if not isinstance(held, Mapping) or not held:
        return {}
    nodes = held.get("nodes")
    try:
        names = expand(text(nodes.get("list")) if isinstance(nodes, Mapping) else text(nodes))
    except UsageError:  # Slurm prints no such list
        return {}
    if len(details) != len(names):
        details = [""] * len(names)
    return {name: gres.gpu_indexes(detail) for name, detail in zip(names, details, strict=True)}


def has_task(row: Row, index: int) -> bool:
    """Whether an array's own record has this task among those that wait."""
    return number(row.get("array_task_id")) is None and parse.has_task(text(row.get("array_task_string")), index)
