# SPDX-License-Identifier: MIT
"""What a worker does on its GPU, and the records that come from it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal import __version__
from slurm_pal.profiling.node import binding, telemetry
from slurm_pal.profiling.node.attempt import Attempt, MeasuredRun
from slurm_pal.profiling.node.benchmarks import FALLBACKS, Benchmark, by_id, fitted, method_hash, on_the_bus
from slurm_pal.profiling.node.devices import Backend, DeviceInfo, Static, Watch
from slurm_pal.profiling.node.runner import BenchRun, StopRules, rules_for
from slurm_pal.profiling.node.workers import Channel, Turn
from slurm_pal.variability.params import TIME_UNITS, Params
from slurm_pal.variability.records import BenchInfo, EnvInfo, GpuInfo, Record
from slurm_pal.variability.runs import met_cap

INVALIDATING = frozenset({"foreign_process", "ecc", "xid"})
"""A value measured under one of these says nothing about the GPU's speed."""

PREFLIGHT_S = 2.0  # idle look for other users of the device, s of device time
MODES = ("concurrent", "solo")
MIG_OFF = frozenset({"", "disabled", "unknown"})


class RecordOrigin(NamedTuple):
    """Where and for which sweep this node measures."""

    sweep_id: str
    cluster: str
    node: str
    job_id: int
    seed: int
    backend: str


class Order(NamedTuple):
    """What is to be measured, and how."""

    specs: tuple[Benchmark, ...]
    mode: str = "concurrent"  # or "solo": one GPU at a time
    mig: bool = False  # partitions are measured too


class MeasurementSpan(NamedTuple):
    """When a run took place, and beside how many others."""

    start_s: float  # Unix
    end_s: float
    peers_busy: int = 0


def measure_gpu(
    device: DeviceInfo,
    peers: Sequence[DeviceInfo],
    channel: Channel,
    backend: Backend,
    place: RecordOrigin,
    order: Order,
) -> None:
    """The worker's life: preflight, then every benchmark, each after the barrier or in its turn."""
    binding.bind(device)
    binding.show(device, peers)
    channel.barrier("preflight")
    static = backend.telemetry.static(device)
    static = static._replace(libs={**static.libs, backend.name: backend.version})
    others = telemetry.preflight(backend.telemetry, device, PREFLIGHT_S * backend.wall_scale)
    refusal = mig_refusal(static, order.mig)
    channel.send({"static": static._asdict(), "others": others, "refused": refusal})
    if refusal:
        return
    watch = backend.telemetry.watch(device)  # its process must be there before the runtime starts
    try:
        _Work(device, peers, channel, backend, place, order, static, watch).run()
        channel.send({"finished": True})
        channel.barrier("end")  # until then this GPU is a peer for the turns of the others
    finally:
        watch.close()


def mig_refusal(static: Static, wanted: bool) -> str:
    """Why a device in MIG mode is not measured; "" when it is."""
    if static.mig_mode in MIG_OFF:
        return ""
    if not wanted:
        return "MIG is enabled: a partition is no whole GPU; use --mig to measure partitions as such"
    if static.mig_mode == "enabled":
        return "MIG is enabled and this job was given no partition: ask for one, e.g. --gres=gpu:1g.10gb:1"
    return ""


def agenda(
    backend: Backend, device: DeviceInfo, specs: Sequence[Benchmark], gpus: int
) -> tuple[list[Benchmark | None], dict[str, str]]:
    """What this device runs in place of each benchmark, and why it runs something else.

    None where it can run neither the benchmark nor a fallback, or runs it already.
    """
    chosen: list[Benchmark | None] = []
    remarks: dict[str, str] = {}
    for spec in specs:
        row, why = _able(backend, device, spec, gpus)
        if why:
            remarks[spec.id] = f"{why}; {row.id} instead" if row else why
        known = row is not None and any(row.id == other.id for other in chosen if other)
        chosen.append(None if known else row)
    return chosen, remarks


def _able(backend: Backend, device: DeviceInfo, spec: Benchmark, gpus: int) -> tuple[Benchmark | None, str]:
    """The benchmark or its first fallback that can run here, and why not the benchmark itself."""
    why = ""
    for name in (spec.id, *FALLBACKS.get(spec.id, ())):
        row = fitted(by_id(name), device.mem_bytes)
        lack = "it needs another GPU" if row.peers and gpus < 2 else backend.lacks(device, row)
        if not lack:
            return row, why
        why = why or lack
    return None, why


class _Work:
    """One GPU's benchmarks, in the order in which all workers of the node go through them."""

    def __init__(
        self,
        device: DeviceInfo,
        peers: Sequence[DeviceInfo],
        channel: Channel,
        backend: Backend,
        place: RecordOrigin,
        order: Order,
        static: Static,
        watch: Watch,
    ) -> None:
        self.device, self.channel, self.backend, self.place = device, channel, backend, place
        self.order, self.static, self.watch = order, static, watch
        self.peers = {peer.slot: peer for peer in peers}
        self.hot = False
        self.met_cap: bool | None = None  # whether a product of class A has; None: not known

    def run(self) -> None:
        """All of them. Every worker waits as often as the others, whatever its device lacks."""
        specs = self.order.specs
        rows, remarks = agenda(self.backend, self.device, specs, len(self.peers) + 1)
        if remarks:
            self.channel.send({"remarks": remarks})
        pairs = list(zip(specs, rows, strict=True))
        scores = [(asked, row) for asked, row in pairs if asked.together]
        if self.order.mode == "solo" and scores:
            # In one go, so that the GPU is still hot when the second benchmark begins.
            self.channel.turn(scores[0][0].id)
            for asked, row in scores:
                if row and self._needed(asked):
                    self.channel.enter(row.id)
                    self._score(row)
        else:
            stand_in = next((r for _, r in scores if r), None)
            for asked, row in scores:
                # Where one GPU of the node needs it, all run it: they are compared with one another.
                if not asked.below_cap or self.channel.any(asked.id, row is not None and self._needed(asked)):
                    self._together(asked, row, stand_in)
        for asked, row in pairs:
            if not asked.together:
                turn = self.channel.turn(asked.id)
                if row:
                    self._health(row, turn)

    def _needed(self, asked: Benchmark) -> bool:
        return not asked.below_cap or self.met_cap is False

    def _together(self, asked: Benchmark, row: Benchmark | None, stand_in: Benchmark | None) -> None:
        """One benchmark on all GPUs at once. Nobody's GPU idles before the last one has been measured.

        A GPU that has no `row` for what was `asked` runs `stand_in`, not recorded, if it has any.
        """
        name, spec = (row or asked).id, row or stand_in
        self.channel.enter(name)
        attempt = Attempt(self.backend, self.device, spec) if spec else None
        busy = self.channel.barrier(name)
        if attempt and row:
            start_s = time.time()
            found = attempt.measure(self.watch, rules_for(row, self.hot))
            self.hot = True
            span = MeasurementSpan(start_s, time.time(), busy)
            first = self._send(row, found, span, {})
        if busy:
            block, spent_s = (attempt.again, attempt.spent_s) if attempt else (float, 0.0)
            self.channel.run_on(name, spent_s, block, own_clock=self.backend.wall_scale < 1.0)
        if attempt:
            found = attempt.end()
            if row:
                self._send(row, found, span, {}, first)

    def _score(self, spec: Benchmark) -> None:
        start_s = time.time()
        found = self._run(spec, rules_for(spec, self.hot))
        self.hot = True
        self._send(spec, found, MeasurementSpan(start_s, time.time()), {})

    def _health(self, spec: Benchmark, turn: Turn) -> None:
        start_s = time.time()
        peers = [self.peers[slot] for slot in turn.peers if slot in self.peers]  # a partition is nobody's peer
        if spec.peers and not peers:
            return  # the others have been given up meanwhile, and say so themselves
        rules = rules_for(spec, hot=True)
        table: dict[str, object] = {}
        busy = 0
        if spec.peers < 0:
            if not turn.first:
                return  # one ring, one record: the value is the node's
            spec, busy = on_the_bus(spec, len(peers) + 1), len(peers)
            found = self._run(spec, rules, peers)
            table["gpus"] = [self.device.uuid, *(peer.uuid for peer in peers)]
        elif spec.peers:
            found, table["p2p_gb_s"] = self._pairs(spec, rules, peers)
        else:
            found = self._run(spec, rules)
        self._send(spec, found, MeasurementSpan(start_s, time.time(), busy), table)

    def _pairs(
        self, spec: Benchmark, rules: StopRules, peers: Sequence[DeviceInfo]
    ) -> tuple[MeasuredRun, dict[str, float]]:
        """From this GPU to each of the others: the worst run, and all values by the peer's UUID."""
        tried: list[MeasuredRun] = []
        values: dict[str, float] = {}
        for peer in peers:
            self.channel.enter(spec.id, peer.slot)
            found = self._run(spec, rules, (peer,))
            if found.run.reason:
                reason = f"to GPU {peer.slot}: {found.run.reason}"
                return found._replace(run=found.run._replace(reason=reason)), values
            tried.append(found)
            values[peer.uuid] = float(f"{found.run.result.value:.5g}")
        worst = min(tried, key=lambda m: m.run.result.value * (-1 if spec.unit in TIME_UNITS else 1))
        first, last = tried[0], tried[-1]
        return MeasuredRun(first.before, last.after, worst.run, (first.host[0], last.host[1])), values

    def _run(self, spec: Benchmark, rules: StopRules, peers: Sequence[DeviceInfo] = ()) -> MeasuredRun:
        attempt = Attempt(self.backend, self.device, spec, peers)
        attempt.measure(self.watch, rules)
        return attempt.end()

    def _send(
        self,
        spec: Benchmark,
        found: MeasuredRun,
        span: MeasurementSpan,
        table: dict[str, object],
        before: Record | None = None,
    ) -> Record:
        """One record to the parent, where it replaces the one of the same run that was sent before."""
        run, static = found.run, self.static._replace(libs={**self.static.libs, **found.libs})
        flags = [*run.flags, *telemetry.flags(run.samples, static, found.before, found.after, found.host)]
        shown = telemetry.summary(run.samples, found.before, found.after) | table
        if static.mps:  # the physical GPU was measured, but not as its peers were
            flags.append("config_differs")
            shown["mps"] = True
        made = record(self.place, self.device, static, spec, run._replace(flags=tuple(flags)), span, shown)
        if spec.sensitivity_class == "A" and made.valid:
            met = met_cap(made, frozenset(made.flags), Params())
            self.met_cap = met if self.met_cap is None else self.met_cap or bool(met)
        if made != before:
            self.channel.send({"record": made.to_json(), "run": made.run_id})
        return made


def record(
    place: RecordOrigin,
    device: DeviceInfo,
    static: Static,
    spec: Benchmark,
    run: BenchRun,
    span: MeasurementSpan,
    table: dict[str, object] | None = None,
) -> Record:
    """One line of the result file."""
    spoiled = INVALIDATING.intersection(run.flags)
    reason = run.reason or ", ".join(sorted(spoiled))
    mode = "concurrent" if span.peers_busy else "solo"
    around = {"mode": mode} | ({"gpus": str(span.peers_busy + 1)} if spec.peers < 0 else {})
    return Record(
        run_id=run_id(span.start_s, place, device.uuid, spec.id),
        sweep_id=place.sweep_id,
        ts_start=round(span.start_s, 3),
        ts_end=round(span.end_s, 3),
        cluster=place.cluster,
        node_name=place.node,
        host=os.uname().nodename,
        slurm_job_id=place.job_id,
        gpu=_gpu_info(device, static),
        env=_env_info(place, static),
        bench=BenchInfo(
            id=spec.id,
            sensitivity_class=spec.sensitivity_class,
            version=spec.version,
            method_hash=method_hash(spec, place.backend, static.comparable() | around),
            dtype=spec.dtype,
            shape=spec.shape,
            seed=place.seed,
            mode=mode,
            peers_busy=span.peers_busy,
        ),
        result=run.result,
        telemetry=table or {},
        flags=tuple(dict.fromkeys(run.flags)),
        valid=not reason,
        reason=reason,
    )


def key(device: DeviceInfo, static: Static) -> str:
    """The name a GPU is known by: its UUID; for a partition that of the parent, and the profile."""
    return f"{device.parent}/{static.mig_mode}" if device.parent else device.uuid


def _gpu_info(device: DeviceInfo, static: Static) -> GpuInfo:
    return GpuInfo(
        uuid=key(device, static),
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
    )


def _env_info(place: RecordOrigin, static: Static) -> EnvInfo:
    return EnvInfo(
        driver=static.driver,
        backend=place.backend,
        tool_version=__version__,
        runtime=static.runtime,
        libs=static.libs,
        power_limit_w=static.power_limit_w,
        default_power_limit_w=static.default_power_limit_w,
        app_clocks_mhz=static.app_clocks_mhz,
        config_group=telemetry.config_group(static),
    )


_ULID = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def run_id(start_s: float, place: RecordOrigin, uuid: str, bench_id: str) -> str:
    """26 characters in ULID's form: they sort by time (ms), and name this run alone.

    The part that is random in a ULID is a hash of what was run, so that a result file
    read twice names the same runs.
    """
    text = "\0".join((place.sweep_id, place.node, str(place.job_id), uuid, bench_id))
    tail = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=10).digest(), "big")
    number = (int(start_s * 1000) & (2**48 - 1)) << 80 | tail
    return "".join(_ULID[number >> shift & 31] for shift in range(125, -1, -5))
