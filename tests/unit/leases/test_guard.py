# SPDX-License-Identifier: MIT
"""The lease guard without Slurm: it wakes when a publisher is gone, however it went, and at no other time."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import BusyError, NotNowError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.tick_lease import LeaseKind, TickLease
from slurm_pal.journal.journal import Move
from slurm_pal.leases import guard, promise
from slurm_pal.leases.pinned import Remembered, due, pinned, take_back
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview
from slurm_pal.store import heartbeat, lua_table
from slurm_pal.store.lua_table import Header

PATIENCE_S = 30.0
PUBLISHER = """
import sys, time
from slurm_pal.leases import promise
table = sys.argv[1]
with promise.publishing(table, 10.0):
    if "promises" in sys.argv:
        promise.make(table)
    print("holds", flush=True)
    sys.stdin.read()
    if "keeps" in sys.argv:
        promise.kept(table)
"""


class Place:
    """A table, a heartbeat, and a guard in a process of its own, each pass of which leaves a line in `passes`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.table, self.snapshot = folder, str(folder / "table"), str(folder / "snapshot")
        self.passes, self.slow, self.halted = folder / "passes", folder / "slow", folder / "halted"
        self.passes.touch()

    def publisher(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-P", "-c", PUBLISHER, self.table, *words]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "holds\n"
        header = Header(7, int(time.time()), 30.0, "daemon" if "promises" in words else "")
        lua_table.replace(self.table, lua_table.encode(header, {}), private=True)
        if "promises" in words:
            heartbeat.beat(self.snapshot, time.time(), 3.0)
        return process

    def guard(
        self, codes: str = "0", leave_s: float = PATIENCE_S, held_s: float = PATIENCE_S
    ) -> subprocess.Popen[bytes]:
        """`codes`: what its passes end with, one after the other, the last one again and again."""
        program = (
            "import os, sys, time\nfrom slurm_pal.leases import guard\n"
            "guard.PASSES_S, guard.AGAIN_S, guard.LOOK_S = (0.1,), 0.05, 0.02\n"
            f"guard.LEAVE_S, guard.HELD_S = {leave_s}, {held_s}\n"
            f"path, codes = {str(self.passes)!r}, {codes!r}\n"
            "def once():\n    before = len(open(path).read())\n    open(path, 'a').write('.')\n"
            f"    while os.path.exists({str(self.slow)!r}):\n"
            f"        open({str(self.halted)!r}, 'w').close()\n        time.sleep(0.01)\n"
            "    return int(codes[min(before, len(codes) - 1)])\n"
            f"guard.Guard({self.table!r}, {self.snapshot!r}, once).run()\n"
        )
        return subprocess.Popen([sys.executable, "-P", "-c", program], stderr=subprocess.DEVNULL)

    def n_passes(self) -> int:
        return len(self.passes.read_text())

    @property
    def clears(self) -> str:
        return lua_table.read_header(self.table).clears

    @property
    def heartbeat(self) -> bool:
        return os.path.exists(self.snapshot + ".heartbeat")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextlib.contextmanager
def ending(*processes: subprocess.Popen[bytes] | subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def until(wanted: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("codes", ["0", "1120"])
def test_a_publisher_that_is_killed_has_its_promise_kept(place: Place, codes: str) -> None:
    publisher = place.publisher("promises")
    watching = place.guard(codes)
    with ending(publisher, watching):
        assert place.clears == "daemon" and place.heartbeat and promise.made(place.table)
        publisher.kill()
        until(lambda: not promise.made(place.table))
        assert place.clears == "" and not place.heartbeat
        assert place.n_passes() == max(2, len(codes)), "until one finds nothing, and at least once more"
        again = place.publisher("promises")  # it gets the lock, and is watched over as the one before
        with ending(again):
            before = place.n_passes()
            again.kill()
            until(lambda: not promise.made(place.table))
            assert place.n_passes() > before


def test_one_that_ends_in_order_gives_the_guard_nothing_to_do(place: Place) -> None:
    watching = place.guard()
    for words in (("promises", "keeps"), ()):
        publisher = place.publisher(*words)
        with ending(publisher):
            publisher.communicate("")
        until(lambda: promise.holder(place.table).startswith(promise.GUARD))
    with ending(watching):
        assert place.n_passes() == 0 and watching.poll() is None


def test_a_guard_that_comes_late_finds_the_broken_promise(place: Place) -> None:
    publisher = place.publisher("promises")
    with ending(publisher):
        publisher.kill()
    watching = place.guard()
    with ending(watching):
        until(lambda: not promise.made(place.table))
    assert place.n_passes() == 2


def test_a_new_publisher_need_not_wait_for_a_guard_without_luck(place: Place) -> None:
    publisher = place.publisher("promises")
    watching = place.guard("1")
    with ending(publisher, watching):
        publisher.kill()
        until(lambda: place.n_passes() > 2)
        again = place.publisher("promises")
        with ending(again):
            time.sleep(0.3)
            before = place.n_passes()
            time.sleep(0.3)
            assert place.n_passes() == before and promise.made(place.table) == f"pid {again.pid}"


@pytest.mark.parametrize("passes", [0, 2], ids=["first", "later"])
@pytest.mark.parametrize("held_s", [PATIENCE_S, 0.2], ids=["quick", "slow"])
def test_a_new_publisher_waits_for_the_end_of_a_pass_but_not_for_a_slow_slurm(
    place: Place, passes: int, held_s: float
) -> None:
    """What it sets during the pass would be taken back."""
    publisher = place.publisher("promises")
    if not passes:
        place.slow.touch()
    watching = place.guard("1", held_s=held_s)
    with ending(publisher, watching):
        publisher.kill()
        until(lambda: place.n_passes() > passes)
        place.slow.touch()
        until(lambda: place.halted.exists())
        argv = [sys.executable, "-P", "-c", PUBLISHER, place.table, "promises"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as again, ending(again):
            assert again.stdout is not None
            waits = not select.select([again.stdout], [], [], 1.0 if held_s > 1 else PATIENCE_S)[0]
            assert waits == (held_s > 1) and place.halted.exists()
            place.slow.unlink()
            assert again.stdout.readline() == "holds\n"


def test_a_guard_that_is_stopped_takes_the_lists_back_first(place: Place) -> None:
    """By SIGTERM to it alone (KillMode=mixed): systemd kills what it leaves behind, a child in its pass, too."""
    publisher = place.publisher("promises")
    place.slow.touch()
    watching = place.guard("1")
    with ending(publisher, watching):
        publisher.kill()
        until(lambda: place.n_passes() == 1)
        watching.terminate()
        place.slow.unlink()
        assert watching.wait(PATIENCE_S) == 0 and place.n_passes() == 2
    assert promise.made(place.table), "what may have come since is for the next guard"


def test_a_guard_that_is_stopped_does_not_wait_for_a_slow_slurm(place: Place) -> None:
    publisher = place.publisher("promises")
    place.slow.touch()
    watching = place.guard("1", leave_s=0.2)
    with ending(publisher, watching):
        publisher.kill()
        until(lambda: place.n_passes() == 1)
        watching.terminate()
        try:
            assert watching.wait(PATIENCE_S) == 0 and place.n_passes() == 1
        finally:
            place.slow.unlink()  # its child, which systemd would kill, ends, too
    assert promise.made(place.table), "the next guard goes on"
    unit = Path(__file__).parents[3] / "etc/systemd/pal-lease-guard.service"
    assert f"\nTimeoutStopSec={guard.LEAVE_S + 5:.0f}s\n" in unit.read_text()


def test_a_guard_that_sleeps_is_stopped_at_once(place: Place) -> None:
    publisher, watching = place.publisher("promises"), place.guard()
    with ending(publisher, watching):
        until(lambda: b"flock" in Path(f"/proc/{watching.pid}/wchan").read_bytes() or rss_kib(watching.pid) > 8000)
        watching.terminate()
        assert watching.wait(PATIENCE_S) == -signal.SIGTERM and place.n_passes() == 0


def test_there_is_one_guard_and_one_publisher(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = place.publisher("promises")
    with ending(publisher):
        with pytest.raises(BusyError, match=f"pid {publisher.pid}"), promise.publishing(place.table, 5.0):
            pass
        assert not promise.guarded(place.table) and not promise.stood_by(place.table)
        assert not os.path.exists(promise.guard_path(place.table))  # root's, it would keep SlurmUser's guard out
        with guard.locked(promise.guard_path(place.table), "a lease guard"):
            assert promise.guarded(place.table)


def test_the_guard_is_small(place: Place) -> None:
    publisher, watching = place.publisher("promises"), place.guard()
    with ending(publisher, watching):
        until(lambda: b"flock" in Path(f"/proc/{watching.pid}/wchan").read_bytes() or rss_kib(watching.pid) > 8000)
        time.sleep(0.5)
        assert rss_kib(watching.pid) < 20_000
        modules = "import sys, slurm_pal.leases.guard; print({'click', 'numpy', 'sqlite3'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-P", "-c", modules], capture_output=True, text=True, check=True)
        assert done.stdout == "set()\n"


def rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


# -- which lists are ours ------------------------------------------------------------------------


def job(**more: object) -> SlurmJob:
    first = SlurmJob(7, "PENDING", "Resources", "u", "j", "p,q", {}, (), (), (), 1000.0, 0.0, 0.0, None, 0, "", 1)
    return first._replace(**more)  # type: ignore[arg-type]


def lease(kind: str, ours: str, own: str, until_s: float = 2000.0) -> TickLease:
    return TickLease(7, LeaseKind(kind), ours, own, 1000.0, until_s, 0, "because")


MARKED = "pal:lease=60;req=;exc=;act=nodelist;set=n1"


@pytest.mark.parametrize(
    ("one", "known", "fields"),
    [
        (job(req_nodes=("n1",)), Remembered(), {}),  # its user's
        (job(req_nodes=("n1",), comment=MARKED), Remembered(), {"ReqNodeList": ""}),
        (job(req_nodes=("n1",), comment=MARKED), Remembered(marks=False), {}),
        (job(req_nodes=("n2",), comment=MARKED), Remembered(), {}),  # changed since
        (job(req_nodes=("n1",), comment=MARKED, state="RUNNING"), Remembered(), {}),
        (
            job(req_nodes=("n1",)),
            Remembered({7: (lease(LeaseKind.NODELIST, "n1", "n[1-2]"),)}),
            {"ReqNodeList": "n[1-2]"},
        ),
        (
            job(exc_nodes=("n1", "n2")),
            Remembered({7: (lease(LeaseKind.EXCLUDE, "n[1-2]", "n2"),)}),
            {"ExcNodeList": "n2"},
        ),
        (job(req_nodes=("n3",)), Remembered({7: (lease(LeaseKind.NODELIST, "n1", ""),)}), {}),
        # Killed between journal and update: the job bears the list from before.
        (
            job(req_nodes=("n3",)),
            Remembered({7: (lease(LeaseKind.NODELIST, "n1", ""), lease(LeaseKind.NODELIST, "n3", ""))}),
            {"ReqNodeList": ""},
        ),
        (job(partition="q"), Remembered({7: (lease(LeaseKind.PARTITION, "q", "p,q"),)}), {"Partition": "p,q"}),
        (
            job(partition="q"),
            Remembered({7: (lease(LeaseKind.PARTITION, "q", "down,q"),)}),
            {},
        ),  # Slurm would drop that one
    ],
)
def test_which_lists_of_a_job_are_taken_back(one: SlurmJob, known: Remembered, fields: dict[str, str]) -> None:
    found, trouble = pinned([one], known, {"p", "q"}, 1500.0)
    assert [update.fields for update in found] == ([fields] if fields else []) and trouble == []


def test_the_list_of_a_move_under_way_is_one_of_ours() -> None:
    move = Move(1, 7, "u", 1000.0, 0, "n0:0", ("n4",), "n4:0", "", 1.5, 1.0, 100.0, 5.0, False, "", "targeting", 1001.0)
    moved = job(req_nodes=("n4",), restarts=1)
    found, _ = pinned([moved], Remembered({}, {7: move}), {"p", "q"}, 1002.0)
    assert [update.fields for update in found] == [{"ReqNodeList": ""}]


def test_a_job_that_cannot_be_judged_keeps_no_other_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    good = job(job_id=8, req_nodes=("n1",), comment=MARKED)
    found, (line,) = pinned([job(comment=None), good], Remembered(), {"p"}, 1500.0)
    assert [update.job_id for update in found] == [8] and line.startswith("the lists of job 7 cannot be judged: ")


def test_of_what_one_tick_left_only_what_is_over_is_ended() -> None:
    known = Remembered({7: (lease(LeaseKind.EXCLUDE, "n1", "", 2000.0), lease(LeaseKind.PARTITION, "q", "p,q", 900.0))})
    assert due(known, 1500.0, 3.0).leases == {7: (lease(LeaseKind.PARTITION, "q", "p,q", 900.0),)}
    assert due(known, 2003.0, 3.0).leases == known.leases and due(known, 800.0, 3.0).leases == {}


class Busy(CliClient):
    """A Slurm whose scheduler has a job in hand for the first so many updates, as from 24.11 on."""

    def __init__(self, refuses: int) -> None:
        self.refuses, self.told = refuses, 0
        self.waits = job(req_nodes=("n1",), comment=MARKED)

    def overview(self, reservations: bool = False, marked: bool = False) -> Overview:
        return Overview((), (self.waits,), (), {})

    def jobs_of(self, job_ids: object) -> dict[int, SlurmJob]:
        return {self.waits.job_id: self.waits} if job_ids else {}

    def update_job(self, job_id: int, **fields: str) -> None:
        self.told += 1
        if self.told <= self.refuses:
            raise NotNowError("Resource temporarily unavailable")


@pytest.mark.parametrize(("refuses", "lists", "trouble"), [(0, 1, 0), (3, 1, 0), (9, 0, 1)])
def test_a_list_that_slurm_cannot_change_at_this_moment_is_taken_back_in_the_next(
    refuses: int, lists: int, trouble: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    done = take_back(Busy(refuses), Remembered(), 1500.0)
    assert (len(done.lists), len(done.trouble)) == (lists, trouble)
