# SPDX-License-Identifier: MIT
"""The line for people in the admin comments of jobs that have started."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide import gpu_note
from slurm_pal.decide.lease_marks import mark_in
from slurm_pal.publisher import job_notes
from slurm_pal.publisher.job_notes import JobNotes, text_of
from slurm_pal.report import filter_mark
from slurm_pal.slurm import parse
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore, Snapshot

MARK = "pal:lease=60;req=;exc=;class=B;from=--pal;act=nodelist;set=n1;why=best;slow=1.020;alone=1.310;epoch=1"
LINE = "slurm-pal: ran on 2 GPUs, the slowest at 1.02 of a median GPU's time; Slurm alone would have given 1.31"


@pytest.fixture
def scores(tmp_path: Path) -> Snapshot:
    gpus = [
        GpuScore("n1", k, f"u{k}", "m", {"A": 1.5, "B": b}, {}, time.time(), 1.0, flags)
        for k, (b, flags) in enumerate([(1.0, ()), (1.02, ()), (1.0, ("ecc",))])
    ]  # fmt: skip
    snapshot.publish(str(tmp_path / "s"), gpus, cluster="c", epoch=1, now_s=time.time())
    return snapshot.read(str(tmp_path / "s"))


def job(number: int = 7, indexes: tuple[int, ...] = (0, 1), admin_comment: str = MARK, restarts: int = 0) -> SlurmJob:
    made = parse.nobodys(number, {"JobState": "RUNNING"})
    return made._replace(gpus={"n1": indexes}, admin_comment=admin_comment, restarts=restarts)


class Client:
    def __init__(self, trouble: str = "") -> None:
        self.written: dict[int, str] = {}
        self.trouble = trouble

    def update_job(self, job_id: int, **fields: str) -> None:
        if self.trouble:
            raise SlurmError(self.trouble)
        self.written[job_id] = fields["AdminComment"]


def test_the_line_stands_after_the_marks_which_are_read_as_before(scores: Snapshot) -> None:
    client = Client()
    notes = JobNotes(client)  # type: ignore[arg-type]  # what it needs of a client
    notes.add([job()])
    assert notes.write([job()], scores) == [] and client.written == {7: f"{MARK} {LINE}"}
    again = job(admin_comment=client.written[7])
    assert notes.write([again], scores) == [] and len(client.written) == 1
    assert mark_in(again.admin_comment) == mark_in(MARK)
    assert filter_mark.decision(again) == filter_mark.decision(job())


def test_a_later_run_replaces_the_line_and_keeps_what_others_wrote(scores: Snapshot) -> None:
    text = text_of(job(restarts=1), scores)
    assert text == "slurm-pal: ran on 2 GPUs, the slowest at 1.02 of a median GPU's time"
    assert gpu_note.put(f"site x {LINE}", text) == f"site x {text}"
    assert gpu_note.put(f"{LINE} pal:ev=1;what=moved", text) == f"pal:ev=1;what=moved {text}"
    assert gpu_note.put("a\nb", text) is None and gpu_note.put("x" * 980, text) is None
    assert gpu_note.put("", text) == text
    for one in (gpu_note.line(1, 1.0, None), gpu_note.line(1, 1.0, 1.0, same=True), gpu_note.line(3, 0.9, 1.2)):
        assert gpu_note.put(gpu_note.put("mine", one) or "", text) == f"mine {text}"


@pytest.mark.parametrize("indexes", [(2,), (9,), ()])
def test_nothing_is_said_of_gpus_that_fail_or_were_never_measured(scores: Snapshot, indexes: tuple[int, ...]) -> None:
    assert text_of(job(indexes=indexes), scores) == ""


def test_orders_to_slurm_are_few_and_a_refusal_ends_none(scores: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_notes, "MOST", 2)
    client, jobs = Client(), [job(number) for number in range(1, 6)]
    notes = JobNotes(client)  # type: ignore[arg-type]  # what it needs of a client
    notes.add(jobs)
    for expected in (2, 4):
        notes.write(jobs, scores)
        assert len(client.written) == expected
    notes.write(jobs[:4], scores)  # the fifth has ended
    assert len(client.written) == 4
    client.trouble = "busy"
    notes.add([job(9)])
    assert notes.write([job(9)], scores) == ["the admin comment of job 9 stays without a line about its GPUs: busy"]
