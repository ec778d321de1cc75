# SPDX-License-Identifier: MIT
"""Leases: when they end, what is put back, and that somebody is there to do it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base import state
from slurm_pal.base.errors import BusyError
from slurm_pal.base.files import locked
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.fake import FakeNode, FakeSlurm
from slurm_pal.store import heartbeat
from slurm_pal.submit import lease_file, watcher
from slurm_pal.submit.lease_file import Lease

ONE = Lease(job_id=1, made_s=1000.0, until_s=1100.0, pass_s=3.0, last_s=1660.0, pinned="n1")


@pytest.mark.parametrize(
    ("found", "now_s", "verdict"),
    [
        (("PENDING", "Resources"), 1099.0, "wait"),
        (("PENDING", "Resources"), 1100.0, "clear"),
        (("PENDING", "Priority"), 1101.0, "clear"),
        (("PENDING", "None"), 1102.0, "wait"),  # Slurm has not looked at it yet
        (("PENDING", "None"), 1104.0, "clear"),
        (("PENDING", "JobHeldUser"), 1500.0, "wait"),
        (("PENDING", "Dependency"), 1500.0, "wait"),
        (("PENDING", "BeginTime"), 1500.0, "wait"),
        (("PENDING", "JobHeldAdmin"), 1660.0, "clear"),  # nobody will be there later
        (("PENDING", "ReqNodeNotAvail, UnavailableNodes:n1"), 1004.0, "clear"),
        (("PENDING", "ReqNodeNotAvail, UnavailableNodes:n1"), 1001.0, "wait"),
        (("PENDING", "Resources"), 900.0, "clear"),  # the clock was set back
        (("RUNNING", "None"), 1001.0, "keep"),
        (("COMPLETING", "None"), 1001.0, "keep"),
        (("COMPLETED", "None"), 1001.0, "drop"),
        (None, 1001.0, "drop"),
    ],
)
def test_when_a_lease_ends(found: tuple[str, str] | None, now_s: float, verdict: str) -> None:
    assert watcher.judge(ONE, {1: found} if found else {}, now_s) == verdict


@given(st.sampled_from(["Resources", "Priority", "None", "JobHeldUser", "Dependency", "x"]), st.floats(0, 1e5))
def test_no_lease_outlives_its_end(reason: str, later_s: float) -> None:
    assert watcher.judge(ONE, {1: ("PENDING", reason)}, ONE.last_s + later_s) == "clear"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (("RUNNING", "None"), "wait"),
        (("SUSPENDED", "None"), "wait"),
        (("REQUEUED", "None"), "wait"),
        (("PENDING", "BeginTime"), "clear"),  # requeued: nothing is left to wait for
        (("PENDING", "ReqNodeNotAvail, UnavailableNodes:n1"), "clear"),
        (("PENDING", "None"), "clear"),
        (("PENDING", "job_requeued_in_held_state"), "wait"),  # a move may be under way
        (("PENDING", "JobHeldUser"), "wait"),
        (("COMPLETED", "None"), "drop"),
        (("NODE_FAIL", "None"), "drop"),
        (None, "drop"),
    ],
)
def test_the_list_of_a_job_that_has_run(found: tuple[str, str] | None, verdict: str) -> None:
    late_s = ONE.last_s + 86400.0
    assert watcher.judge(ONE._replace(started=True), {1: found} if found else {}, late_s) == verdict


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.hooks: dict[float, object] = {}

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for due_s, hook in list(self.hooks.items()):
            if self.now_s >= due_s and callable(hook):
                del self.hooks[due_s]
                hook()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return state.folder("leases", "c")


def submit(slurm: FakeSlurm, *words: str) -> int:
    return CliClient(slurm).submit([*words, "--gres=gpu:4"], "#!/bin/sh\n")


def busy_cluster() -> tuple[FakeSlurm, int]:
    """Two nodes, n1 full, and a job pinned to it."""
    slurm = FakeSlurm([FakeNode("n0"), FakeNode("n1")])
    submit(slurm, "-w", "n1")
    return slurm, submit(slurm, "-w", "n1")


def write(folder: str, item: Lease) -> None:
    Path(folder, f"{item.job_id}.json").write_text(json.dumps({"schema": lease_file.SCHEMA, **item._asdict()}))


def watch(folder: str, slurm: FakeSlurm, clock: Clock) -> None:
    watcher.Watcher(folder, CliClient(slurm), clock, clock.sleep).run()


def test_a_job_whose_gpus_were_taken_is_let_go_when_waiting_no_longer_pays(folder: str) -> None:
    slurm, number = busy_cluster()
    clock = Clock()
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert 1100.0 <= clock.now_s < 1103.0
    job = slurm.jobs[number]
    assert job.req == "" and job.state == "RUNNING" and list(job.placed) == ["n0"]
    assert lease_file.read_all(folder) == {}
    asked = [call for call in slurm.calls if call[0] == "squeue"]
    assert len(asked) <= 10  # soon, after 3, 6, 12, 24, 48 s, each half minute, and at the end


def test_an_update_that_slurm_does_not_take_is_given_again_soon(folder: str) -> None:
    """From 24.11 on: Resource temporarily unavailable, for a job that is in a scheduling cycle."""
    slurm = FakeSlurm([FakeNode("n0"), FakeNode("n1", full=True)])
    number, clock, refused = submit(slurm, "-w", "n1"), Clock(), []

    def busy(argv: Sequence[str], stdin: str) -> Completed:
        if argv[1:2] == ["update"] and len(refused) < 3:
            refused.append(clock.now_s)
            return Completed(1, "", "slurm_update error: Resource temporarily unavailable\n")
        return slurm(argv, stdin)

    write(folder, ONE._replace(job_id=number))
    watcher.Watcher(folder, CliClient(busy), clock, clock.sleep).run()
    assert slurm.jobs[number].state == "RUNNING" and clock.now_s < ONE.made_s + ONE.pass_s + 6.0


def test_a_job_that_slurm_does_not_start_on_free_gpus_is_let_go_after_one_pass(folder: str) -> None:
    """Whatever Slurm counts there that we do not: without the list it starts at once on the other node."""
    slurm = FakeSlurm([FakeNode("n0"), FakeNode("n1", full=True)])
    number, clock = submit(slurm, "-w", "n1"), Clock()
    assert slurm.jobs[number].reason == "Resources"
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert clock.now_s < ONE.made_s + ONE.pass_s + 1.0
    assert slurm.jobs[number].state == "RUNNING" and list(slurm.jobs[number].placed) == ["n0"]


def test_the_users_own_lists_are_put_back(folder: str) -> None:
    slurm = FakeSlurm([FakeNode(f"n{i}") for i in range(4)])
    submit(slurm, "-w", "n1")
    number = submit(slurm, "-w", "n1,n2", "-N2", "-x", "n0,n3")
    assert slurm.jobs[number].state == "PENDING"
    write(folder, ONE._replace(job_id=number, pinned="n1,n2", user_req="n1", excluded="n0,n3", user_exc="n3"))
    watch(folder, slurm, Clock())
    assert (slurm.jobs[number].req, slurm.jobs[number].exc) == ("n1", "n3")


def test_a_list_that_the_user_changed_meanwhile_is_his(folder: str) -> None:
    slurm, number = busy_cluster()
    submit(slurm, "-w", "n0")
    CliClient(slurm).update_job(number, ReqNodeList="n0")
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, Clock())
    assert slurm.jobs[number].req == "n0"


def test_a_started_job_is_forgotten_after_the_first_pass(folder: str) -> None:
    slurm, number = busy_cluster()
    clock = Clock()
    clock.hooks[1001.0] = lambda: slurm.finish(1)
    slurm.jobs[number].options["no-requeue"] = ""
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert clock.now_s < 1010.0 and slurm.jobs[number].req == "n1"


def test_a_job_that_slurm_requeues_is_not_pinned_again(folder: str) -> None:
    """Its node has failed: without us Slurm would start it elsewhere."""
    slurm, number = busy_cluster()
    clock = Clock()

    def fail() -> None:
        slurm.nodes["n1"].state = "DOWN"
        CliClient(slurm).requeue(number)
        slurm.jobs[number].begin_s = 1.0

    clock.hooks[1001.0] = lambda: slurm.finish(1)
    clock.hooks[5000.0] = fail
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert slurm.jobs[number].req == "" and list(slurm.jobs[number].placed) == ["n0"]
    assert 5000.0 <= clock.now_s < 5065.0 and lease_file.read_all(folder) == {}
    asked = [call for call in slurm.calls if call[0] == "squeue"]
    assert len(asked) < 4000 / watcher.RUNS_S + 6


def test_while_jobs_run_the_folder_is_read_only_after_a_change(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on a network file system, and jobs run for days."""
    slurm, number = busy_cluster()
    clock = Clock()
    reads: list[float] = []
    real = lease_file.read_all
    monkeypatch.setattr(lease_file, "read_all", lambda path: (reads.append(clock.now_s), real(path))[1])
    later = ONE._replace(job_id=number + 1, made_s=3000.0, until_s=3050.0, last_s=4000.0)
    clock.hooks[1001.0] = lambda: slurm.finish(1)
    clock.hooks[3000.0] = lambda: (submit(slurm, "-w", "n1"), write(folder, later))
    clock.hooks[9000.0] = lambda: slurm.finish(number + 1)
    clock.hooks[9300.0] = lambda: slurm.finish(number)
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert slurm.jobs[number + 1].req == ""  # the new lease was seen and ended in its time
    quiet = [at_s for at_s in reads if 3200.0 < at_s < 8900.0]
    assert len(quiet) < 5700 / watcher.RUNS_S * 2 + 10


def test_the_watcher_of_a_running_job_ends_with_the_job(folder: str) -> None:
    slurm, number = busy_cluster()
    clock = Clock()
    clock.hooks[1001.0] = lambda: slurm.finish(1)
    clock.hooks[9000.0] = lambda: slurm.finish(number)
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert 9000.0 <= clock.now_s < 9065.0 and slurm.jobs[number].req == "n1"


def test_a_cluster_that_is_gone_has_no_running_jobs(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slurm, number = busy_cluster()
    clock = Clock()
    conf = tmp_path / "slurm.conf"
    conf.write_text("")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    clock.hooks[1001.0] = lambda: slurm.finish(1)
    clock.hooks[2000.0] = conf.unlink
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert 2000.0 <= clock.now_s < 2002.0


def test_a_controller_that_restarts_does_not_end_the_watch_of_a_running_job(folder: str) -> None:
    slurm, number = busy_cluster()
    clock = Clock()

    def down(value: bool) -> None:
        slurm.down = value

    clock.hooks[1001.0] = lambda: slurm.finish(1)
    clock.hooks[3000.0] = lambda: down(True)
    clock.hooks[8000.0] = lambda: down(False)  # far later than the lease's own end
    clock.hooks[9000.0] = lambda: CliClient(slurm).requeue(number)
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert slurm.jobs[number].req == "" and clock.now_s >= 9000.0


def test_a_controller_that_is_away_is_waited_for_but_not_for_ever(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, number = busy_cluster()
    slurm.down = True
    clock = Clock()
    monkeypatch.delenv("SLURM_CONF", raising=False)

    def back() -> None:
        slurm.down = False

    clock.hooks[1300.0] = back
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert slurm.jobs[number].req == "" and clock.now_s >= 1300.0
    slurm.down = True
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert clock.now_s <= ONE.last_s + watcher.SLURM_GONE_S + watcher.TIDY_S + 1


def test_a_cluster_that_was_taken_away_is_not_waited_for(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, number = busy_cluster()
    slurm.down = True
    monkeypatch.setenv("SLURM_CONF", os.path.join(folder, "no-such-slurm.conf"))
    clock = Clock()
    write(folder, ONE._replace(job_id=number))
    watch(folder, slurm, clock)
    assert clock.now_s < 1010.0


def test_one_watcher_serves_a_folder_and_sees_leases_that_come_later(folder: str) -> None:
    slurm, number = busy_cluster()
    clock = Clock()
    write(folder, ONE._replace(job_id=number))
    found: list[bool] = []

    def later() -> None:
        found.append(watcher.running(folder))
        other = submit(slurm, "-w", "n1")
        write(folder, ONE._replace(job_id=other, made_s=1050.0, until_s=1200.0))

    clock.hooks[1050.0] = later
    watch(folder, slurm, clock)
    assert found == [True] and 1200.0 <= clock.now_s < 1240.0
    assert not watcher.running(folder)
    with locked(os.path.join(folder, watcher.LOCK), "x"), pytest.raises(BusyError):
        watch(folder, slurm, Clock())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema":"pal.lease/2"}', '{"schema":"pal.lease/1","job_id":1}', "\0\1"]
)
def test_files_that_make_no_sense_are_removed(text: str, folder: str) -> None:
    Path(folder, "7.json").write_text(text)
    Path(folder, "README").write_text("kept")
    watch(folder, FakeSlurm(), Clock())
    assert sorted(os.listdir(folder)) == ["README", watcher.LOCK]


def test_a_lease_whose_job_never_came_is_forgotten(folder: str) -> None:
    path = lease_file.prepare(ONE, "c")
    assert lease_file.read_all(folder) == {}  # no job yet
    os.rename(path, os.path.join(folder, "new-99999999.json"))  # a process that does not exist
    watch(folder, FakeSlurm(), Clock())
    assert "new-99999999.json" not in os.listdir(folder)


def test_palsubs_of_one_pid_prepare_leases_of_their_own(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two containers, or of two hosts that share a home."""
    monkeypatch.setattr(os, "getpid", lambda: 1)  # lives for ever
    first, second = lease_file.prepare(ONE, "c"), lease_file.prepare(ONE, "c")
    lease_file.confirm(first, ONE)
    assert sorted(os.listdir(folder)) == sorted(["1.json", os.path.basename(second)])
    os.utime(second, (-90000, -90000))
    watch(folder, FakeSlurm(), Clock())
    assert not os.path.exists(second)


def test_a_prepared_lease_becomes_the_jobs(folder: str) -> None:
    path = lease_file.confirm(lease_file.prepare(ONE, "c"), ONE)
    assert lease_file.read_all(folder) == {path: ONE}
    assert os.listdir(folder) == ["1.json"]
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("beat", "fresh"),
    [
        ({"schema": "pal.heartbeat/1", "at_s": 950.0, "clears_leases": True}, True),
        ({"schema": "pal.heartbeat/1", "at_s": 1003.0, "clears_leases": True}, True),
        ({"schema": "pal.heartbeat/1", "at_s": 100.0, "clears_leases": True}, False),
        ({"schema": "pal.heartbeat/1", "at_s": 2000.0, "clears_leases": True}, False),  # the clock was set back
        ({"schema": "pal.heartbeat/1", "at_s": 950.0, "clears_leases": False}, False),
        ({"schema": "pal.heartbeat/2", "at_s": 950.0, "clears_leases": True}, False),
        ({"schema": "pal.heartbeat/1", "at_s": "soon", "clears_leases": True}, False),
        (["pal.heartbeat/1"], False),
        (None, False),
    ],
)
def test_a_daemon_counts_only_with_a_fresh_heartbeat(beat: object, fresh: bool, tmp_path: Path) -> None:
    if beat is not None:
        (tmp_path / "snapshot.heartbeat").write_text(json.dumps(beat))
    assert heartbeat.fresh(str(tmp_path / "snapshot"), 1000.0, 180.0) is fresh


def test_private_clusters_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "slurm.conf").write_text("# x\nClusterName = Lab # y\n")
    keys = {state.cluster_key(str(tmp_path / name / "slurm.conf")) for name in ("a", "b")}
    assert len(keys) == 2 and all(key.startswith("lab-") for key in keys)
    assert state.cluster_key(str(tmp_path / "none.conf")) == "cluster"
