# SPDX-License-Identifier: MIT
"""The same benchmarks again and again on GPUs that are hot: how well a number repeats.

Nothing is recorded: these runs are short, and scores come from whole measurements only. Each run builds its
kernel anew, as a sweep does; warm-up, stop rules and sensors are those of a sweep on a hot GPU.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from slurm_pal.profiling.node import binding, telemetry
from slurm_pal.profiling.node.attempt import Attempt, MeasuredRun
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.devices import Backend, DeviceError, DeviceInfo, SensorSample, Static, Watch
from slurm_pal.profiling.node.measurement import MODES, PREFLIGHT_S, agenda, mig_refusal
from slurm_pal.profiling.node.runner import StopRules, cv_pct, median, rules_for
from slurm_pal.profiling.node.workers import Channel, Team, Worker

SCHEMA = "repeat"  # pal.repeat/1
HOT_S = 10.0
"""Seconds of a run at most: the long ones of the table are those of a first benchmark with its warm-up."""
BROKEN = frozenset({"ecc", "xid"})
HEAT = StopRules(measure_min_s=0.0, measure_max_s=1.0, min_blocks=3)
"""Of the run that heats the GPU up first and is not counted: the warm-up of a sweep, and hardly more."""


class RepeatOrder(NamedTuple):
    """What is repeated, and how often."""

    specs: tuple[Benchmark, ...]
    runs: int
    mode: str = MODES[0]
    seconds: float = HOT_S  # of a run, at most
    heat: StopRules = HEAT
    preflight: bool = True  # look for other users of the GPU first
    watched: bool = True  # with the sampler of a measurement, or with none


class HotRun(NamedTuple):
    """One run of one benchmark."""

    bench: str
    unit: str
    value: float
    cv_pct: float
    ci95_pct: float
    steady: bool
    flags: tuple[str, ...]
    reason: str  # why there is no value; "" when there is
    sm_clk_mhz: float | None
    power_w: float | None
    temp_c: float | None
    power_cap: float | None  # share of the looks under the power cap


class GpuRepeats(NamedTuple):
    """What one GPU gave."""

    device: DeviceInfo
    runs: tuple[HotRun, ...]
    error: str = ""  # why there are no more of them
    flag: str = ""  # of that error
    others: tuple[str, ...] = ()  # who else is on the GPU
    remarks: tuple[str, ...] = ()  # what is not run, and why
    sampler_share: float | None = None  # of a processor's time, taken by the sampler

    def values(self, bench: str) -> list[float]:
        """The values of one benchmark, in order."""
        return [run.value for run in self.runs if run.bench == bench and not run.reason]

    @property
    def benches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.bench for run in self.runs))

    def to_json(self) -> dict[str, Any]:
        """One entry of `gpus` in pal.repeat/1."""
        benchmarks = []
        for name in self.benches:
            rows, values = [run for run in self.runs if run.bench == name], self.values(name)
            shown = [{k: v for k, v in run._asdict().items() if k not in ("bench", "unit")} for run in rows]
            benchmarks.append({"id": name, "unit": rows[0].unit, "values": values, **spread(values), "runs": shown})
        return {
            "gpu": self.device.slot,
            "uuid": self.device.uuid,
            "model": self.device.model,
            "benchmarks": benchmarks,
            "error": self.error,
            "in_use_by": list(self.others),
            "remarks": list(self.remarks),
        }


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Median, and how far the values are apart: standard deviation and range in % of the mean."""
    if not values:
        return {"median": None, "cv_pct": None, "range_pct": None}
    mean = sum(values) / len(values)
    return {
        "median": median(values),
        "cv_pct": cv_pct(values) if len(values) > 1 else None,
        "range_pct": 100.0 * (max(values) - min(values)) / mean if len(values) > 1 else None,
    }


class _Unwatched:
    """Sensors that nobody looks at."""

    def sample(self) -> SensorSample:
        return SensorSample(time.monotonic())

    def take(self) -> tuple[SensorSample, ...]:
        return ()

    def close(self) -> None:
        """Nothing was opened."""


def repeat_gpu(device: DeviceInfo, channel: Channel, backend: Backend, order: RepeatOrder) -> None:
    """The worker's life: preflight, heat, then all runs, each after the barrier or in one turn."""
    binding.bind(device)
    binding.show(device, ())
    channel.barrier("preflight")
    static = backend.telemetry.static(device)
    if order.preflight:
        others = telemetry.preflight(backend.telemetry, device, PREFLIGHT_S * backend.wall_scale)
        refusal = mig_refusal(static, wanted=False)
        channel.send({"others": others, "refused": refusal})
        if others or refusal:
            return
    began_s, used_s = time.monotonic(), _children_s()
    watch: Watch = backend.telemetry.watch(device) if order.watched else _Unwatched()
    try:
        rows, remarks = agenda(backend, device, order.specs, 1)
        if remarks:
            channel.send({"remarks": [f"{name}: {why}" for name, why in remarks.items()]})
        # Every worker waits as often as the others, whatever its device lacks.
        pairs = [
            (asked, row and row._replace(seconds=min(row.seconds, order.seconds)))
            for asked, row in zip(order.specs, rows, strict=True)
        ]
        first = next((row for _, row in pairs if row), None)
        if order.mode == "solo":
            channel.turn("heat")
        else:
            channel.barrier("heat")
        if first:
            heated = _once(backend, device, static, first, watch, order.heat)
            if broken := sorted(BROKEN.intersection(heated.flags)):
                raise DeviceError(f"{first.id}, heating up: {heated.reason}", broken[0])
        for number in range(1, order.runs + 1):
            for asked, row in pairs:
                phase = f"{(row or asked).id}, run {number}"
                if order.mode != "solo" and asked.together:
                    run = _together(backend, device, static, row, watch, channel, phase)
                else:
                    if order.mode == "solo":
                        channel.enter(phase)
                    else:
                        channel.turn(phase)
                    run = _once(backend, device, static, row, watch, rules_for(row, hot=True)) if row else None
                if run is None:
                    continue
                channel.send({"run": run._asdict()})
                if BROKEN.intersection(run.flags):
                    return
    finally:
        watch.close()
    channel.send({"finished": True, "sampler_share": (_children_s() - used_s) / (time.monotonic() - began_s)})


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _once(
    backend: Backend, device: DeviceInfo, static: Static, spec: Benchmark, watch: Watch, rules: StopRules
) -> HotRun:
    """One run with a kernel of its own."""
    attempt = Attempt(backend, device, spec)
    attempt.measure(watch, rules)
    return _hot_run(spec, static, attempt.end())


def _together(
    backend: Backend,
    device: DeviceInfo,
    static: Static,
    spec: Benchmark | None,
    watch: Watch,
    channel: Channel,
    phase: str,
) -> HotRun | None:
    """One run beside those of the other GPUs, begun together and none beside an idle one, as in a sweep."""
    channel.enter(phase)
    attempt = Attempt(backend, device, spec) if spec else None
    busy = channel.barrier(phase)
    if attempt and spec:
        attempt.measure(watch, rules_for(spec, hot=True))
    if busy:
        block, spent_s = (attempt.again, attempt.spent_s) if attempt else (float, 0.0)
        channel.run_on(phase, spent_s, block, own_clock=backend.wall_scale < 1.0)
    return _hot_run(spec, static, attempt.end()) if attempt and spec else None


def _hot_run(spec: Benchmark, static: Static, ended: MeasuredRun) -> HotRun:
    found, seen = ended.run, ended.run.samples
    raised = telemetry.flags(seen, static, ended.before, ended.after)
    flags = tuple(dict.fromkeys((*found.flags, *raised)))
    spoiled = sorted({*flags} & (BROKEN | {"foreign_process"}))
    return HotRun(
        spec.id,
        spec.unit,
        found.result.value,
        round(found.result.cv_pct, 4),
        round(found.result.ci95_pct, 4),
        found.result.steady,
        flags,
        found.reason or ", ".join(spoiled),
        _middle([s.sm_clk_mhz for s in seen]),
        _middle([s.power_w for s in seen]),
        _middle([s.temp_c for s in seen]),
        telemetry.duty(seen).get("power_cap"),
    )


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 2) if known else None


class RepeatCollector:
    """What the workers say, by GPU."""

    def __init__(self, devices: Sequence[DeviceInfo]) -> None:
        self._found = {device.uuid: GpuRepeats(device, ()) for device in devices}
        self._finished: set[str] = set()

    def hear(self, worker: Worker, message: dict[str, Any]) -> str:
        """For Team.run: nothing that is said ends the others' runs but another user of a GPU."""
        uuid = worker.device.uuid
        found = self._found[uuid]
        if "refused" in message:
            worker.error = message["refused"]
            self._found[uuid] = found._replace(others=tuple(message["others"]))
            return "foreign_process" if message["others"] else ""
        if "remarks" in message:
            self._found[uuid] = found._replace(remarks=tuple(message["remarks"]))
        elif "run" in message:
            run = HotRun(**{**message["run"], "flags": tuple(message["run"]["flags"])})
            self._found[uuid] = found._replace(runs=(*found.runs, run))
        elif "finished" in message:
            self._finished.add(uuid)
            self._found[uuid] = found._replace(sampler_share=message["sampler_share"])
        return ""

    def gathered(self, workers: Sequence[Worker]) -> list[GpuRepeats]:
        """Once the team has ended: the GPUs in order, each with the reason why it gave no more."""
        shown = []
        for worker in workers:
            found = self._found[worker.device.uuid]
            if worker.device.uuid not in self._finished:
                found = found._replace(error=self._why(found, worker), flag=worker.flag)
            shown.append(found)
        return shown

    def _why(self, found: GpuRepeats, worker: Worker) -> str:
        if found.others:
            return f"in use by {'; '.join(found.others)}"
        if any(gpu.others for gpu in self._found.values()):
            return "another GPU of the node was in use"
        broken = [run.reason for run in found.runs if BROKEN.intersection(run.flags)]
        return (broken or [worker.error or "the worker ended early"])[0]


def repeat_node(
    backend: Backend, devices: Sequence[DeviceInfo], order: RepeatOrder, timeout_s: float
) -> tuple[list[GpuRepeats], str]:
    """All runs on these GPUs; the name of the signal that ended them early, "" if none did."""

    def work(device: DeviceInfo, channel: Channel) -> None:
        repeat_gpu(device, channel, backend, order)

    gathered = RepeatCollector(devices)
    team = Team(tuple(devices), work, timeout_s)
    team.run(gathered.hear)
    return gathered.gathered(team.workers), team.stopped


def lines(found: Sequence[GpuRepeats]) -> list[str]:
    """For people: for each GPU and benchmark the spread, then the values."""
    shown = []
    for gpu in found:
        for name in gpu.benches:
            values, wide = gpu.values(name), spread(gpu.values(name))
            unit = next(run.unit for run in gpu.runs if run.bench == name)
            head = f"GPU {gpu.device.slot} {name}: {len(values)} runs"
            if wide["median"] is not None:
                head += f", median {wide['median']:.6g} {unit}"
            if wide["cv_pct"] is not None:
                head += f", CV {wide['cv_pct']:.3f} %, range {wide['range_pct']:.3f} %"
            shown += [head, *(["  " + " ".join(f"{value:.6g}" for value in values)] if values else [])]
            flags = sorted({flag for run in gpu.runs if run.bench == name for flag in run.flags})
            shown += [f"  flags: {', '.join(flags)}"] if flags else []
            shown += [f"  run {i}: {r.reason}" for i, r in _failures(gpu, name)]
        shown += [f"GPU {gpu.device.slot} not run: {remark}" for remark in gpu.remarks]
        if gpu.error:
            shown.append(f"GPU {gpu.device.slot} ({gpu.device.uuid}): {gpu.error}")
    return shown


def _failures(gpu: GpuRepeats, name: str) -> list[tuple[int, HotRun]]:
    rows = [run for run in gpu.runs if run.bench == name]
    return [(i, run) for i, run in enumerate(rows, 1) if run.reason]
