# SPDX-License-Identifier: MIT
"""Which records of `scontrol show job -d -o` are slurmctld's own, and what they say.

Only these records hold GPU indexes, between texts of users, who may write line ends and what looks
like records. squeue's answer (`slurm.told`) says which jobs there are and exactly what their users
wrote; so a record's head can be compared word by word, and what follows, up to the user's next text,
is Slurm's alone. A record that cannot be matched is not believed: such a job is nobody's, and of its
GPUs only the number is known.
"""

from __future__ import annotations

from sys import intern

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.light import Callable, Iterator, Mapping, NamedTuple, Sequence, pattern
from slurm_pal.base.numbers import digits
from slurm_pal.slurm import parse, told
from slurm_pal.slurm.states import JOB_ACTIVE, JOB_UNKNOWN, job_state
from slurm_pal.slurm.told import NOTHING

MOST_TWICE = 200
"""At most this many jobs whose id occurs twice in the answer are asked for singly; others stay unmatched."""

PROMPT = "scontrol: "
"""What an interactive scontrol prints before each command, so before its answer."""
_ID, _NAME, _OWNER = "JobId=", "JobName=", "UserId="
_ID_DIGITS = 10
_OF_ARRAY = ("ArrayJobId=", "ArrayTaskId=", "ArrayTaskThrottle=", "HetJobId=", "HetJobOffset=")
"""Keys that may stand between the id and the name."""
_OF_SET = ("SLUID=", "HetJobIdSet=")
"""The same, between name and owner."""
_BEFORE = ("account", "wckey", "qos", "allocnodes")
"""What users write between a record's head and the end of Slurm's own part."""
_END = " Features="
"""What nodes must offer: here users' texts begin again. slurmctld of 22.05 accepts `fast*1 JobState=RUNNING`."""
_MIDDLE_END = "Licenses"
_TEXTS = {key: field for field, key in told.WANTED.items()} | {"ClusterFeatures": "clusterfeature"}
_MARKED = pattern(r"(?:^|\s)pal:")
_OTHERS = tuple(f" {key}=" for key in ("NtasksPerTRES", "BatchFeatures", "Extra", "SegmentSize"))
"""What squeue cannot show and leaves a job to Slurm; it is read only in the job's own record."""


class _Own(NamedTuple):
    """Slurm's own part of one job's record, and where it is."""

    head: str  # the pairs before the name
    part: str  # from UserId to before the features
    text: str  # of the answer
    end: int  # where the part ends in it

    def middle(self, row: Mapping[str, str]) -> dict[str, str] | None:
        """The pairs between the part and the licences; None where users' texts there differ from squeue's.

        The node features of the batch step, which squeue does not show, are taken for one word:
        a job with them is left to Slurm.
        """
        pairs, at = {}, self.end
        while (key := _key_at(self.text, at)) and key != _MIDDLE_END:
            start = at + len(f" {key}=")
            shown = row.get(_TEXTS.get(key, ""))
            if shown is None:
                shown = _word_at(self.text, start)
            elif shown in NOTHING:
                shown = "(null)"
            at = start + len(shown)
            if not self.text.startswith(shown, start):
                return None
            pairs[key] = parse.plain(shown)
        return pairs if key else None

    def others(self) -> dict[str, str]:
        """The pairs in the rest of the record, up to the next line that looks like another record."""
        next_head = self.text.find("\nJobId=", self.end)
        rest = self.text[self.end : next_head if next_head >= 0 else None]
        return {key.strip(" ="): rest.partition(key)[2].partition(" ")[0] for key in _OTHERS if key in rest}


class Sealed:
    """The jobs in one answer of scontrol, each believed as far as squeue's rows confirm it.

    `ask` gives, for some ids, what scontrol shows of each job when asked for that job alone.
    """

    def __init__(
        self, text: str, rows: Mapping[int, Mapping[str, str]], ask: Callable[[Sequence[int]], Mapping[int, str]]
    ) -> None:
        self._rows = rows
        self._own: dict[int, _Own] = {}
        twice: set[int] = set()
        for job_id, own in self._found(text):
            if job_id in self._own:
                twice.add(job_id)
            self._own[job_id] = own
        for job_id in twice:
            del self._own[job_id]
        for job_id, answer in ask(sorted(twice)[:MOST_TWICE]).items() if twice else ():
            # Here only the job's own user can have written something, after its own record.
            mine = (own for number, own in self._found(answer) if number == job_id)
            self._own.update((job_id, own) for own in list(mine)[:1])

    def _found(self, text: str) -> Iterator[tuple[int, _Own]]:
        """The records whose head is the one that the job must have by squeue."""
        for job_id, start, name_at in _heads(text):
            row = self._rows.get(job_id)
            if row is None or not text.startswith(row["name"], name_at):
                continue
            after = name_at + len(row["name"])
            owner_at = _behind(text, after + 1, _OF_SET, _OWNER) if text.startswith(" ", after) else -1
            end = text.find(_END, owner_at) if owner_at >= 0 else -1
            if end < 0 or not all(_is_tame(row[field]) for field in _BEFORE):
                continue
            yield job_id, _Own(text[start : name_at - len(_NAME)], text[owner_at:end], text, end)

    def job(self, job_id: int) -> SlurmJob:
        """One job. What its user wrote comes from squeue, all else from Slurm's own part of the record."""
        row, own = self._rows[job_id], self._own.get(job_id)
        pairs, middle = (_pairs(own), own.middle(row)) if own else (None, None)
        if own is None or pairs is None or middle is None or not pairs.get("UserId", "").endswith(f"({row['userid']})"):
            return parse.nobodys(job_id, {"JobState": row["state"], "JobName": parse.plain(row["name"])})
        pairs["JobName"] = parse.plain(row["name"])
        pairs |= middle | _texts(row)
        if told.TEXTS.keys() <= row.keys():
            pairs |= own.others()
        # Jobs may start and end between the two answers: the GPUs of such a job are known the next time.
        same = row["nodelist"] == pairs.get("NodeList")
        return parse.job_of(pairs, own.part if same else "")

    def counting(
        self, marked: bool, whole: frozenset[str] = frozenset()
    ) -> tuple[list[SlurmJob], frozenset[tuple[str, str]]]:
        """The jobs that run or are pinned to nodes, with `marked` also those with our marks or a list of
        excluded nodes and all of the partitions `whole`; and, with `marked`, (partitions, reason) of the other
        pending jobs.

        Decided before the records are parsed: a queue may hold thousands of other jobs.
        """
        jobs: list[SlurmJob] = []
        queued: set[tuple[str, str]] = set()
        for job_id, row in self._rows.items():
            state = job_state(row["state"])
            if state != "PENDING":
                if state in JOB_ACTIVE or state == JOB_UNKNOWN:
                    jobs.append(self.job(job_id))
                continue
            own = self._own.get(job_id)
            if own is None:  # what it asks for is unknown, but the job exists
                jobs += [self.job(job_id)] if marked else []
                continue
            region = own.part
            pinned = " ReqNodeList=(null) " not in region
            partitions = parse.word(region, "Partition")
            theirs = bool(whole & {*partitions.split(",")})
            if pinned or (marked and (theirs or " ExcNodeList=(null) " not in region or _words_of_ours(row))):
                jobs.append(self.job(job_id))
            elif marked and parse.word(region, "Priority") != "0":
                queued.add((partitions, parse.reason(parse.word(region, "Reason"))))
        return jobs, frozenset(queued)


def _heads(text: str) -> Iterator[tuple[int, int, int]]:
    """(id, where the record begins, where the name begins) of each line that begins as a record does."""
    at = text.find(_ID)
    while at >= 0:
        number, blank, _ = text[at + len(_ID) : at + len(_ID) + _ID_DIGITS + 1].partition(" ")
        job_id = digits(number)
        if blank and job_id is not None and _begins_line(text, at):
            name_at = _behind(text, at + len(f"{_ID}{number} "), _OF_ARRAY, _NAME)
            if name_at >= 0:
                yield job_id, at, name_at + len(_NAME)
        at = text.find(_ID, at + 1)


def _begins_line(text: str, at: int) -> bool:
    """Whether nothing but prompts stands before this place in its line."""
    while text.startswith(PROMPT, at - len(PROMPT)) and at >= len(PROMPT):
        at -= len(PROMPT)
    return at == 0 or text[at - 1] == "\n"


def _behind(text: str, at: int, keys: tuple[str, ...], last: str) -> int:
    """Where `last` begins behind pairs of these keys, each once or more or not at all; -1 if something else comes."""
    while not text.startswith(last, at):
        blank = text.find(" ", at)
        if blank < 0 or not text.startswith(keys, at) or "\n" in text[at:blank]:
            return -1
        at = blank + 1
    return at


def _key_at(text: str, at: int) -> str:
    """The key of a pair that begins here with a blank, "" where none does."""
    end = text.find("=", at)
    key = text[at + 1 : end]
    plain = end > at + 1 and text[at] == " " and key.isascii() and key.isalpha() and key[0].isupper()
    return key if plain else ""


def _word_at(text: str, at: int) -> str:
    ends = [end for end in (text.find(" ", at), text.find("\n", at)) if end >= 0]
    return text[at : min(ends, default=len(text))]


def _is_tame(text: str) -> bool:
    """Whether a text holds neither a blank nor a sign that could make it look like a pair."""
    return not text or ("=" not in text and text.split() == [text])


def _words_of_ours(row: Mapping[str, str]) -> bool:
    return any("pal:" in row[field] and _MARKED.search(row[field]) for field in ("comment", "admin_comment"))


def _texts(row: Mapping[str, str]) -> dict[str, str]:
    """What the user wrote, by scontrol's keys, where squeue shows something."""
    found = {
        key: parse.plain(text)
        for field, key in told.TEXTS.items()
        if (text := row.get(field, "")) and text not in NOTHING
    }
    if found.get("Switches") == "0":
        del found["Switches"]
    return found


def _pairs(own: _Own) -> dict[str, str] | None:
    """The pairs of Slurm's own part; None where a word is not a pair. Of a repeated key, the last."""
    words = [*own.head.split(), *own.part.split()]
    if not all("=" in word for word in words):
        return None
    return {intern(key): text for key, _, text in [word.partition("=") for word in words]}
