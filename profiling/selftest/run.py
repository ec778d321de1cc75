# SPDX-License-Identifier: MIT
"""The self-test: its steps in the order of their worth, within a time budget, each check with its verdict."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.errors import MissingPackageError, PalError, UsageError, one_line
from slurm_pal.base.numbers import digits
from slurm_pal.profiling.node.backends import BACKENDS, REAL, Setting, open_backend
from slurm_pal.profiling.node.bench import NOT_LISTED, PHASE_S, START_S, parse_indexes
from slurm_pal.profiling.node.benchmarks import DEFAULT, FALLBACKS, SETUP_S, Benchmark, by_id
from slurm_pal.profiling.node.devices import ANY_SLOT, Backend, DeviceInfo, Static
from slurm_pal.profiling.node.measurement import INVALIDATING, Order, RecordOrigin, measure_gpu
from slurm_pal.profiling.node.repeat import HEAT, GpuRepeats, RepeatCollector, RepeatOrder, repeat_gpu, spread
from slurm_pal.profiling.node.workers import Channel, Worker
from slurm_pal.profiling.selftest import checks, limits, probes
from slurm_pal.profiling.selftest.checks import FAILED, Check
from slurm_pal.profiling.selftest.probes import BUDGET, Ended
from slurm_pal.variability.records import Record, from_json

SCHEMA = "selftest"  # pal.selftest/1
SHORT_S = 3.0  # of a repeated run
REPEATED = "hbm_triad"  # beside the first benchmark of class A
SAMPLED = ("hbm_copy", "launch_latency")
BRIEF_HEAT = HEAT._replace(warmup_min_s=3.0, warmup_max_s=8.0)
"""Before runs on a GPU that was busy a few seconds ago."""
SENSORS_S, NUMERICS_S, LIBRARY_S = 8.0, 30.0, 45.0
"""What a step usually takes, s: it is begun only if so much is left."""
HEAT_S, PER_RUN = 25.0, 1.5
GPM_UNUSED = "shares of memory and pipes stay empty, no score needs them"
NVML_S = 20.0
"""Fifty looks and four of GPM take four seconds."""
OTHERS = "kernels of no sweep"
"""Those of the driver backend that are run on request only. Some have never run on a card: a fault of theirs, or a
hang, must not cost the other checks, so they come last."""
STEPS = ("device", "sensors", "numerics", "benchmarks", "levels", "regime", "repeat", "library", "sampler")


class Plan(NamedTuple):
    """What is tested, and how long it may take."""

    setting: Setting
    node: str
    gpu: int | None  # Slurm's index; None: the first GPU there is
    given: tuple[int, ...]  # indexes of the GPUs that the job holds
    specs: tuple[Benchmark, ...]
    runs: int
    budget_s: float
    gpu_timeout_s: float | None = None
    visible: str = ""  # CUDA_VISIBLE_DEVICES, where no job says which GPUs are ours


class Report(NamedTuple):
    """What came out."""

    verdict: str
    node: str
    device: DeviceInfo
    backend: str
    backend_version: str
    static: Static | None
    seconds: float
    budget_s: float
    checks: tuple[Check, ...]
    records: tuple[Record, ...]
    stopped: str  # the signal that ended it; "" if none did

    def count(self, verdict: str) -> int:
        """How many checks ended so."""
        return sum(check.verdict == verdict for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The body of pal.selftest/1."""
        device, row = self.device, limits.card(self.device.vendor, self.device.model)
        names = ("uuid", "vendor", "model", "pci_bus_id", "serial", "vbios", "mem_bytes")
        return {
            "verdict": self.verdict,
            "node": self.node,
            "gpu": {"index": device.slot, **{name: getattr(device, name) for name in names}},
            "backend": self.backend,
            "backend_version": self.backend_version,
            "driver": self.static.driver if self.static else "",
            "limits_of": row.name if row else "emulator" if device.vendor == "emu" else None,
            "seconds": round(self.seconds, 1),
            "budget_s": self.budget_s,
            "stopped": self.stopped,
            "counts": {v.replace(" ", "_"): self.count(v) for v in (checks.OK, FAILED, checks.NOT_CHECKED)},
            "checks": [check.to_json() for check in self.checks],
            "records": [json.loads(record.to_json()) for record in self.records],
        }


def selftest(plan: Plan, say: Callable[[str], None]) -> Report:
    """Check one card. `say` hears what comes next. Raises PalError where there is nothing to check."""
    with probes.patience(plan.gpu_timeout_s or START_S + PHASE_S, "when the driver was asked for its GPUs"):
        backend = open_backend(plan.setting)
        listed = [] if plan.gpu is None else _named(plan, backend)
        if not listed:
            seen = backend.devices(plan.node, ANY_SLOT)
            if not seen:
                raise MissingPackageError(_nothing_there(plan, backend))
            if plan.gpu is not None:
                return _unlisted(plan, backend, plan.gpu, seen)
            listed = [_visible(plan.visible, seen)]
        held = probes.hold(listed[0])
    try:
        return _SelfTest(plan, backend, listed[0], say).run()
    finally:
        if held >= 0:
            os.close(held)


def _visible(word: str, seen: Sequence[DeviceInfo]) -> DeviceInfo:
    """The GPU that the first word of CUDA_VISIBLE_DEVICES names, which management libraries do not heed.

    Raises UsageError where it names none: somebody has hidden the others from us.
    """
    word = word.partition(",")[0].strip()
    if not word or seen[0].vendor != "nvidia":
        return seen[0]
    for device in seen:
        if device.slot == digits(word) or (word.startswith("GPU-") and device.uuid.startswith(word)):
            return device
    there = ", ".join(str(device.slot) for device in seen)
    raise UsageError(f"CUDA_VISIBLE_DEVICES={word} names no GPU here; there are {there}: unset it, or give --gpu")


def _named(plan: Plan, backend: Backend) -> list[DeviceInfo]:
    """The GPU of the plan, if it is there.

    Where a job sees only its own GPUs, a management library knows their indexes from the whole list. An emulated GPU is
    listed alone: some change when they are.
    """
    held = plan.given if plan.given and not plan.setting.registry else (plan.gpu or 0,)
    return [device for device in backend.devices(plan.node, held) if device.slot == plan.gpu]


def _nothing_there(plan: Plan, backend: Backend) -> str:
    where = f"node {plan.node} of the lab" if plan.setting.registry else "here"
    hint = "; name one of its nodes with --node" if plan.setting.registry else ""
    return f"backend {backend.name} finds no GPU {where}{hint}"


def _unlisted(plan: Plan, backend: Backend, index: int, seen: Sequence[DeviceInfo]) -> Report:
    """The verdict on a GPU that is not there."""
    there = ", ".join(str(device.slot) for device in seen)
    text = f"{NOT_LISTED}: no GPU {index}; there are {there}. Read dmesg, reboot the node, reseat or replace the GPU"
    device = DeviceInfo("", seen[0].vendor, "", index)
    rows = (Check("device", "listed", FAILED, text), *(_skipped(step, "the GPU is not there") for step in STEPS[1:]))
    return Report(FAILED, plan.node, device, backend.name, backend.version, None, 0.0, plan.budget_s, rows, (), "")


def _skipped(step: str, why: str, name: str = "all") -> Check:
    return checks.not_checked(step, name, why)


class _SelfTest:
    """One run. `lost` is why nothing more can be checked on this GPU."""

    def __init__(self, plan: Plan, backend: Backend, device: DeviceInfo, say: Callable[[str], None]) -> None:
        self.plan, self.backend, self.device, self.say = plan, backend, device, say
        self.began_s = time.monotonic()
        self.found: list[Check] = [checks.holds("device", "listed", True, f"{device.model} {device.uuid}")]
        self.records: list[Record] = []
        self.repeated: GpuRepeats | None = None
        self.static: Static | None = None
        self.lost = ""
        self.stopped = ""
        self.emulated = backend.name not in REAL

    def run(self) -> Report:
        """All steps. What cannot be done leaves a line that says why."""
        steps: list[tuple[str, str, float, Callable[[], None]]] = [
            ("sensors", "all", SENSORS_S, self._look),
            ("numerics", "all", NUMERICS_S, self._numerics),
            ("benchmarks", "all", self._first_s(), self._benchmarks),
            ("repeat", "all", HEAT_S + PER_RUN * 2 * SHORT_S * self.plan.runs, self._repeat),
            ("library", "all", LIBRARY_S, self._library),
            ("sampler", "all", 4 * (10.0 + PER_RUN * (SHORT_S + 3.0)), self._sampler),
        ]
        if not self._no_kernels():
            steps.append(("numerics", OTHERS, NUMERICS_S, self._other_numerics))
        for name, part, usual_s, step in steps:
            why = self.lost or self._late(name, usual_s)
            if why:
                self.found.append(_skipped(name, why, part))
            else:
                try:
                    step()
                except KeyboardInterrupt:  # between two workers: while a library is imported, say
                    self._stop("SIGINT")
                    self.found.append(_skipped(name, self.lost, part))
            if name == "benchmarks":
                self._judge()
        done = tuple(sorted(self.found, key=lambda check: STEPS.index(check.step)))
        verdict = checks.INTERRUPTED if self.stopped else checks.overall(done)
        backend, seconds = self.backend, time.monotonic() - self.began_s
        return Report(
            verdict, self.plan.node, self.device, backend.name, backend.version, self.static, seconds,
            self.plan.budget_s, done, tuple(self.records), self.stopped,
        )  # fmt: skip

    # -- time

    def _left_s(self) -> float:
        return self.plan.budget_s - (time.monotonic() - self.began_s)

    def _wall_s(self, device_s: float) -> float:
        """Wall time of so much device time."""
        return device_s * self.backend.wall_scale if self.emulated else device_s

    def _late(self, name: str, usual_s: float) -> str:
        left_s, wall_s = self._left_s(), self._wall_s(usual_s)
        if wall_s <= left_s:
            shown = f", about {wall_s:.0f} s" if wall_s >= 1 else ""
            self.say(f"{name}{shown} ({max(left_s, 0):.0f} s left)")
            return ""
        left = f"{max(left_s, 0.0):.0f} s of the time budget of {self.plan.budget_s:g} s are left"
        return f"{left}, this takes about {wall_s:.0f} s: raise --budget"

    def _timeout_s(self) -> float:
        given = self.plan.gpu_timeout_s
        return START_S + PHASE_S * self.backend.wall_scale if given is None else given

    def _serve(
        self, work: Callable[[DeviceInfo, Channel], None], hear: probes.Hear, timeout_s: float | None = None
    ) -> Ended:
        ended = probes.serve(self.device, work, hear, timeout_s or self._timeout_s(), self._left_s())
        if ended.stopped and ended.stopped != BUDGET:
            self._stop(ended.stopped)
        return ended

    def _stop(self, by: str) -> None:
        self.stopped, self.lost = by, f"stopped by {by}"

    def _broke(self, step: str, ended: Ended) -> bool:
        """Note what a step died of, if it did. After that the card answers no more, or not as it should."""
        if ended.stopped:
            why = self.lost or f"the time budget of {self.plan.budget_s:g} s ended in {ended.worker.phase}"
            self.found.append(_skipped(step, why))
            return True
        if not ended.error:
            return False
        self.found.append(Check(step, ended.worker.phase, FAILED, ended.error))
        if ended.grave:
            self.lost = f"the GPU failed in {ended.worker.phase}"
        return True

    # -- steps

    def _look(self) -> None:
        """The driver's answers, other users, sensors."""
        seen: dict[str, Any] = {}

        def hear(worker: Worker, message: dict[str, Any]) -> str:
            seen.update({k: v for k, v in message.items() if k in ("static", "others", "fields")})
            return "foreign_process" if message.get("others") else ""

        backend = self.backend
        ended = self._serve(lambda device, channel: probes.look_at(backend, device, channel), hear)
        if "static" in seen:
            self.static = Static(**seen["static"])
            rows = checks.of_settings(self.static)
            self.found += rows
            if rows[0].verdict == FAILED:
                self.lost = "a partition is no whole GPU"
        if "others" in seen:
            others = "; ".join(seen["others"])
            self.found.append(checks.holds("device", "idle", not others, f"in use by {others}" if others else "nobody"))
            if others:
                self.lost = "the GPU is in use by others"
                self.found.append(_skipped("sensors", self.lost))
                return
        if self._broke("sensors", ended):
            return
        self.found.append(checks.of_sensors(seen["fields"], self.device.vendor))
        if self.device.vendor != "nvidia":
            why = "its sensors are not NVML's"
            self.found += [checks.not_checked("sensors", name, why) for name in ("look", "GPM")]
            return
        self._nvml(probes.ask_nvml, "")
        if os.geteuid() == 0 and not self.lost:
            self._nvml(probes.ask_nvml_as_nobody, " as an ordinary user")

    def _nvml(self, work: Callable[[DeviceInfo, Channel], None], who: str) -> None:
        """What NVML answers. If it hangs, the sampler does without it, and so does the rest of the test."""
        seen: dict[str, Any] = {}

        def hear(worker: Worker, message: dict[str, Any]) -> str:
            seen.update(message.get("nvml", {}))
            return ""

        ended = self._serve(work, hear, min(NVML_S, self._timeout_s()))
        if ended.error:
            self.found.append(Check("sensors", "look" + who, FAILED, ended.error))
        elif ended.stopped:
            self._broke("sensors", ended)
        else:
            self.found += self._of_nvml(seen, who)

    def _of_nvml(self, told: dict[str, Any], who: str) -> list[Check]:
        """`who` looked, where it was not the user of this process."""
        if "error" in told:
            return [checks.not_checked("sensors", name + who, told["error"]) for name in ("look", "GPM")]
        rows = [
            checks.within("sensors", name + who, told[key], "ms", None, high, "estimate: 10 looks a second must fit")
            for name, key, high in (
                ("look", "look_ms", limits.LOOK_MS),
                ("look, 95th percentile", "look_p95_ms", limits.LOOK_P95_MS),
            )
        ]
        if told["gpm"]:
            return [*rows, checks.holds("sensors", "GPM" + who, True, "answers", "Hopper and later have it")]
        row = limits.card(self.device.vendor, self.device.model)
        denied = row is not None and limits.SHARES[row.kind].gpm
        why = "though this model has it: the driver denies it here" if denied else "only Hopper and later have it"
        return [*rows, checks.not_checked("sensors", "GPM" + who, f"gives no answer, {why}; {GPM_UNUSED}")]

    def _no_kernels(self) -> str:
        """Why no numbers can be compared here; "" where they can."""
        if self.emulated:
            return f"GPUs of backend {self.backend.name} compute nothing"
        if self.device.vendor != "nvidia":
            return "the kernels of a library are its own, and ours are for NVIDIA"
        return ""

    def _numerics(self) -> None:
        """The driver backend's kernels that a sweep runs, and those asked for, against their reference."""
        why = self._no_kernels()
        if why:
            self.found.append(_skipped("numerics", why))
        else:
            self._kernels("all")

    def _other_numerics(self) -> None:
        """The other kernels."""
        self._kernels(OTHERS)

    def _kernels(self, part: str) -> None:
        from slurm_pal.profiling.driver.check import CHECKS

        first = {*DEFAULT, *(spec.id for spec in self.plan.specs)}
        first.update(*(FALLBACKS.get(name, ()) for name in [*first]))
        names = [name for name in CHECKS if (name in first) != (part == OTHERS)]
        kernels = self._other("driver")
        if isinstance(kernels, str):
            self.found.append(_skipped("numerics", f"backend driver cannot be used: {kernels}", part))
            return
        others = [d for d in kernels.devices(self.plan.node, self.plan.given) if d.uuid != self.device.uuid]
        heard: list[dict[str, Any]] = []

        def hear(worker: Worker, message: dict[str, Any]) -> str:
            heard.append(message)
            return ""

        ended = self._serve(lambda device, channel: probes.compare(kernels, device, others, names, channel), hear)
        for message in heard:
            self._compared(message)
        self._broke("numerics", ended)

    def _compared(self, message: Mapping[str, Any]) -> None:
        name = message["numerics"]
        if "lack" in message:
            self.found.append(checks.not_checked("numerics", name, message["lack"]))
        elif "error" in message:
            self.found.append(Check("numerics", name, FAILED, message["error"]))
            if message["flag"] and self.backend.name == "driver":  # else what is measured has kernels of its own
                self.lost = f"the GPU failed in {name}"
        else:
            for found in message["found"]:
                text = "" if found["error"] <= found["limit"] else "wrong numbers: do not trust this GPU"
                self.found.append(
                    checks.within(
                        "numerics", f"{name} {found['what']}", found["error"], "of the largest", None, found["limit"],
                        "rounding of the format, or five standard errors", text,
                    )
                )  # fmt: skip

    def _other(self, name: str) -> Backend | str:
        """A backend by name, this one if it is that; or why it cannot be used."""
        if self.backend.name == name:
            return self.backend
        reason = BACKENDS[name].available({})
        if reason:
            return reason
        try:
            return open_backend(Setting(name))
        except PalError as error:
            return one_line(error)

    def _first_s(self) -> float:
        return SETUP_S + (self.plan.specs[0].seconds if self.plan.specs else 0.0)

    def _benchmarks(self) -> None:
        """All benchmarks that there is time for, by the code of a sweep."""
        plan, backend, remarks = self.plan, self.backend, dict[str, str]()
        spent_s, specs = SETUP_S, list[Benchmark]()
        for spec in plan.specs:
            if spec.peers:
                remarks[spec.id] = "it needs another GPU: a sweep measures it"
                continue
            spent_s += spec.seconds
            if self._wall_s(spent_s) > self._left_s():
                remarks[spec.id] = f"the time budget of {plan.budget_s:g} s is too short for it"
                continue
            specs.append(spec)
        place = RecordOrigin("selftest", "", plan.node, 0, plan.setting.seed, backend.name)
        heard: dict[str, Any] = {"others": ()}

        def hear(worker: Worker, message: dict[str, Any]) -> str:
            if "others" in message:
                heard["others"] = message["others"]
                worker.error = message["refused"]
                return "foreign_process" if message["others"] else ""
            if "remarks" in message:
                remarks.update(message["remarks"])
            if "record" in message:
                made = from_json(message["record"])  # a later record of the same run replaces it
                self.records = [*(r for r in self.records if r.run_id != made.run_id), made]
                return ", ".join(sorted(INVALIDATING.intersection(made.flags)))
            return ""

        order = Order(tuple(specs), "solo")
        ended = self._serve(lambda device, channel: measure_gpu(device, (), channel, backend, place, order), hear)
        rows = [checks.of_record(record) for record in self.records]
        self.found += rows
        if heard["others"]:
            self.found.append(Check("benchmarks", "alone", FAILED, f"in use by {'; '.join(heard['others'])}"))
            self.lost = "the GPU is in use by others"
        elif self.records and (spoiled := INVALIDATING.intersection(self.records[-1].flags)):
            what = ", ".join(sorted(spoiled))
            self.lost = f"the GPU was given up after {what} in {self.records[-1].bench.id}"
        elif ended.stopped or ended.error:
            self._broke("benchmarks", ended)
        shown = {check.name for check in self.found if check.step == "benchmarks"}
        ended_early = f"its worker ended in {ended.worker.phase}" if ended.error else ""
        for spec in plan.specs:
            if spec.id not in shown and (why := remarks.get(spec.id) or self.lost or ended_early):
                self.found.append(checks.not_checked("benchmarks", spec.id, why))

    def _judge(self) -> None:
        """What the records say beside that they are there."""
        valid = [record for record in self.records if record.valid]
        if valid:
            self.found.append(checks.of_rate(valid))
            self.found += [checks.of_level(record, self.device) for record in valid]
            self.found.append(checks.of_regime(valid))
        else:
            why = self.lost or "no benchmark gave a value"
            self.found += [_skipped("levels", why), _skipped("regime", why)]

    def _repeats(self, backend: Backend, names: Sequence[str], runs: int, **more: Any) -> tuple[GpuRepeats, Ended]:  # noqa: ANN401
        specs = tuple(by_id(name) for name in names)
        order = RepeatOrder(specs, runs, seconds=SHORT_S, heat=BRIEF_HEAT, preflight=False, **more)
        gathered = RepeatCollector((self.device,))
        ended = self._serve(lambda device, channel: repeat_gpu(device, channel, backend, order), gathered.hear)
        return gathered.gathered([ended.worker])[0], ended

    def _fingerprint(self) -> str:
        """The benchmark of class A that scores are formed from; "" when it gave nothing."""
        found = checks.fingerprint(self.records)
        return found.bench.id if found else ""

    def _repeat(self) -> None:
        """The fingerprint and a memory benchmark, again and again."""
        measured = {record.bench.id for record in self.records if record.valid}
        names = [name for name in (self._fingerprint(), REPEATED) if name in measured]
        if not names:
            self.found.append(_skipped("repeat", "no benchmark gave a value before"))
            return
        found, ended = self._repeats(self.backend, names, self.plan.runs)
        self.repeated = found
        if len(found.runs) >= 2 * len(names):
            self.found += checks.of_repeats(found, {name: by_id(name).sensitivity_class for name in names})
        elif not ended.stopped and not ended.error:
            self.found.append(Check("repeat", "all", FAILED, found.error or "no run gave a value"))
        self._broke("repeat", ended)

    def _library(self) -> None:
        """Our kernels beside a library's, on the fingerprint."""
        ours, name = self.backend.name == "driver", self._fingerprint()
        if self.emulated:
            self.found.append(_skipped("library", f"backend {self.backend.name} has no library beside it"))
            return
        own = self.repeated.values(name) if self.repeated else []
        if not own:
            self.found.append(_skipped("library", "no repeated run of class A to compare with"))
            return
        reasons = []
        for other in ("torch", "cupy") if ours else ("driver",):
            beside = self._other(other)
            if isinstance(beside, str):
                reasons.append(f"{other}: {beside}")
                continue
            _named(self.plan._replace(gpu=self.device.slot), beside)  # some backends must have listed what they run on
            found, ended = self._repeats(beside, (name,), 3)
            values = found.values(name)
            if values:
                driver, library = (own, values) if ours else (values, own)
                self.found.append(
                    checks.of_library(driver, library, f"{name}, driver over {other if ours else self.backend.name}")
                )
            if not self._broke("library", ended) and not values:
                self.found.append(checks.not_checked("library", other, "; ".join(found.remarks) or found.error))
            return
        self.found.append(_skipped("library", "; ".join(reasons)))

    def _sampler(self) -> None:
        """The same work with and without the sampler beside it."""
        if self.emulated:
            self.found.append(_skipped("sampler", f"GPUs of backend {self.backend.name} have a clock of their own"))
            return
        name = self._fingerprint()
        if not (name and self.repeated):
            self.found.append(_skipped("sampler", "no repeated run of class A to compare with"))
            return
        seen: list[tuple[bool, GpuRepeats]] = []
        for watched in (False, True, True, False):  # a slow drift touches both alike
            found, ended = self._repeats(self.backend, (name, *SAMPLED), 1, watched=watched)
            if self._broke("sampler", ended):
                return
            seen.append((watched, found))
        scatter = [spread(self.repeated.values(bench))["cv_pct"] for bench in self.repeated.benches]
        self.found += checks.of_sampler(seen, max((cv for cv in scatter if cv is not None), default=0.0))


def chosen(gpu: int | None, registry: str, environ: Mapping[str, str]) -> tuple[int | None, tuple[int, ...]]:
    """The index of the GPU to test (None: the first there is), and those that the job holds.

    Raises UsageError in a job for a GPU that it does not hold: somebody else may be waiting for it.
    """
    held = environ.get("SLURM_STEP_GPUS", "") or environ.get("SLURM_JOB_GPUS", "")
    given = parse_indexes(held) if held else ()
    if not environ.get("SLURM_JOB_ID"):
        return (0 if registry and gpu is None else gpu), given
    if not given:
        raise UsageError("this job holds no GPU: ask for one, like srun --gres=gpu:1 pal-profile selftest")
    if gpu is not None and gpu not in given:
        raise UsageError(f"--gpu {gpu} is not among the GPUs of this job: {', '.join(map(str, given))}")
    return (given[0] if gpu is None else gpu), given


def placed(node: str, registry: str, environ: Mapping[str, str], host: str) -> str:
    """The node's name: as given, the job's, or this host's. Raises UsageError where emulated GPUs need one."""
    inside = environ.get("SLURMD_NODENAME", "") if environ.get("SLURM_JOB_ID") else ""
    if node or inside:
        return node or inside
    if registry:
        raise UsageError(
            "outside a job, name a node of the lab or of the replayed file with --node, like n0; "
            "or run it in a job: srun --gres=gpu:1 pal-profile selftest"
        )
    return host
