# SPDX-License-Identifier: MIT
"""kill -9 of everything of ours while jobs are pinned, on a real Slurm: the pins end by themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.lease import comment
from slurm_pal.lab.lab import Lab
from slurm_pal.leases import promise
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.store.lua_table import read_header
from slurm_pal.store.snapshot import GpuScore, publish
from slurm_pal.submit import watcher
from slurm_pal.submit.lease_file import Lease, confirm

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm

PATIENCE_S = 60.0
RESTART_S = 1.0  # RestartSec of the units
FILTER_LOOKS_S = 1.1  # the filter looks for a new table once a second
REBALANCE = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()"]
GUARD, DAEMON = [*REBALANCE, "--guard"], [*REBALANCE, "--daemon", "--act", "--every", "1"]
SLOWDOWNS = {"n0": 1.02, "n1": 0.9, "n2": 1.0, "n3": 1.6}
MARK = comment(600, "", "", "nodelist", "n1")
CLASS_A = "--export=ALL,SLURM_PAL_CLASS=A"
BATCH = ("-o", "/dev/null", "-t", "2-0")


class Unit:
    """One of our units, as systemd has it: Restart=always after RestartSec, until `stop`; `again` false: never."""

    def __init__(self, argv: list[str], env: dict[str, str], said: Path, *, again: bool = True) -> None:
        self._argv, self._env, self._said, self._again = argv, env, said, again
        self._over = threading.Event()
        self.process = self._start()
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._said, "ab") as said:
            return subprocess.Popen(self._argv, env=self._env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def _keep(self) -> None:
        while not self._over.is_set():
            self.process.wait()
            if not self._again or self._over.wait(RESTART_S):
                return
            self.process = self._start()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        self._over.set()
        self.process.kill()
        self._thread.join()
        self.process.kill()
        self.process.wait()


class Site:
    """A lab with the filter, scores that make n1 the best node, and our units."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home, self.said = home, home / "said"
        (home / "state").mkdir()
        self.env = lab.environ() | {
            "SLURM_PAL_PATHS_STATE_DIR": str(home / "state"),
            "SLURM_PAL_PATHS_SNAPSHOT": str(home / "state" / "snapshot"),
            "SLURM_PAL_PATHS_TABLE": lab.directory.table,
            "SLURM_PAL_PATHS_GPUS": str(home / "gpus.txt"),
            "XDG_STATE_HOME": str(home / "xdg"),
        }
        self.table, self.snapshot = lab.directory.table, str(home / "state" / "snapshot")
        self.client = CliClient(subprocess_runner(30.0, self.env))
        gpus = [
            GpuScore(node, k, f"{node}-{k}", "m", {"A": a, "B": a, "C": 1.0}, {"A": "v0"}, time.time(), 1.0, ())
            for node, a in SLOWDOWNS.items()
            for k in range(4)
        ]
        publish(self.snapshot, gpus, cluster="palab", epoch=1, now_s=time.time())
        self.units: list[Unit] = []

    def unit(self, argv: list[str], *, again: bool = True) -> Unit:
        self.units.append(Unit(argv, self.env, self.said, again=again))
        return self.units[-1]

    def text(self) -> str:
        return self.said.read_text() if self.said.exists() else ""

    def wait(self, wanted: object) -> None:
        assert callable(wanted)
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < deadline_s, self.text()
            time.sleep(0.05)

    def clears(self) -> str:
        return read_header(self.table).clears if os.path.exists(self.table) else ""

    def table_written(self) -> None:
        """A new table of a publisher that promises is there."""
        before = read_header(self.table).epoch if os.path.exists(self.table) else 0
        self.wait(lambda: os.path.exists(self.table) and read_header(self.table).epoch > before and self.clears())

    def filter_sees_now(self) -> None:
        """The filter decides by what is so now: of two new tables the second was begun after the first."""
        self.table_written()
        self.table_written()
        time.sleep(FILTER_LOOKS_S)

    def submit(self, *words: str) -> int:
        return self.client.submit([*BATCH, *words], "#!/bin/sh\nsleep 300\n")

    def filled(self, node: str, gpus: int = 4) -> None:
        number = self.submit("-w", node, f"--gres=gpu:{gpus}")
        queue_of.until(self.client, number, lambda job: job.state == "RUNNING")

    def job(self, number: int) -> SlurmJob:
        found = self.client.job(number)
        assert found is not None
        return found

    def lists(self, numbers: list[int]) -> dict[int, tuple[tuple[str, ...], tuple[str, ...]]]:
        """The lists, named and kept off, of those of these jobs that wait with one."""
        jobs = self.client.jobs_of(numbers)
        waiting = {n: job for n, job in jobs.items() if job.state == "PENDING"}
        return {n: (job.req_nodes, job.exc_nodes) for n, job in waiting.items() if job.req_nodes or job.exc_nodes}

    def freed_s(self, numbers: list[int], kill: Callable[[], None]) -> float:
        """Seconds from `kill` until each of these jobs has been without the list that it had then.

        A daemon that was started anew ends a list and may at once set its own, which can be the same: it says so.
        """
        stands, heard = self.lists(numbers), len(self.text())
        since = time.monotonic()
        kill()

        def none_stands() -> bool:
            text, now = self.text()[heard:], self.lists(numbers)
            for number in [n for n, lists in stands.items() if now.get(n) != lists or f" job_id={n} " in text]:
                del stands[number]
            return not stands

        self.wait(none_stands)
        return time.monotonic() - since


@pytest.fixture(scope="module")
def started() -> Iterator[Lab]:
    skip_without_slurm()
    with short_directory() as path, Lab.up(path, nodes=4, gpus=4, submit_filter=True) as lab:
        yield lab


@pytest.fixture
def site(started: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in started.variables().items():
        monkeypatch.setenv(name, value)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(started.directory.table)
    made = Site(started, tmp_path)
    yield made
    for unit in made.units:
        unit.stop()
    queue_of.emptied(made.client)


@pytest.mark.parametrize(
    ("killed", "restarted"),
    [
        (("daemon",), ("guard",)),  # the guard lives, and nobody starts the daemon again
        (("daemon",), ("guard", "daemon")),
        (("guard", "daemon"), ("guard",)),
        (("guard", "daemon"), ("guard", "daemon")),
        (("daemon",), ("daemon",)),  # a site without a guard
    ],
)
def test_after_a_kill_the_last_pinned_job_is_soon_free(
    site: Site, killed: tuple[str, ...], restarted: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists of the filter, of palsub and of the tick, on jobs that cannot start there, with nodes idle elsewhere."""
    units = {"guard": site.unit(GUARD, again="guard" in restarted)} if "guard" in (*killed, *restarted) else {}
    units["daemon"] = site.unit(DAEMON, again="daemon" in restarted)
    site.wait(site.clears)
    for name, gpus in (("n0", 1), ("n1", 1), ("n2", 4), ("n3", 4)):
        site.filled(name, gpus)
    site.filter_sees_now()  # and names no node for jobs that want four GPUs of one
    ticks = [site.submit("--gres=gpu:4", "--comment=pal:job=A") for _ in range(3)]
    site.wait(lambda: site.lists(ticks) == dict.fromkeys(ticks, ((), ("n3",))))  # kept off the slow n3
    site.filter_sees_now()  # that n0 and n1 have free GPUs; so it names n1, which is full by then
    units["daemon"].process.send_signal(signal.SIGSTOP)  # no tick changes the lists before they are counted
    site.filled("n1", 3)
    filtered = [site.submit("--gres=gpu:1", CLASS_A) for _ in range(3)]
    marked = [site.submit("-w", "n1", "--gres=gpu:1", f"--comment={MARK}") for _ in range(3)]
    kinds = {"filter": filtered, "palsub": marked, "tick": ticks}
    named = {kind: len(site.lists(numbers)) for kind, numbers in kinds.items()}

    def kill() -> None:
        for name in killed:
            units[name].kill()

    took_s = site.freed_s([*filtered, *marked, *ticks], kill)
    site.wait(lambda: sum(site.job(n).nodes == ("n0",) for n in (*filtered, *marked)) == 3)  # all that n0 has free
    with capsys.disabled():
        how = f"killed {'+'.join(killed)}, started again {'+'.join(restarted)}"
        print(f" {how}: {sum(named.values())} pinned jobs, the last one free after {took_s:.1f} s")
    assert named == {"filter": 3, "palsub": 3, "tick": 3}
    if "daemon" not in restarted:
        site.wait(lambda: not promise.made(site.table))
        assert not site.clears() and not os.path.exists(site.snapshot + ".heartbeat")


def test_a_watcher_that_is_killed_has_an_heir(site: Site, tmp_path: Path) -> None:
    site.filled("n1")
    folder = tmp_path / "leases"
    folder.mkdir()
    lock = folder / watcher.LOCK
    pinned = site.submit("-w", "n1", "--gres=gpu:1")
    now_s = time.time()
    made = Lease(pinned, now_s, now_s + 6.0, 0.1, now_s + 60.0, pinned="n1")
    confirm(str(folder / "new-0.json"), made)
    watcher.start(str(folder))
    before: dict[int, bool] = {}

    def one_with_an_heir() -> bool:  # a child that was just made bears the name of its parent for a moment
        nonlocal before
        before = watchers(folder)
        return len(before) == 2 and len(first_of(before, lock)) == 1

    for _ in range(2):  # the heir is killed as well, and has one of its own
        site.wait(one_with_an_heir)
        (first,) = first_of(before, lock)
        os.kill(first, signal.SIGKILL)
        site.wait(lambda: len(watchers(folder).keys() - before.keys()) == 1)
    site.wait(lambda: not site.lists([pinned]))
    site.wait(lambda: not watchers(folder))


def first_of(watching: dict[int, bool], lock: Path) -> list[int]:
    """Which of them watches; the other is its heir."""
    return [pid for pid, heir in watching.items() if not heir or f"pid {pid}\n" == lock.read_text()]


def watchers(folder: Path) -> dict[int, bool]:
    """Processes that watch a folder of leases -> whether they began as heirs."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_text().split("\0")
            if str(folder) in words and "slurm_pal.submit.watcher" in words:
                found[int(name)] = watcher.HEIR in words
    return found


HOSTILE = ("x ArrayJobId=²", "x MinMemoryCPU=.", "pal:job=A;from= pal:it=²;of=9 pal:lease=²;req=@x;exc=n[0-8000000]")


def test_what_users_write_does_not_end_the_daemon(site: Site) -> None:
    daemon = site.unit(DAEMON, again=False)
    site.wait(site.clears)
    for text in HOSTILE:
        for words in (("-H",), ("--gres=gpu:1",)):
            site.submit(*words, f"--comment={text}")
    for _ in range(2):
        site.table_written()
    assert daemon.process.poll() is None, site.text()
    mine = site.submit("--gres=gpu:1", CLASS_A)
    queue_of.until(site.client, mine, lambda job: job.state == "RUNNING")
    assert "Traceback" not in site.text()
