# SPDX-License-Identifier: MIT
"""Noise of the host, and whose process is whose, from a /proc of our own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_pal.profiling.node import host, process_owners
from slurm_pal.profiling.node.host import Host, look, noise
from slurm_pal.profiling.node.process_owners import NodeProcesses

from ...doubles.proc_double import proc

STAT = """cpu  1000 10 200 8000 50 5 15 {steal} 400 0
cpu0 500 5 100 4000 25 2 8 0 200 0
cpu1 500 5 100 4000 25 3 7 0 200 0
intr 12345
"""


def node(root: Path, steal: int = 0, load: str = "1.50") -> str:
    (root / "stat").write_text(STAT.format(steal=steal))
    (root / "loadavg").write_text(f"{load} 1.10 0.90 2/345 6789\n")
    return str(root)


def test_a_look_counts_guest_time_once(tmp_path: Path) -> None:
    assert look(node(tmp_path, steal=20)) == Host(1.5, 2, 9300, 20)


def test_a_node_without_files_is_not_noisy(tmp_path: Path) -> None:
    assert look(str(tmp_path)) == Host()
    assert noise(Host(), Host()) == ""


def test_the_real_node_is_read() -> None:
    seen = look()
    assert seen.cores >= 1 and seen.load is not None and (seen.ticks or 0) > 0


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (Host(0.0, 4, 1000, 0), Host(4.0, 4, 2000, 0), ""),
        (Host(0.0, 4, 1000, 0), Host(4.01, 4, 2000, 0), "load 4.01 on 4 cores"),
        (Host(9.0, 4, 1000, 0), Host(1.0, 4, 2000, 10), ""),
        (Host(1.0, 4, 1000, 5), Host(1.0, 4, 2000, 30), "2.5 % of processor time stolen"),
        (Host(1.0, 4, 1000, 5), Host(1.0, 4, 1000, 5), ""),
        (Host(1.0, 4, None, None), Host(1.0, 4, 1000, 50), ""),
        (Host(), Host(80.0, 0), ""),
    ],
)
def test_noise(before: Host, after: Host, why: str) -> None:
    assert noise(before, after) == why


def test_the_steal_share_is_that_of_the_documents() -> None:
    assert host.STEAL_SHARE == 0.01


def test_in_a_job_only_its_processes_are_ours(tmp_path: Path) -> None:
    who = NodeProcesses(proc(tmp_path, job="12"))
    proc(tmp_path, 20, job="12", session=999)
    proc(tmp_path, 21, job="123")
    proc(tmp_path, 22)
    assert [who.ours(pid) for pid in (20, 21, 22, 23)] == [True, False, False, False]


def test_jobs_of_slurm_26_05_are_told_apart_by_their_sluids(tmp_path: Path) -> None:
    who = NodeProcesses(proc(tmp_path, job="sEKNKTV3WPV500"))
    proc(tmp_path, 20, job="sEKNKTV3WPV500", session=999)
    proc(tmp_path, 21, job="sEKNKTV3WPV501")
    proc(tmp_path, 22, job="12")
    proc(tmp_path, 23, session=500)  # our session, not our job
    assert [who.ours(pid) for pid in (20, 21, 22, 23)] == [True, False, False, False]
    assert [who.foreign(pid) for pid in (20, 21, 22, 23)] == [False, True, True, True]


def test_a_number_of_another_namespace_is_nobody_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the driver lists our own worker, too, by its number on the host."""
    who = NodeProcesses(proc(tmp_path, job="12"))
    proc(tmp_path, 21, job="123")
    hidden = {22}  # by hidepid: it is there, but /proc does not show it
    monkeypatch.setattr(process_owners, "_exists", lambda pid: pid in hidden)
    assert [who.foreign(pid) for pid in (21, 22, 23)] == [True, True, False]


def test_who_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_owners._exists(os.getpid())
    assert not any(process_owners._exists(pid) for pid in (0, -1, 2**30, 2**70))

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert process_owners._exists(1)


def test_outside_a_job_our_session_is_ours(tmp_path: Path) -> None:
    who = NodeProcesses(proc(tmp_path, session=500))
    proc(tmp_path, 20, session=500)
    proc(tmp_path, 21, session=501)
    proc(tmp_path, 22, job="12", session=501)
    assert [who.ours(pid) for pid in (20, 21, 22, 23)] == [True, False, False, False]


def test_what_we_cannot_read_of_ourselves_makes_nobody_ours(tmp_path: Path) -> None:
    assert not NodeProcesses(str(tmp_path)).ours(1)


def test_the_real_proc_knows_us() -> None:
    assert NodeProcesses().ours(os.getpid())


def test_a_process_is_described_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    who = NodeProcesses(proc(tmp_path, 20, comm="bad\x1bname"))
    assert who.describe(20, 3 * 2**20) == f"pid 20 of uid {os.getuid()} (bad?name), 3 MiB"
    assert who.describe(21, None) == "pid 21"


def test_the_mps_server_by_its_name_cut_at_15_characters(tmp_path: Path) -> None:
    who = NodeProcesses(proc(tmp_path, 20, comm="nvidia-cuda-mps"))
    proc(tmp_path, 21, comm="nvidia-smi")
    assert (who.serves_mps(20), who.serves_mps(21), who.serves_mps(22)) == (True, False, False)
