# SPDX-License-Identifier: MIT
"""The sampler as a real process: what it sends, and how it ends."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from slurm_pal.profiling.node import sampler
from slurm_pal.profiling.node.devices import DeviceError, SensorSample
from slurm_pal.profiling.node.sampler import Eyes, Sampler

GIVEN_S = 20.0  # for what takes milliseconds on a machine that has time


def counting() -> Eyes:
    numbers: Iterator[int] = iter(range(10**6))
    return Eyes(lambda: SensorSample(time.monotonic(), power_w=float(next(numbers)), reasons=4))


def hanging(after: int = 0) -> Callable[[], Eyes]:
    def open_eyes() -> Eyes:
        left = iter(range(after))

        def look() -> SensorSample:
            if next(left, None) is None:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(3600)
            return SensorSample(time.monotonic(), power_w=1.0)

        return Eyes(look)

    return open_eyes


def until(happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + GIVEN_S
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def collect(watch: Sampler, count: int) -> list[SensorSample]:
    found: list[SensorSample] = []
    assert until(lambda: found.extend(watch.take()) or len(found) >= count)
    return found


def waiting(watch: Sampler) -> int:
    """Bytes in the pipe."""
    found = array.array("i", [0])
    fcntl.ioctl(watch._data, termios.FIONREAD, found)
    return found[0]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_looks_come_in_order_and_are_taken_once() -> None:
    watch = Sampler(counting, hz=200)
    try:
        found = collect(watch, 5)
        assert [s.power_w for s in found] == [float(i) for i in range(len(found))]
        assert all(a.t_s < b.t_s for a, b in pairwise(found))
        assert until(lambda: watch.sample().power_w is not None and (watch.sample().power_w or 0) >= len(found))
        rest = watch.take()
        assert rest[0].power_w == float(len(found))
    finally:
        watch.close()


def test_the_rate_is_ten_a_second() -> None:
    """By the sampler's own clock: a busy machine makes gaps longer, never the looks denser."""
    watch = Sampler(counting)
    try:
        found = collect(watch, 4)
    finally:
        watch.close()
    assert found[3].t_s - found[0].t_s > 0.28


def test_close_ends_and_collects_the_process_and_what_was_left_can_be_taken() -> None:
    watch = Sampler(counting, hz=200)
    assert until(lambda: watch.sample().power_w is not None)
    watch.close()
    watch.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(watch.pid, 0)
    assert watch.take() and not watch.take()
    assert watch.sample()._replace(t_s=0.0) == SensorSample(0.0)


def test_events_are_collected() -> None:
    def open_eyes() -> Eyes:
        pending = [(79,), (), (31, 43)]
        return Eyes(lambda: SensorSample(time.monotonic()), lambda: pending.pop(0) if pending else ())

    watch = Sampler(open_eyes, hz=200)
    try:
        collect(watch, 3)
        assert watch.events == [79, 31, 43]
    finally:
        watch.close()


def test_a_killed_sampler_leaves_fields_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_STALE_S", 3600.0)  # its end is seen, not its silence
    watch = Sampler(counting, hz=200)
    try:
        assert until(lambda: watch.sample().power_w is not None)
        os.kill(watch.pid, signal.SIGKILL)
        assert until(lambda: watch.sample().power_w is None)
        assert watch.take()  # what it had seen
    finally:
        watch.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(watch.pid, 0)


@pytest.mark.parametrize("trouble", ["at opening", "while looking", "device lost", "no number"])
def test_a_sampler_that_fails_is_no_error(trouble: str) -> None:
    def open_eyes() -> Eyes:
        if trouble == "at opening":
            raise OSError("no library")

        def look() -> SensorSample:
            if trouble == "while looking":
                raise RuntimeError("broken")
            if trouble == "device lost":
                raise DeviceError("lost", "xid")
            return SensorSample(1.0, power_w=object())  # type: ignore[arg-type]

        return Eyes(look, lambda: (79,))

    watch = Sampler(open_eyes, hz=200)
    try:
        assert until(lambda: not alive(watch.pid))
        assert watch.sample()._replace(t_s=0.0) == SensorSample(0.0)
        assert [s._replace(t_s=0.0) for s in watch.take()] == ([SensorSample(0.0)] if trouble == "device lost" else [])
        assert watch.events == ([79] if trouble == "device lost" else [])
    finally:
        watch.close()


def test_a_look_that_hangs_goes_stale_and_is_killed_at_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_STALE_S", 0.05)
    monkeypatch.setattr(sampler, "_PATIENCE_S", 0.05)
    watch = Sampler(hanging(after=3), hz=200)
    try:
        assert len(collect(watch, 3)) == 3
        assert until(lambda: watch.sample().power_w is None)
    finally:
        watch.close()
    assert until(lambda: not alive(watch.pid))


def test_a_sampler_that_hangs_at_opening_is_killed_at_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_PATIENCE_S", 0.05)
    watch = Sampler(lambda: time.sleep(3600))  # type: ignore[arg-type, func-returns-value]
    assert watch.sample()._replace(t_s=0.0) == SensorSample(0.0)
    watch.close()
    assert until(lambda: not alive(watch.pid))


PARENT = """
import sys, time
from slurm_pal.profiling.node.devices import SensorSample
from slurm_pal.profiling.node.sampler import Eyes, Sampler

def look():
    if sys.argv[1] == "hangs":
        time.sleep(3600)
    return SensorSample(time.monotonic())

print(Sampler(lambda: Eyes(look), hz=50).pid, flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("look", ["hangs", "works"])
def test_nothing_is_left_when_the_parent_dies(look: str) -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", PARENT, look], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        # The pipe ends with the parent: the sampler holds no copy of it, hung or not.
        assert parent.stdout.read() == ""
    assert until(lambda: not alive(pid))


def test_the_sampler_holds_none_of_its_parents_pipes() -> None:
    inward, outward = os.pipe()
    watch = Sampler(hanging())
    try:
        os.close(outward)
        ready, _, _ = select.select([inward], [], [], GIVEN_S)
        assert ready and os.read(inward, 1) == b""
    finally:
        os.close(inward)
        watch.close()


def test_nobody_reading_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_PIPE_BYTES", 4096)
    looks = mmap.mmap(-1, 1)  # shared with the sampler

    def look() -> SensorSample:
        looks[0] = (looks[0] + 1) % 256
        return SensorSample(time.monotonic(), power_w=100.0)

    watch = Sampler(lambda: Eyes(look), hz=2000)
    try:
        assert until(lambda: waiting(watch) > 4096 - 100)  # no place for another line
        for _ in range(3):
            last = looks[0]
            assert until(lambda last=last: looks[0] != last)  # type: ignore[misc]
        before_s = time.monotonic()
        collect(watch, 10)
        assert until(lambda: watch.sample().t_s > before_s and watch.sample().power_w is not None)
    finally:
        watch.close()


def test_a_user_whose_processes_are_used_up_has_a_watch_without_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", none_left)
    watch = Sampler(counting)
    assert watch.sample()._replace(t_s=0.0) == SensorSample(0.0) and watch.take() == ()
    watch.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_no_descriptor_is_left() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        Sampler(counting, hz=200).close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_looks_of_long_ago_say_nothing() -> None:
    watch = Sampler(lambda: Eyes(lambda: SensorSample(time.monotonic() - 60.0, power_w=5.0)), hz=200)
    try:
        assert collect(watch, 1)[0].power_w == 5.0
        assert watch.sample().power_w is None
    finally:
        watch.close()


def test_a_finaliser_of_the_parent_does_not_run_in_the_sampler(tmp_path: Path) -> None:
    """Objects that are garbage at the fork belong to the parent; collecting them is its matter."""
    script = tmp_path / "garbage.py"
    script.write_text(
        "import gc, os, sys, time\n"
        "from slurm_pal.profiling.node.devices import SensorSample\n"
        "from slurm_pal.profiling.node.sampler import Eyes, Sampler\n"
        "class Held:\n"
        "    def __init__(self): self.me, self.path = self, sys.argv[1]\n"
        "    def __del__(self): open(self.path, 'a').write(f'{os.getpid()}\\n')\n"
        "gc.disable()\n"
        "Held()\n"
        "def look():\n"
        "    gc.collect()\n"
        "    return SensorSample(time.monotonic(), power_w=1.0)\n"
        "watch = Sampler(lambda: Eyes(look), hz=100)\n"
        "while not watch.take(): time.sleep(0.01)\n"
        "watch.close()\n"
        "gc.collect()\n"
        "print(os.getpid())\n"
    )
    where = tmp_path / "finalised"
    done = subprocess.run([sys.executable, str(script), str(where)], capture_output=True, text=True, check=True)
    assert where.read_text() == done.stdout
