# SPDX-License-Identifier: MIT
"""Beside a job on its first node: what its GPUs do in its first minutes, hence its sensitivity class.

Run as `python -m slurm_pal.profiling.node.observer` by a job's script (palsub puts it there), or as `pal
observe` by a user. Unprivileged, one look a second, nice 19. It writes what it found as one word into
the job's own comment, as `pal progress` does: first when enough was seen, and once more at the
end of its time if that differs. It must never make the job fail: every failure here is one line
on stderr, and exit code 0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base import marks
from slurm_pal.base.errors import DataError, PalError, UsageError, one_line
from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.profiling.node.devices import DeviceError, DeviceInfo, Sensors, SensorSample, Static, Watch
from slurm_pal.profiling.node.throttle import IDLE, SW_POWER_CAP
from slurm_pal.sensitivity.behaviour import (
    CENTROID,
    CLASSIFIERS,
    Behaviour,
    Judge,
    Look,
    Timing,
    classify,
    judge_of,
)
from slurm_pal.sensitivity.cascade import PROBE, TELEMETRY
from slurm_pal.sensitivity.observed import KEY, of, word
from slurm_pal.store import kernels
from slurm_pal.store.kernels import Kernels
from slurm_pal.submit import inside

EVERY_S = 1.0
JUDGED_S = 5.0
"""Between two judgements of what has been seen so far."""
RELIEF_S = 2.0
"""After this time the word is checked: a `pal progress` at the same moment may have overwritten it."""
OTHERWISE = 0.1
"""A confidence that differs by this much is worth a second word."""
TIMEOUT_S = 10.0


class ObserverOptions(NamedTuple):
    """What to watch, and what to report with it."""

    seconds: float
    timing: Timing = Timing()
    classifier: str = CENTROID
    kernels: str = ""  # file of the sweep's own kernels
    digest: str = ""  # of the job's script
    stage: str = TELEMETRY  # with PROBE it ends as soon as it knows
    pid: int = 0  # it ends when this process has ended


class Means(NamedTuple):
    """What an observer needs from outside."""

    tell: Callable[[Behaviour], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    alive: Callable[[], bool] = lambda: True


class _Gpu:
    """One GPU that is watched."""

    def __init__(self, watch: Watch, static: Static, max_mhz: float | None) -> None:
        self.watch, self.looks = watch, list[Look]()
        self._clock_mhz = static.app_clocks_mhz or max_mhz or static.max_sm_clk_mhz
        self._limit_w = static.power_limit_w

    def look(self) -> None:
        """Keep the newest sample."""
        seen = self.watch.sample()
        reasons = seen.reasons
        self.looks.append(
            Look(
                seen.t_s,
                _active(seen),
                _share(seen.sm_clk_mhz, self._clock_mhz),
                _share(seen.power_avg_w or seen.power_w, self._limit_w),
                None if reasons is None else bool(reasons & SW_POWER_CAP),
                seen.dram,
                seen.tensor,
            )
        )


def _active(seen: SensorSample) -> bool:
    """Whether a kernel ran; by the idle bit where utilisation is not known."""
    if seen.utilisation is not None:
        return seen.utilisation > 0
    return seen.reasons is not None and not seen.reasons & IDLE


def _share(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def observe(
    watched: Sequence[tuple[Watch, Static]],
    wanted: ObserverOptions,
    judge: Judge,
    means: Means,
    max_mhz: float | None = None,
) -> Behaviour:
    """Look once a second until the time is over, the job has ended, or a probe knows enough; return what was seen.

    `max_mhz` is the highest clock that the model reaches, where that is known; else the driver's.
    """
    gpus = [_Gpu(watch, static, max_mhz) for watch, static in watched]
    began_s = judged_s = means.clock()
    told: Behaviour | None = None
    while True:
        for gpu in gpus:
            gpu.look()
        now_s = means.clock()
        over = now_s - began_s >= wanted.seconds or not means.alive()
        if over or now_s - judged_s >= JUDGED_S:
            judged_s = now_s
            seen = classify([gpu.looks for gpu in gpus], judge, wanted.timing)
            if seen.sensitivity != UNKNOWN_CLASS and (told is None or (over and _differs(seen, told))):
                means.tell(seen)
                told = seen
            if over or (told and wanted.stage == PROBE):
                return seen
        means.sleep(max(0.0, EVERY_S - (means.clock() - now_s)))


def _differs(seen: Behaviour, told: Behaviour) -> bool:
    return seen.sensitivity != told.sensitivity or abs(seen.confidence - told.confidence) >= OTHERWISE


def run(wanted: ObserverOptions, environ: Mapping[str, str]) -> Behaviour:
    """Observe the job that this process belongs to. Raises PalError where there is nothing to look at."""
    from slurm_pal.lab.payload import gpu_indexes

    job = inside.job_id(environ)
    node = environ.get("SLURMD_NODENAME", "")
    indexes = gpu_indexes(environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS", ""))
    if not indexes:
        raise UsageError(f"job {job} holds no GPUs here (SLURM_JOB_GPUS is empty): ask for some, like --gres=gpu:1")
    sensors, devices = _found(environ, node, indexes)
    own = _kernels(wanted.kernels, devices[0].model)
    judge = judge_of(wanted.classifier, own.centroids if own else {})
    alive = (lambda: os.path.exists(f"/proc/{wanted.pid}")) if wanted.pid else (lambda: True)
    means = Means(lambda seen: _tell(inside.named(environ), seen, wanted), alive=alive)
    statics = _statics(sensors, devices)
    with contextlib.ExitStack() as opened:
        watched = []
        for device, static in statics:
            watch = sensors.watch(device)
            opened.callback(watch.close)
            watched.append((watch, static))
        return observe(watched, wanted, judge, means, own.max_mhz if own else None)


def _statics(sensors: Sensors, devices: Sequence[DeviceInfo]) -> list[tuple[DeviceInfo, Static]]:
    """The GPUs that answer, with what is fixed about each. Raises DeviceError where none does."""
    found: list[tuple[DeviceInfo, Static]] = []
    for i, device in enumerate(devices, 1):
        try:
            found.append((device, sensors.static(device)))
        except DeviceError:  # lost: the job's other GPUs show as much
            if i == len(devices) and not found:
                raise
    return found


def _found(environ: Mapping[str, str], node: str, indexes: Sequence[int]) -> tuple[Sensors, tuple[DeviceInfo, ...]]:
    """The sensors that know these GPUs, and the GPUs. Raises DataError where none does."""
    complaints = []
    for name, open_sensors in SENSORS.items():
        try:
            sensors = open_sensors(environ)
            devices = sensors.devices(node, indexes) if sensors else ()
        except Exception as error:  # a vendor's package may raise anything, and the next vendor's may know the GPUs
            complaints.append(f"{name}: {one_line(error)}")
            continue
        if sensors and devices:
            return sensors, devices
    told = "; ".join(complaints) or "no sensors know them"
    raise DataError(f"none of the GPUs {','.join(map(str, indexes))} of node {node} can be looked at ({told})")


def _lab(environ: Mapping[str, str]) -> Sensors | None:
    from slurm_pal.emulation.gpus import find_registry, load_registry
    from slurm_pal.profiling.node.lab_sensors import LabSensors

    path = find_registry(environ)
    return LabSensors(path, load_registry(path)) if path else None


def _nvidia(environ: Mapping[str, str]) -> Sensors:
    from slurm_pal.profiling.node.nvml import Nvml

    return Nvml(hz=1.0 / EVERY_S)


def _amd(environ: Mapping[str, str]) -> Sensors:
    from slurm_pal.profiling.node.amd import AmdSmi

    return AmdSmi(hz=1.0 / EVERY_S)


def _intel(environ: Mapping[str, str]) -> Sensors:
    from slurm_pal.profiling.node.intel import IntelSysfs

    return IntelSysfs(hz=1.0 / EVERY_S)


SENSORS: dict[str, Callable[[Mapping[str, str]], Sensors | None]] = {
    "lab": _lab, "nvidia": _nvidia, "amd": _amd, "intel": _intel,
}  # fmt: skip
"""Asked in this order; the first that knows the job's GPUs is taken."""


def _kernels(path: str, model: str) -> Kernels | None:
    try:
        return kernels.read(path).get(model) if path else None
    except DataError:
        return None


def _tell(job: str, seen: Behaviour, wanted: ObserverOptions) -> None:
    """Put the word into the job's comment, and once more if somebody overwrote it; failures are not reported."""
    from slurm_pal.submit.processes import runner

    ask = runner(TIMEOUT_S)
    said = word(of(seen, time.time(), wanted.digest, wanted.stage))
    with contextlib.suppress(PalError, OSError):
        for _ in range(2):
            comment = inside.comment_of(ask, job)
            if marks.read(comment, KEY) == said:
                return
            inside.put(ask, job, comment, said)
            time.sleep(RELIEF_S)


def parser() -> argparse.ArgumentParser:
    """The options that palsub gives."""
    p = argparse.ArgumentParser(prog="pal observe", description="See what the GPUs of this job do.")
    p.add_argument("--seconds", type=float, required=True)
    p.add_argument("--active", type=float, default=Timing().least_s)
    p.add_argument("--classifier", choices=CLASSIFIERS, default=CENTROID)
    p.add_argument("--kernels", default="")
    p.add_argument("--digest", default="")
    p.add_argument("--stage", choices=(TELEMETRY, PROBE), default=TELEMETRY)
    p.add_argument("--pid", type=int, default=0)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run with an argv list (default: sys.argv); returns 0 always."""
    options = parser().parse_args(argv)
    with contextlib.suppress(OSError):
        os.nice(19)
    timing = Timing(options.active / 2, options.active)
    wanted = ObserverOptions(
        options.seconds, timing, options.classifier, options.kernels, options.digest, options.stage, options.pid
    )
    try:
        run(wanted, os.environ)
    except (PalError, OSError, ImportError) as error:
        print(f"pal observe: {one_line(error)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
