"""What a worker does on its GPU, and the records that come of it."""

from __future__ import annotations

import hashlib
import os
import time
from typing import NamedTuple

from slurm_pal import __version__
from slurm_pal.profiling import telemetry
from slurm_pal.profiling.benchmarks import Benchmark, method_hash
from slurm_pal.profiling.devices import Backend, Counters, DeviceError, DeviceInfo, Static
from slurm_pal.profiling.runner import QUICK, Rules, Run, measure
from slurm_pal.profiling.workers import Channel
from slurm_pal.variability.records import BenchInfo, EnvInfo, GpuInfo, Record, Result

INVALIDATING = frozenset({"foreign_process", "ecc", "xid"})
"""A value that came about under one of these says nothing about the GPU's speed."""


class Place(NamedTuple):
    """Where and for which sweep this node measures."""

    sweep_id: str
    cluster: str
    node: str
    job_id: int
    seed: int
    backend: str


class Span(NamedTuple):
    """When a run took place, and beside how many others."""

    start_s: float  # Unix
    end_s: float
    peers_busy: int = 0


def measure_gpu(
    device: DeviceInfo, channel: Channel, backend: Backend, place: Place, specs: tuple[Benchmark, ...], quick: bool
) -> None:
    """The worker's life: preflight, then every benchmark, each behind the barrier."""
    channel.barrier("preflight")
    static = backend.telemetry.static(device)
    others = backend.telemetry.counters(device).others
    channel.send({"static": static._asdict(), "others": others})
    for position, spec in enumerate(specs):
        peers = channel.barrier(spec.id)
        rules = QUICK if quick and position else Rules()
        start_s = time.time()
        before, after, run = _run(backend, device, spec, rules)
        flags = (*run.flags, *telemetry.flags(run.samples, static, before, after))
        table = telemetry.summary(run.samples, before, after)
        span = Span(start_s, time.time(), peers)
        channel.send({"record": record(place, device, static, spec, run._replace(flags=flags), span, table).to_json()})


def _run(backend: Backend, device: DeviceInfo, spec: Benchmark, rules: Rules) -> tuple[Counters, Counters, Run]:
    sensors = backend.telemetry
    before = sensors.counters(device)
    try:
        kernel = backend.prepare(device, spec)
    except DeviceError as error:
        flags = (error.flag,) if error.flag else ()
        return before, before, Run(nothing(spec, "error"), (), flags, f"{spec.id} cannot be prepared: {error}")
    run = measure(kernel, spec, lambda: sensors.sample(device), rules)
    return before, sensors.counters(device), run


def nothing(spec: Benchmark, stop_reason: str) -> Result:
    """The result of a run that gave no value."""
    return Result(0.0, spec.unit, 0, 0.0, 0.0, 0.0, 0.0, 0.0, False, stop_reason)


def record(
    place: Place,
    device: DeviceInfo,
    static: Static,
    spec: Benchmark,
    run: Run,
    span: Span,
    table: dict[str, object] | None = None,
) -> Record:
    """One line of the result file."""
    spoiled = INVALIDATING.intersection(run.flags)
    reason = run.reason or ", ".join(sorted(spoiled))
    return Record(
        run_id=run_id(span.start_s, place, device.uuid, spec.id),
        sweep_id=place.sweep_id,
        ts_start=round(span.start_s, 3),
        ts_end=round(span.end_s, 3),
        cluster=place.cluster,
        node_name=place.node,
        host=os.uname().nodename,
        slurm_job_id=place.job_id,
        gpu=GpuInfo(
            uuid=device.uuid,
            vendor=device.vendor,
            model=device.model,
            slurm_index=device.slot,
            pci_bus_id=device.pci_bus_id,
            minor=device.minor,
            serial=device.serial,
            vbios=device.vbios,
            mem_bytes=device.mem_bytes,
            mig_mode=static.mig_mode,
            ecc_mode=static.ecc_mode,
        ),
        env=EnvInfo(
            driver=static.driver,
            backend=place.backend,
            tool_version=__version__,
            runtime=static.runtime,
            libs=static.libs,
            power_limit_w=static.power_limit_w,
            default_power_limit_w=static.default_power_limit_w,
            app_clocks_mhz=static.app_clocks_mhz,
            config_group=telemetry.config_group(static),
        ),
        bench=BenchInfo(
            id=spec.id,
            sensitivity_class=spec.sensitivity_class,
            version=spec.version,
            method_hash=method_hash(spec, place.backend, static.comparable()),
            dtype=spec.dtype,
            shape=spec.shape,
            seed=place.seed,
            mode="concurrent" if span.peers_busy else "solo",
            peers_busy=span.peers_busy,
        ),
        result=run.result,
        telemetry=table or {},
        flags=tuple(dict.fromkeys(run.flags)),
        valid=not reason,
        reason=reason,
    )


_ULID = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def run_id(start_s: float, place: Place, uuid: str, bench_id: str) -> str:
    """26 characters in ULID's form: they sort by time (ms), and name this run alone.

    The part that is random in a ULID is a hash of what was run, so that a result file
    read twice names the same runs.
    """
    text = "\0".join((place.sweep_id, place.node, str(place.job_id), uuid, bench_id))
    tail = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=10).digest(), "big")
    number = (int(start_s * 1000) & (2**48 - 1)) << 80 | tail
    return "".join(_ULID[number >> shift & 31] for shift in range(125, -1, -5))
