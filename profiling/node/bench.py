# SPDX-License-Identifier: MIT
"""What a sweep job runs on its node: measure its GPUs and drop one result file.

Run as `python -m slurm_pal.profiling.node.bench` inside the job, or as `pal-profile bench`.
Exit codes: 0 all measured, 3 some not, 4 another process was on the GPUs (nothing is
usable), 5 a GPU reported a hardware fault; others by slurm_pal.base.errors. With --repeat it prints what so many
runs gave, and drops nothing.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.errors import DataError, Exit, PalError, UsageError, one_line
from slurm_pal.base.faults import FAULTS, NO_UUID
from slurm_pal.base.files import write_atomic
from slurm_pal.base.numbers import MOST_GPUS, digits
from slurm_pal.base.terminal import visible
from slurm_pal.profiling.node.backends import Setting, open_backend, resolve
from slurm_pal.profiling.node.benchmarks import BENCHMARKS, Benchmark, by_id, fitted, select
from slurm_pal.profiling.node.devices import Backend, DeviceInfo, Static
from slurm_pal.profiling.node.measurement import MODES, MeasurementSpan, Order, RecordOrigin, measure_gpu, record
from slurm_pal.profiling.node.runner import BenchRun, nothing
from slurm_pal.profiling.node.workers import Channel, Team, Worker
from slurm_pal.variability.records import Record, from_json

START_S = 30.0
"""What one phase of a GPU may take at any pace of the emulation: a loaded node stalls processes for seconds."""
PHASE_S = 150.0
"""What one phase may take besides, in device seconds."""
MOST_RUNS = 1000
NOT_LISTED = FAULTS["missing"].meaning
NOT_KNOWN = Static("")
"""Of a GPU that did not come so far as to say; a driver that is not known is no change of driver."""


class BenchOutput(NamedTuple):
    """What a node produced: record lines, and remarks on them."""

    lines: tuple[str, ...]
    notes: tuple[str, ...]  # one for each GPU that was not measured, or not well
    exit_code: Exit


def parser() -> argparse.ArgumentParser:
    """The options of `pal-profile bench`."""
    p = argparse.ArgumentParser(prog="pal-profile bench", description="Measure the GPUs of this node.")
    p.add_argument("--node", help="node name, for a trial outside Slurm (inside it comes from SLURMD_NODENAME)")
    p.add_argument("--gpu", default="", help="only these Slurm indexes, e.g. 0,2-3 (default: those of the job)")
    p.add_argument("--expected", type=int, default=0, help="how many GPUs the node has; fewer is a partial result")
    p.add_argument("--list", action="store_true", help="name the benchmarks and the backends, and measure nothing")
    p.add_argument(
        "--repeat", metavar="N", help="print the values of N runs on hot GPUs and their spread; record nothing"
    )
    p.add_argument(
        "--json", action="store_true", help="with --list, --repeat: machine-readable, versioned by its schema"
    )
    p.add_argument("--bench", default="", help="only these benchmarks, comma-separated (default: profile.benchmarks)")
    p.add_argument("--quick", action="store_true", help="of the default set only gemm, tblock and hbm_triad")
    p.add_argument(
        "--mode", choices=MODES, default=MODES[0], help="all GPUs at once (the default), or one after the other"
    )
    p.add_argument("--mig", action="store_true", help="measure partitions of GPUs in MIG mode, otherwise refused")
    p.add_argument("--sweep", default="", help="sweep id (default: a new one)")
    p.add_argument("--cluster", default="", help="cluster name to write into the records")
    p.add_argument("--spool", default="", help="spool directory (default: paths.spool)")
    p.add_argument("--backend", default="", help="device backend (default: profile.backend)")
    p.add_argument("--registry", default="", help="registry of emulated GPUs")
    p.add_argument("--seed", type=int, default=0, help="seed of the emulated noise")
    p.add_argument("--wall-scale", type=float, default=None, help="emulated devices: wall seconds per device second")
    p.add_argument(
        "--gpu-timeout-s", type=float, default=None, help="a GPU silent for longer in one phase is given up, s"
    )
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run with an argv list (default: sys.argv); the exit code."""
    options = parser().parse_args(argv)
    try:
        if options.list:
            from slurm_pal.profiling.node.catalogue import show

            return show(options.json)
        if options.repeat is not None:
            return int(repeat(options, os.environ))
        if options.json:
            raise UsageError("--json goes with --list or --repeat: results of a measurement are written to the spool")
        return int(run(options, os.environ))
    except PalError as error:
        print(f"pal-profile bench: {one_line(error)}", file=sys.stderr, flush=True)
        return int(error.exit_code)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> Exit:
    """Measure, write the result file, print a line per problem. Raises PalError."""
    node, job_id = _where(options, environ)
    indexes = _indexes(options, environ)
    order = Order(select(_wanted(options), options.quick), options.mode, options.mig)
    incoming = _incoming(options)
    backend = open_backend(_setting(options, environ))
    sweep = options.sweep or time.strftime("manual-%Y%m%d-%H%M%S", time.gmtime())
    place = RecordOrigin(sweep, options.cluster, node, job_id, options.seed, backend.name)
    timeout_s = _timeout_s(options, backend)
    outcome = measure_node(backend, place, indexes, options.expected, order, timeout_s, environ)
    for note in outcome.notes:
        print(f"{node}: {note}", flush=True)
    if outcome.lines:
        name = f"{_word(sweep, 'sweep id')}.{_word(node, 'node name')}"
        path = os.path.join(incoming, f"{name}.jsonl")
        if job_id and os.path.lexists(path):  # of an earlier job of this sweep, not taken in yet
            path = os.path.join(incoming, f"{name}.{job_id}.jsonl")
        _drop(path, outcome.lines)
        print(f"{node}: {len(outcome.lines)} records in {path}", flush=True)
    return outcome.exit_code


def repeat(options: argparse.Namespace, environ: Mapping[str, str]) -> Exit:
    """Run the benchmarks several times and print what came out. Raises PalError."""
    from slurm_pal.profiling.node.repeat import SCHEMA, RepeatOrder, lines, repeat_node

    runs = digits(options.repeat)
    if runs is None or not 2 <= runs <= MOST_RUNS:
        raise UsageError(f"--repeat {options.repeat!r} must be a number of runs from 2 to {MOST_RUNS}, like 10")
    node, job_id = _where(options, environ)
    indexes = _indexes(options, environ)
    specs = tuple(spec for spec in select(_wanted(options), options.quick) if not spec.below_cap)
    backend = open_backend(_setting(options, environ))
    devices = backend.devices(node, indexes)
    absent = sorted({*indexes} - {device.slot for device in devices})
    found, stopped = repeat_node(backend, devices, RepeatOrder(specs, runs, options.mode), _timeout_s(options, backend))
    notes = [*_missing(absent, indexes, options.expected), *([f"stopped by {stopped}"] if stopped else [])]
    if options.json:
        head = {"node": node, "job_id": job_id, "backend": backend.name, "backend_version": backend.version}
        body = {"runs": runs, "mode": options.mode, "gpus": [gpu.to_json() for gpu in found], "notes": notes}
        print(json.dumps({"schema": f"pal.{SCHEMA}/1", **head, **body}, indent=2, allow_nan=False), flush=True)
    else:
        for line in [*lines(found), *notes]:
            print(f"{node}: {visible(line)}", flush=True)
    if stopped == "SIGINT":
        return Exit.INTERRUPTED
    flags = [{gpu.flag, *(f for run in gpu.runs for f in run.flags)} for gpu in found]
    flags += [{"foreign_process"} for gpu in found if gpu.others]
    lost = bool(notes) or any(gpu.error or any(run.reason for run in gpu.runs) for gpu in found)
    return _exit_code(flags, lost or not found)


def _timeout_s(options: argparse.Namespace, backend: Backend) -> float:
    given: float | None = options.gpu_timeout_s
    return START_S + PHASE_S * backend.wall_scale if given is None else given


def _wanted(options: argparse.Namespace) -> str:
    """The benchmarks asked for; a sweep names its own, since settings on the nodes may differ."""
    if options.bench or options.sweep or options.quick:
        return str(options.bench)
    from slurm_pal.base.config import load

    return load().text("profile", "benchmarks")


def _where(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, int]:
    job = environ.get("SLURM_JOB_ID", "")
    node = options.node or (environ.get("SLURMD_NODENAME", "") if job else "")
    if not node:
        raise UsageError("this is not a Slurm job: name a node with --node NAME, or start a sweep with pal-profile run")
    return _word(node, "node name"), digits(job) or 0


def _word(text: str, what: str) -> str:
    if not text or text.startswith(".") or not all(c.isalnum() or c in "._-" for c in text):
        raise UsageError(f"{what} {text!r} may hold only letters, digits, '.', '_' and '-'")
    return text


def _indexes(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[int, ...]:
    text = options.gpu or environ.get("SLURM_STEP_GPUS", "") or environ.get("SLURM_JOB_GPUS", "")
    if text:
        return parse_indexes(text)
    if options.node and options.expected > 0:
        return tuple(range(options.expected))
    raise UsageError("no GPUs given: SLURM_JOB_GPUS is empty; use --gpu 0-3, or --node NAME with --expected N")


def parse_indexes(text: str) -> tuple[int, ...]:
    """Slurm's index list, e.g. "0,2-3". Raises UsageError."""
    found: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        low, high = digits(first), digits(last if dash else first)
        if low is None or high is None or high >= MOST_GPUS:
            raise UsageError(f"GPU index list {text!r} cannot be read; write it like 0,2-3")
        found += range(low, high + 1)
    return tuple(sorted(set(found)))


def _incoming(options: argparse.Namespace) -> str:
    """The directory for results, checked before minutes are spent on measuring."""
    spool = options.spool
    if not spool:
        from slurm_pal.base.config import load

        spool = load().spool_dir
    path = os.path.join(spool, "incoming")
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"spool {path} cannot be made ({error.strerror}): set paths.spool to a directory shared with the nodes"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise DataError(f"spool {path} is not writable here: set paths.spool to a directory shared with the nodes")
    return path


def _setting(options: argparse.Namespace, environ: Mapping[str, str]) -> Setting:
    wanted = options.backend
    if not wanted:
        from slurm_pal.base.config import load

        wanted = load().text("profile", "backend")
    return resolve(wanted, environ, options.registry)._replace(seed=options.seed, wall_scale=options.wall_scale)


def _drop(path: str, lines: Sequence[str]) -> None:
    try:
        write_atomic(path, "\n".join(lines) + "\n", 0o644)
    except OSError as error:
        hint = (
            "free some space, then pal-profile run --resume"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "check the spool"
        )
        raise DataError(f"results not written, {path}: {error.strerror}; {hint}") from None


class _Collector:
    """The team's messages, collected."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}  # run id -> its record: a later one of the same run replaces it
        self.finished: set[str] = set()
        self.static: dict[str, Static] = {}
        self.intruders: dict[str, str] = {}  # uuid -> who
        self.remarks: dict[str, list[int]] = {}  # what is not measured and why -> slots

    def hear(self, worker: Worker, message: dict[str, Any]) -> str:
        uuid = worker.device.uuid
        if "static" in message:
            self.static[uuid] = Static(**message["static"])
            worker.error = message["refused"]
            if message["others"]:
                self.intruders[uuid] = "; ".join(message["others"])
                return "foreign_process"
        elif "record" in message:
            self.lines[message["run"]] = message["record"]
        elif "remarks" in message:
            for name, why in message["remarks"].items():
                self.remarks.setdefault(f"{name}: {why}", []).append(worker.device.slot)
        elif "finished" in message:
            self.finished.add(uuid)
        return ""

    def said(self) -> list[str]:
        """One line for each benchmark that was left out or replaced."""
        return [f"{text} (GPU {', '.join(map(str, sorted(slots)))})" for text, slots in self.remarks.items()]


def measure_node(
    backend: Backend,
    place: RecordOrigin,
    indexes: Sequence[int],
    expected: int,
    order: Order,
    timeout_s: float,
    environ: Mapping[str, str] | None = None,
) -> BenchOutput:
    """Measure these GPUs, at once or in turns; what is complete is kept, whatever happens to the others."""
    devices = backend.devices(place.node, indexes)
    absent = sorted({*indexes} - {d.slot for d in devices})
    notes = _missing(absent, indexes, expected)
    if order.mig:
        devices = partitions(devices, environ or {})

    def work(device: DeviceInfo, channel: Channel) -> None:
        peers = () if device.parent else tuple(d for d in devices if d.slot != device.slot and not d.parent)
        measure_gpu(device, peers, channel, backend, place, order)

    gathered = _Collector()
    team = Team(devices, work, timeout_s)
    team.run(gathered.hear)
    now_s = time.time()
    if gathered.intruders:
        return _foreign(team.workers, gathered, place, order.specs[0], now_s)
    records = [from_json(line) for line in gathered.lines.values()]
    unfinished = [w for w in team.workers if w.device.uuid not in gathered.finished]
    if team.stopped:  # a cancelled run is no evidence against a GPU
        notes.append(f"stopped by {team.stopped}: {len(devices) - len(unfinished)} of {len(devices)} GPUs complete")
        unfinished = []
    notes += [f"GPU {w.device.slot} ({w.device.uuid}): {w.error or 'not measured'}" for w in unfinished]
    notes += [f"GPU {r.gpu.slurm_index} {r.bench.id}: {r.reason}" for r in records if not r.valid]
    records += [_failed(w, gathered, place, order, now_s) for w in unfinished]
    counted = [slot for slot in absent if place.job_id or slot < expected]  # what Slurm says is there
    records += [_absent(slot, devices, gathered, place, order.specs[0], now_s) for slot in counted]
    if not records and not notes:
        notes.append(f"nothing to measure on {len(devices)} GPUs")
    said = (*dict.fromkeys(notes), *gathered.said())
    lines = tuple(r.to_json() for r in records)
    return BenchOutput(lines, said, _exit_code([set(r.flags) for r in records], bool(notes)))


def partitions(devices: Sequence[DeviceInfo], environ: Mapping[str, str]) -> tuple[DeviceInfo, ...]:
    """The devices with a GPU in MIG mode replaced by its partitions that this job was given.

    Slurm names those in CUDA_VISIBLE_DEVICES. Which GPU one belongs to is known only where
    the job has a single GPU; a backend that lists partitions itself is left alone.
    """
    uuids = [word for word in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.startswith("MIG-")]
    if not uuids or len(devices) != 1 or devices[0].parent:
        return tuple(devices)
    (whole,) = devices
    return tuple(whole._replace(uuid=uuid, parent=whole.uuid) for uuid in uuids)


def _exit_code(flags: list[set[str]], trouble: bool) -> Exit:
    if any("foreign_process" in f for f in flags):
        return Exit.INVALID
    if any(f & {"ecc", "xid"} for f in flags):
        return Exit.HARDWARE
    return Exit.PARTIAL if trouble else Exit.OK


def _missing(absent: Sequence[int], indexes: Sequence[int], expected: int) -> list[str]:
    notes = [f"GPU {index}: {NOT_LISTED}" for index in absent]
    if expected > len(indexes):
        notes.append(f"the job was given {len(indexes)} of {expected} GPUs")
    return notes


def _static(worker: Worker, gathered: _Collector) -> Static:
    return gathered.static.get(worker.device.uuid, NOT_KNOWN)


def _failed(worker: Worker, gathered: _Collector, place: RecordOrigin, order: Order, now_s: float) -> Record:
    """An invalid record for the phase in which a GPU was given up."""
    names = {b.id for b in BENCHMARKS}
    spec = by_id(worker.phase) if worker.phase in names else order.specs[0]
    spec = fitted(spec, worker.device.mem_bytes)
    stop = "timeout" if worker.error.startswith("no answer") else "error"
    flags = (worker.flag,) if worker.flag else ()
    run = BenchRun(nothing(spec, stop), (), flags, worker.error or "the worker ended early")
    return record(place, worker.device, _static(worker, gathered), spec, run, MeasurementSpan(now_s, now_s))


def _absent(
    slot: int,
    devices: Sequence[DeviceInfo],
    gathered: _Collector,
    place: RecordOrigin,
    spec: Benchmark,
    now_s: float,
) -> Record:
    """An invalid record for a GPU that the driver does not list. It has no UUID: its slot stands for one."""
    like = devices[0] if devices else DeviceInfo("", "", "", slot)
    device = DeviceInfo(f"{NO_UUID}{place.node}:{slot}", like.vendor, like.model, slot)
    static = next(iter(gathered.static.values()), NOT_KNOWN)
    run = BenchRun(nothing(spec, "error"), (), ("missing",), NOT_LISTED)
    return record(place, device, static, spec, run, MeasurementSpan(now_s, now_s))


def _foreign(
    workers: Sequence[Worker], gathered: _Collector, place: RecordOrigin, spec: Benchmark, now_s: float
) -> BenchOutput:
    """Somebody else is on a GPU: the whole node is given up, and the records say why."""
    lines, notes = [], []
    for worker in sorted(workers, key=lambda w: w.device.uuid not in gathered.intruders):
        uuid = worker.device.uuid
        static = _static(worker, gathered)
        own = gathered.intruders.get(uuid)
        run = BenchRun(
            nothing(spec, "error"),
            (),
            ("foreign_process",),
            f"in use by {own}" if own else "another GPU of the node was in use",
        )
        lines.append(record(place, worker.device, static, spec, run, MeasurementSpan(now_s, now_s)).to_json())
        if own:
            notes.append(f"GPU {worker.device.slot} ({uuid}) is in use by {own}; nothing was measured on this node")
    return BenchOutput(tuple(lines), tuple(notes), Exit.INVALID)


if __name__ == "__main__":
    sys.exit(main())
