"""Slurm's one-line text forms (`scontrol -o`) into nouns.

The text form is the cheapest that every release from 22.05 on prints, and the one in
which GPU indexes stand. Checked against real outputs of three releases in
tests/data. Values may hold spaces, so a value ends where the next ` Key=` begins;
the first occurrence of a key wins, since all keys that matter stand before the
free text of a user (Comment, Command, WorkDir); a job's name, which stands before
them, is taken out first.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from sys import intern

from slurm_pal.cluster import Node, Partition
from slurm_pal.hostlist import expand
from slurm_pal.jobs import SlurmJob
from slurm_pal.slurm.states import JOB_ACTIVE, job_state, node_states

_KEY = re.compile(r"(?:^| )([A-Z][A-Za-z0-9_/:.]*)=")
_LAYOUT = re.compile(r"(?:^| )Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GRES = re.compile(r"(?:gres[/:])?gpu((?:[:=/][^,():=]+)*?)(?:[:=](\d+))?(?:\(([^()]*)\))?(?:,|$)")
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")
_MARKED = re.compile(r"[ =]pal:")
_NAME = re.compile(r"^(JobId=\d+ .*?\bJobName=)(.*?)(?= (?:(?:SLUID|HetJobIdSet)=\S* )*UserId=)", re.DOTALL)
_ONCE = (" UserId=", " JobState=")
LEASE_MARK = "pal:lease="
"""How the mark of a lease begins, in a job's comment or admin comment."""
_SUBMIT_LINE = re.compile(r" SubmitLine=.*?(?= WorkDir=/)", re.DOTALL)
"""The user's command line, from 26.05 on: any words, and it stands before keys that matter."""
_NULL = frozenset({"", "(null)", "N/A", "None", "Unknown", "n/a"})


def fields(line: str) -> dict[str, str]:
    """The key=value pairs of one `-o` line, first occurrence of a key first."""
    # Thousands of jobs are read in each tick: one split and one dict each, and all share their keys.
    _, *parts = _KEY.split(_SUBMIT_LINE.sub("", line.rstrip("\n"), count=1))
    keys, values = [*map(intern, parts[::2])], [text.strip() for text in parts[1::2]]
    pairs = dict(zip(keys, values, strict=True))
    if len(pairs) < len(keys):
        pairs |= zip(reversed(keys), reversed(values), strict=True)
    return pairs


def value(pairs: dict[str, str], key: str) -> str:
    """A value, or "" where Slurm prints one of its words for nothing."""
    text = pairs.get(key, "")
    return "" if text in _NULL else text


def whole(text: str, default: int = 0) -> int:
    """A whole number at the start of a text; `default` where there is none."""
    match = re.match(r"-?\d+", text)
    return int(match.group()) if match else default


def seconds(text: str) -> int | None:
    """Slurm's `[days-]hours:minutes:seconds` and its shorter forms; None for unlimited or unset.

    Forms by sbatch(1), --time: "minutes", "minutes:seconds", "hours:minutes:seconds",
    "days-hours", "days-hours:minutes" and "days-hours:minutes:seconds".
    """
    days, dash, rest = text.strip().rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or (dash and not days.isdigit()) or len(parts) > 3:
        return None
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, secs = (*numbers, 0, 0)[:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + secs
    if len(numbers) == 3:
        return (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    return numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)


def unix_s(text: str) -> float:
    """Slurm's local time stamp as Unix seconds; 0.0 for Unknown and the like."""
    match = re.match(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)", text)
    if not match:
        return 0.0
    year, month, day, hour, minute, second = (int(part) for part in match.groups())
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))


def gpu_types(gres: str) -> tuple[str, ...]:
    """One type per GPU index of a node's `Gres=`; "" for an untyped GPU.

    Slurm lists types one after the other, and numbers the GPUs in that order.
    """
    types: list[str] = []
    for kind, count, _ in _GRES.findall(gres):
        types += [kind.strip(":=/")] * int(count or 1)
    return tuple(types)


def gpu_count(gres: str) -> int:
    """How many GPUs a GRES text counts (`gpu:v0:1,gpu:v1:2` is 3)."""
    return sum(int(count or 1) for _, count, _ in _GRES.findall(gres)) if gres not in _NULL else 0


def gpu_indexes(gres: str) -> tuple[int, ...]:
    """The indexes in a job's `GRES=gpu:2(IDX:0-1)`; () where Slurm does not print them."""
    indexes: list[int] = []
    for _, _, detail in _GRES.findall(gres):
        if detail.startswith("IDX:"):
            for first, last in _SPAN.findall(detail):
                indexes += range(int(first), int(last or first) + 1)
    return tuple(sorted(indexes))


def node(line: str) -> Node:
    """One line of `scontrol show node -d -o`.

    The line is not split as a whole: on the submit path hundreds of them are read, and
    none of the dozen values needed here holds a blank.
    """
    return Node(
        name=_word(line, "NodeName"),
        states=_states_of(_word(line, "State")),
        gpu_types=_types_of(_word(line, "Gres")),
        gpus_used=_count_of(_word(line, "GresUsed")),
        cpus=whole(_word(line, "CPUEfctv") or _word(line, "CPUTot")),
        cpus_used=whole(_word(line, "CPUAlloc")),
        memory_mib=whole(_word(line, "RealMemory")),
        memory_used_mib=whole(_word(line, "AllocMem")),
        features=frozenset(filter(None, _word(line, "ActiveFeatures").split(","))),
        partitions=tuple(filter(None, _word(line, "Partitions").split(","))),
        weight=whole(_word(line, "Weight"), 1),
        available=_features_of(_word(line, "AvailableFeatures")),
    )


# Most nodes of a cluster bear the same few texts.
_states_of = lru_cache(256)(node_states)
_types_of = lru_cache(256)(gpu_types)
_count_of = lru_cache(256)(gpu_count)


@lru_cache(256)
def _features_of(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _word(line: str, key: str) -> str:
    """The value of the first ` key=` of a line up to the next blank, "" for Slurm's words for nothing."""
    start = line.find(f" {key}=") + 1
    if start == 0 and not line.startswith(f"{key}="):
        return ""
    start += len(key) + 1
    end = line.find(" ", start)
    text = line[start:] if end < 0 else line[start:end]
    return "" if text in _NULL else text.rstrip("\n")


def partition(line: str) -> Partition:
    """One line of `scontrol show partition -o`."""
    pairs = fields(line)
    return Partition(
        name=pairs["PartitionName"],
        default=pairs.get("Default") == "YES",
        up=pairs.get("State") == "UP",
        nodes=expand(value(pairs, "Nodes")),
        max_time_s=seconds(pairs.get("MaxTime", "")),
        default_time_s=seconds(pairs.get("DefaultTime", "")),
    )


def reservation(line: str) -> tuple[str, tuple[str, ...]] | None:
    """Name and nodes of one line of `scontrol show reservation -o`; None while it is not active."""
    pairs = fields(line)
    if pairs.get("State") == "INACTIVE":
        return None
    return pairs["ReservationName"], expand(value(pairs, "Nodes"))


def unclear(line: str) -> bool:
    """Whether a text of the user on a job looks like keys of Slurm's, so that nobody can say which are.

    It is not known then where the job's name ends.
    """
    return any(line.count(key) > 1 for key in _ONCE)


def job(line: str) -> SlurmJob:
    """One line of `scontrol show job -d -o`. A job whose line is unclear is nobody's, and bears no words."""
    doubt = unclear(line)
    named = _NAME.match(line)
    pairs = fields(line[: named.end(1)] + line[named.end() :] if named else line)
    if named:
        pairs["JobName"] = named[2]
    if doubt:
        pairs |= {"UserId": "", "Comment": "", "AdminComment": ""}
    gpus: dict[str, tuple[int, ...]] = {}
    for nodes, gres in () if doubt else _layout(line):
        for name in expand(nodes):
            gpus[name] = gpu_indexes(gres)
    array_id = value(pairs, "ArrayJobId")
    return SlurmJob(
        job_id=whole(pairs["JobId"]),
        state=job_state(pairs.get("JobState", "")),
        reason=pairs.get("Reason", ""),
        user=pairs.get("UserId", "").partition("(")[0],
        name=pairs.get("JobName", ""),
        partition=pairs.get("Partition", ""),
        gpus=gpus,
        nodes=expand(value(pairs, "NodeList")),
        req_nodes=expand(value(pairs, "ReqNodeList")),
        exc_nodes=expand(value(pairs, "ExcNodeList")),
        submit_s=unix_s(pairs.get("SubmitTime", "")),
        start_s=unix_s(pairs.get("StartTime", "")),
        end_s=unix_s(pairs.get("EndTime", "")),
        time_limit_s=seconds(pairs.get("TimeLimit", "")),
        restarts=whole(pairs.get("Restarts", "")),
        comment=value(pairs, "Comment"),
        gpus_per_node=gpu_count(value(pairs, "TresPerNode")),
        array_job_id=int(array_id) if array_id.isdigit() else None,
        fields=pairs,
    )


def _layout(line: str) -> list[tuple[str, str]]:
    """(nodes, GRES there) of a clear job line, which stand behind the job's state and before texts of its user."""
    if " CPU_IDs=" not in line:  # a pending job has none
        return []
    return _LAYOUT.findall(line.partition(" JobState=")[2].partition(" MinCPUsNode=")[0])


def holds_or_claims(line: str, marked: bool = False) -> bool:
    """Whether a job line can matter for which GPUs are free: it runs, or is pinned to nodes.

    With `marked` also a pending job that bears words of ours (`pal:...`) or is kept off nodes.
    Looked at before the line is parsed: a queue may hold thousands of others. A job whose
    line is unclear may hold something.
    """
    if unclear(line):
        return True
    state = line.partition(" JobState=")[2].partition(" ")[0]
    if state == "PENDING":
        pinned = " ReqNodeList=(null) " not in line
        return pinned or (marked and (" ExcNodeList=(null) " not in line or _MARKED.search(line) is not None))
    return state in JOB_ACTIVE


def queued(line: str) -> tuple[str, str] | None:
    """(partitions, reason) of a pending job that is not held, None of any other; the line is not parsed as a whole."""
    text = line.partition(" UserId=")[2]  # behind the job's name
    if " JobState=PENDING " not in text or _word(text, "Priority") == "0":
        return None
    return _word(text, "Partition"), _word(text, "Reason")
