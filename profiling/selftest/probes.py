# SPDX-License-Identifier: MIT
"""What runs on the card: each step in a worker of its own, which a watchdog ends and a time budget, too.

A driver that hangs takes along its worker only. What a worker has said before it ended is kept.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from slurm_pal.base.errors import Exit, one_line
from slurm_pal.profiling.node import binding, telemetry
from slurm_pal.profiling.node.benchmarks import by_id
from slurm_pal.profiling.node.devices import Backend, DeviceError, DeviceInfo, SensorSample
from slurm_pal.profiling.node.measurement import PREFLIGHT_S
from slurm_pal.profiling.node.workers import Channel, Team, Worker

BUDGET = "the time budget"
LOOKS = 50
NOBODY = 65534
DEVICES = "/dev"
_EYES_S = (
    15.0  # until the first look: without persistence mode the driver first starts the GPUs, and clears their memory
)
_GPM_LOOKS, _GPM_EVERY_S = 4, 0.5

Hear = Callable[[Worker, dict[str, Any]], str]


class Ended(NamedTuple):
    """How a step ended. `error` is what its worker died of, "" when it came to its end."""

    worker: Worker
    error: str = ""
    flag: str = ""
    stopped: str = ""  # the signal, or BUDGET, that ended it early

    @property
    def grave(self) -> bool:
        """Whether the device broke or hung. Any other error is of what ran, and says nothing about the GPU."""
        return bool(self.flag) or self.error.startswith("no answer")


def serve(
    device: DeviceInfo, work: Callable[[DeviceInfo, Channel], None], hear: Hear, timeout_s: float, left_s: float
) -> Ended:
    """Run one worker until it ends, is silent for `timeout_s`, or `left_s` is over."""
    team = Team((device,), work, timeout_s)

    def over(number: int, frame: FrameType | None) -> None:
        team.stopped = BUDGET

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, left_s))
    try:
        team.run(hear)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    (worker,) = team.workers
    return Ended(worker, "" if team.stopped else worker.error, worker.flag, team.stopped)


def look_at(backend: Backend, device: DeviceInfo, channel: Channel) -> None:
    """What the driver says, who else is there, and which sensors answer."""
    binding.bind(device)
    binding.show(device, ())
    channel.enter("the driver's answers")
    channel.send({"static": backend.telemetry.static(device)._asdict()})
    channel.enter("looking for other users")
    channel.send({"others": telemetry.preflight(backend.telemetry, device, PREFLIGHT_S * backend.wall_scale)})
    channel.enter("sensors")
    channel.send({"fields": _fields(backend, device)})


def _fields(backend: Backend, device: DeviceInfo) -> list[str]:
    """The fields of a look that the card fills."""
    watch = backend.telemetry.watch(device)
    until_s = time.monotonic() + _EYES_S
    try:
        while True:
            looked, sample = watch.take(), watch.sample()  # a look that shows nothing is one, too
            found = [n for n, v in zip(SensorSample._fields, sample, strict=True) if v is not None and n != "t_s"]
            if found or looked or time.monotonic() > until_s:
                return found
            time.sleep(0.05)
    finally:
        watch.close()


def _nvml(device: DeviceInfo) -> dict[str, Any]:
    """What a look costs, ms, and whether GPM answers this user."""
    from slurm_pal.profiling.node.gpm import open_gpm
    from slurm_pal.profiling.node.nvml import NvmlLibrary, look

    library = NvmlLibrary()
    try:
        handle = library.handle(device.uuid)
        spent = sorted(_timed_ms(lambda: look(library, handle)) for _ in range(LOOKS))
        gpm, told = open_gpm(library, device.uuid), None
        for _ in range(_GPM_LOOKS if gpm else 0):
            time.sleep(_GPM_EVERY_S)
            told = gpm.read() if gpm else None
        if gpm:
            gpm.close()
    except (DeviceError, ImportError) as error:
        return {"error": one_line(error)}
    finally:
        library.close()
    return {"look_ms": spent[LOOKS // 2], "look_p95_ms": spent[LOOKS * 95 // 100], "gpm": told is not None}


def ask_nvml(device: DeviceInfo, channel: Channel) -> None:
    """What NVML answers this user, in a process of its own: GPM hangs on some drivers, and the card does not."""
    channel.enter("NVML")
    channel.send({"nvml": _nvml(device)})


def ask_nvml_as_nobody(device: DeviceInfo, channel: Channel) -> None:
    """The same as an ordinary user: root may be told what users, and so observers beside their jobs, are not."""
    channel.enter("NVML as an ordinary user")
    with contextlib.suppress(ImportError):
        import pynvml  # noqa: F401 - nobody may not be let into the folders of our packages

        from slurm_pal.profiling.node import gpm, nvml  # noqa: F401
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    except OSError as error:
        channel.send({"nvml": {"error": f"this root cannot become an ordinary user, as in some containers: {error}"}})
        return
    channel.send({"nvml": _nvml(device)})


def _timed_ms(action: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    action()
    taken_ms = 1e3 * (time.perf_counter() - began_s)
    time.sleep(0.02)
    return taken_ms


def hold(device: DeviceInfo) -> int:
    """A descriptor of the GPU's device file, -1 without one: while it is open, the driver does not stop the GPU.

    Without persistence mode it would after each step, and start it for the next: seconds of work that count as use
    of the GPU and of our processor.
    """
    if device.vendor == "nvidia" and device.minor is not None:
        with contextlib.suppress(OSError):
            return os.open(os.path.join(DEVICES, f"nvidia{device.minor}"), os.O_RDWR | os.O_CLOEXEC)
    return -1


@contextlib.contextmanager
def patience(seconds: float, doing: str) -> Iterator[None]:
    """End this process with one line if what is inside takes longer.

    A driver that hangs in a call of ours lets no handler run: Ctrl-C, too, ends the process as the system does.
    """

    def give_up() -> None:
        line = f"selftest failed: no answer within {seconds:g} s {doing}: read dmesg, reboot the node\n"
        os.write(sys.stderr.fileno(), line.encode())
        os._exit(Exit.FAILED)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)


def compare(
    backend: Any,  # noqa: ANN401
    device: DeviceInfo,
    others: Sequence[DeviceInfo],
    names: Sequence[str],
    channel: Channel,
) -> None:
    """These kernels of the driver backend against their reference, each at a small size.

    Sends one message for each benchmark: why it cannot run here, what it broke with, or how far off each quantity is.
    """
    from slurm_pal.profiling.driver import check

    binding.bind(device)
    binding.show(device, others)
    for name in names:
        channel.enter(name)
        spec = by_id(name)._replace(shape=check.SHAPES[name])
        try:
            lack = "it needs another GPU of this job" if spec.peers and not others else backend.lacks(device, spec)
            if lack:
                channel.send({"numerics": name, "lack": lack})
                continue
            found = check.with_peers(backend, device, spec, others)
        except DeviceError as error:
            channel.send({"numerics": name, "error": one_line(error), "flag": error.flag})
            if error.flag:  # after a fault the driver serves this process no more
                return
            continue
        channel.send({"numerics": name, "found": [deviation._asdict() for deviation in found]})
