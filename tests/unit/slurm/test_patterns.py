# SPDX-License-Identifier: MIT
"""Texts that palsub reads without `re` are read as these patterns would read them, whatever users write."""

from __future__ import annotations

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base import hostlist
from slurm_pal.base.errors import UsageError
from slurm_pal.slurm import cli, gres, parse, sealed
from slurm_pal.slurm.question import Completed
from slurm_pal.submit import movable, run_sbatch

from ...doubles.trials import trials


def texts(*pieces: str, most: int = 12) -> st.SearchStrategy[str]:
    """Texts of such pieces."""
    return st.lists(st.sampled_from(pieces), max_size=most).map("".join)


ABOUT_GRES = texts(
    "gpu", "gpu:", ":", "=", "/", ",", "(", ")", "a100", "4", "1234567890", "S:0-1", "IDX:", "0-3", "IDX:0-1,3",
    "gres:", "gres/gpu=2", "(null)", "\n", " ", "x", "-", ".", "nvme:2(S:0)", "16G", "no_consume", "é", "_gpu:",
    "gpu:a", "²",
)  # fmt: skip
TYPE = re.compile(r"\bgpu[:/=]([A-Za-z][\w.-]*)")


@given(ABOUT_GRES)
@trials(1000)
def test_gpus(text: str) -> None:
    found = gres.GPUS.findall(text)
    assert gres._gpus(text) == found
    assert gres.gpu_types_asked(text) == frozenset(TYPE.findall(text))
    spans = [
        [(int(low), int(high or low)) for low, high in gres.SPAN.findall(detail)]
        for _, _, detail in found
        if detail.startswith("IDX:")
    ]
    assert [gres._spans(detail[4:]) for _, _, detail in found if detail.startswith("IDX:")] == spans


@given(ABOUT_GRES)
@trials(400)
def test_what_stands_in_brackets(text: str) -> None:
    assert gres._without_brackets(text) == re.sub(r"\([^()]*\)", "", text)


LIST_WORD = re.compile(r"((?:[A-Za-z0-9_.+/-]++|\[[0-9,-]++\])++)(?:,|$)")


@given(texts("n", "[", "]", ",", "-", "1", "3", "07", "[1-3]", "[001-010]", "a.b", "/", "+", "_", " ", "\n", "é", "²"))
@trials(1000)
def test_host_lists(text: str) -> None:
    text, position = text.strip(), 0
    readable = text != "(null)"
    while readable and position < len(text):
        match = LIST_WORD.match(text, position)
        readable, position = match is not None, match.end() if match else 0
    try:
        names = hostlist.expand(text)
    except UsageError as error:
        assert not readable or "is not a range" in str(error) or "stands for more" in str(error)
    else:
        assert readable and (bool(names) == bool(text))


KEY = re.compile(r"(?:^| )([A-Z][A-Za-z0-9_/:.]*)=")
SUBMIT_LINE = re.compile(r"(?s) SubmitLine=.*?(?= WorkDir=/)")
LAYOUT = re.compile(r"(?:^| )Nodes=([^ ]+) CPU_IDs=[^ ]* Mem=[^ ]* GRES=([^ ]*)")


RECORDS = texts(
    "PartitionName=", "a", " ", "  ", " State=UP", "=", "Key=va=l", " key=x", " A/b:c.d=", " SubmitLine=x WorkDir=y",
    "\n", " WorkDir=/home", "\t", " 9K=", " É=", " Name=two words", " CPU_IDs=2", " Mem=", " GRES=", " Nodes=",
    "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:1(IDX:0)", " Nodes=n2 CPU_IDs= Mem= GRES=",
    " Nodes= CPU_IDs=1 Mem=0 GRES=x",
)  # fmt: skip


@given(RECORDS)
@trials(1000)
def test_records(text: str) -> None:
    _, *parts = KEY.split(SUBMIT_LINE.sub("", text.rstrip("\n"), count=1))
    pairs: dict[str, str] = {}
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        pairs.setdefault(key, value.strip())
    assert parse.fields(text) == pairs
    assert parse._layout(text) == LAYOUT.findall(text)


STAMP = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})")
WHOLE = re.compile(r"-?[0-9]{1,18}(?![0-9])")
MEMORY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)([KMGTP]?)")


@given(texts("2026-11-22T08:30:00", "2026", "-", "T", ":", "08", "é", "²", " ", "1.5", "123", "G", "K", ".", "9" * 16))
@trials(1000)
def test_numbers_and_times(text: str) -> None:
    match = WHOLE.match(text)
    assert parse.whole(text, -7) == (int(match.group()) if match else -7)
    match = MEMORY.fullmatch(text)
    assert parse._mib(text) == (float(match[1]) * parse._MIB[match[2]] if match else 0.0)
    match = STAMP.match(text)
    try:
        parts = [int(part) for part in match.groups()] if match else []
        at_s = time.mktime((*parts, 0, 0, -1)) if match else 0.0  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        at_s = 0.0
    assert parse.unix_s(text) == at_s


HEAD = re.compile(
    r"(?m)^(?:scontrol: )*JobId=([0-9]{1,10}) "
    r"((?:(?:Array(?:JobId|TaskId|TaskThrottle)|HetJob(?:Id|Offset))=[^ \n]* )*)JobName="
)
OWNER = re.compile(r" (?:(?:SLUID|HetJobIdSet)=[^ \n]* )*(?=UserId=)")
PAIR = re.compile(r" ([A-Z][A-Za-z]*)=")


JOBS = texts(
    "JobId=1 ", "JobId=2 JobName=a", "JobId=", "scontrol: ", "\n", "JobName=a", "JobName=", " UserId=u", " ", "b", "=",
    "ArrayJobId=5 ", "ArrayTaskId=3 ", "HetJobId=1 ", " SLUID=s", "HetJobIdSet=1-2 ", "12345678901", "²", "\t",
    "\nscontrol: scontrol: JobId=3 ", " Key=x", " key=x", " É=", "ArrayTaskId=3\n ", " SLUID=s\nb UserId=u",
)  # fmt: skip


@given(JOBS)
@trials(2000)
def test_heads_of_jobs(text: str) -> None:
    found = [(int(head[1]), f"JobId={head[1]} {head[2]}", head.end()) for head in HEAD.finditer(text)]
    assert [(job, text[start : name - len("JobName=")], name) for job, start, name in sealed._heads(text)] == found
    for at in (at for at, letter in enumerate(text) if letter == " "):
        behind, pair = OWNER.match(text, at), PAIR.match(text, at)
        owner_at = sealed._behind(text, at + 1, ("SLUID=", "HetJobIdSet="), "UserId=")
        assert owner_at == (behind.end() if behind else -1)
        assert sealed._key_at(text, at) == (pair[1] if pair else "")
    assert sealed._is_tame(text) == bool(re.fullmatch(r"[^\s=]*", text))


@given(texts("scontrol: ", "\n", "a", "~WORDx\n", "\nscontrol: ~WORDx\n", "hostnames ~WORDx\n", "~WORDx"))
@trials(400)
def test_parts_of_an_answer(text: str) -> None:
    assert cli._parted("~WORDx", Completed(0, text, "")) == re.split(r"(?m)^(?:scontrol: )*~WORDx\n", text)


SUBMITTED = re.compile(rb"(?m)^Submitted batch job (\d+)(?: on cluster \S+)?\r?$")
PARSABLE = re.compile(rb"(?m)^(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?\r?$")


@given(texts("Submitted batch job ", "12", " on cluster ", "c", "\r", ";", "x", " ", "\t", most=7))
@trials(1000)
def test_what_sbatch_prints(text: str) -> None:
    line = text.encode()
    for parsable, pattern in ((False, SUBMITTED), (True, PARSABLE)):
        match = pattern.search(line)
        assert run_sbatch._job_id(line, parsable) == (int(match[1]) if match else None)


@given(texts("%", "%%", "j", "J", "A", "a", "3", "x", "%j", "%4j", "%x", "-", most=7))
@trials(400)
def test_names_of_output_files(name: str) -> None:
    own = re.search(r"(?<!%)(?:%%)*%[0-9]*[jJA]", name)
    assert movable._shared(name) == (bool(name) and not own)
