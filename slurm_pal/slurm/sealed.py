"""Which records of `scontrol show job -d -o` are slurmctld's own, and what they say.

GPU indexes stand nowhere else, and there between texts of users, who may write line ends and what
looks like records into them. squeue's answer (`slurm.told`) says which jobs there are and what exactly
their users wrote; so a record's head can be compared word by word, and what follows up to the user's
next text is Slurm's alone. What cannot be matched is not believed: such a job is nobody's, and the GPUs
it has are known by number only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from slurm_pal.jobs import SlurmJob
from slurm_pal.slurm import parse, told
from slurm_pal.slurm.parse import value
from slurm_pal.slurm.states import JOB_ACTIVE, JOB_UNKNOWN, job_state

MOST_TWICE = 200
"""So many jobs whose id stands in the answer more than once are asked for by themselves; others stay unmatched."""

_HEAD = re.compile(r"^(?:scontrol: )*JobId=", re.MULTILINE)
_FIRST = re.compile(r"([0-9]{1,10}) (?:(?:Array(?:JobId|TaskId|TaskThrottle)|HetJob(?:Id|Offset))=[^ \n]* )*JobName=")
_NEXT = re.compile(r" (?:(?:SLUID|HetJobIdSet)=[^ \n]* )*(?=UserId=)")
_TAME = re.compile(r"[^\s=]*")
_BEFORE = ("account", "wckey", "qos", "allocnodes")
"""What users write between a record's head and the end of Slurm's own part."""
_END = " Licenses="
_MARKED = re.compile(r"(?:^|\s)pal:")
_OTHERS = tuple(f" {key}=" for key in ("NtasksPerTRES", "BatchFeatures", "Extra", "SegmentSize"))
"""What squeue cannot show, and what leaves a job to Slurm; only a job's own record is looked at."""


class Sealed:
    """The jobs in one answer of scontrol, each believed as far as squeue's rows bear it out.

    `ask` gives, for some ids, each job's own record as asked for by itself.
    """

    def __init__(
        self, text: str, rows: Mapping[int, Mapping[str, str]], ask: Callable[[Sequence[int]], dict[int, str]]
    ) -> None:
        self._rows = rows
        self._records: dict[int, str] = {}
        twice: set[int] = set()
        for record in _HEAD.split(text)[1:]:
            match = _FIRST.match(record)
            job_id = int(match[1]) if match else -1
            if job_id in rows:
                if job_id in self._records:
                    twice.add(job_id)
                self._records[job_id] = record
        if twice:
            own = ask(sorted(twice)[:MOST_TWICE])
            for job_id in twice:
                self._records[job_id] = own.get(job_id, "").removeprefix("JobId=")

    def own(self, job_id: int) -> tuple[str, str] | None:
        """(head, Slurm's own part) of a job's record; None where it cannot be told from its user's texts."""
        row, record = self._rows[job_id], self._records.get(job_id, "")
        head = _FIRST.match(record)
        if head is None or not record.startswith(row["name"], head.end()):
            return None
        behind = _NEXT.match(record, head.end() + len(row["name"]))
        end = record.find(_END, behind.end()) if behind else -1
        if behind is None or end < 0 or not all(_TAME.fullmatch(row[field]) for field in _BEFORE):
            return None
        return f"JobId={head.group()}", record[behind.end() : end]

    def job(self, job_id: int) -> SlurmJob:
        """One job. What its user wrote comes from squeue, all else from Slurm's own part of the record."""
        row, own = self._rows[job_id], self.own(job_id)
        pairs = _pairs(*own) if own else None
        if own is None or pairs is None or not pairs["UserId"].endswith(f"({row['userid']})"):
            return parse.nobodys(job_id, {"JobState": row["state"], "JobName": parse.plain(row["name"])})
        pairs["JobName"] = parse.plain(row["name"])
        pairs |= {key: text for field, key in told.TEXTS.items() if (text := _said(row, field))}
        if told.TEXTS.keys() <= row.keys():
            pairs |= self._others(job_id)
        # Jobs may start and end between the two answers: which GPUs such a one has is known the next time.
        same = row["nodelist"] == pairs.get("NodeList")
        return parse.job_of(pairs, own[1] if same else "")

    def _others(self, job_id: int) -> dict[str, str]:
        record = self._records[job_id]
        found = {}
        for key in _OTHERS:
            if key in record:
                found[key.strip(" =")] = record.partition(key)[2].partition(" ")[0]
        return found

    def counting(self, marked: bool) -> tuple[list[SlurmJob], frozenset[tuple[str, str]]]:
        """The jobs that run or are pinned to nodes, with `marked` those that bear words of ours or a list of
        excluded nodes; and (partitions, reason) of the other pending jobs, again with `marked`.

        Looked at before the records are parsed: a queue may hold thousands of others.
        """
        jobs: list[SlurmJob] = []
        queued: set[tuple[str, str]] = set()
        for job_id, row in self._rows.items():
            state = job_state(row["state"])
            if state != "PENDING":
                if state in JOB_ACTIVE or state == JOB_UNKNOWN:
                    jobs.append(self.job(job_id))
                continue
            own = self.own(job_id)
            if own is None:
                continue  # what it asks for is not known
            region = own[1]
            pinned = " ReqNodeList=(null) " not in region
            if pinned or (marked and (" ExcNodeList=(null) " not in region or _words_of_ours(row))):
                jobs.append(self.job(job_id))
            elif marked and parse.word(region, "Priority") != "0":
                queued.add((parse.word(region, "Partition"), parse.word(region, "Reason")))
        return jobs, frozenset(queued)


def _words_of_ours(row: Mapping[str, str]) -> bool:
    return any("pal:" in row[field] and _MARKED.search(row[field]) for field in ("comment", "admin_comment"))


def _said(row: Mapping[str, str], field: str) -> str:
    """A text of squeue's, "" for its words for nothing."""
    text = parse.plain(row.get(field, ""))
    return "" if field == "reqswitch" and text == "0" else value({"": text}, "")


def _pairs(head: str, region: str) -> dict[str, str] | None:
    """The pairs of Slurm's own part, first occurrence of a key first; None where a word is no pair."""
    pairs: dict[str, str] = {}
    for word in (*head.removesuffix("JobName=").split(" "), *region.split(" ")):
        if word:
            key, sign, text = word.partition("=")
            if not sign:
                return None
            pairs.setdefault(key, text)
    return pairs
