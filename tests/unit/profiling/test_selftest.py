# SPDX-License-Identifier: MIT
"""pal-profile selftest: what holds, what does not and why, what could not be checked; on emulated and stand-in GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.cli import pal_profile
from slurm_pal.emulation.gpus import draw_registry, load_registry, set_fault, write_registry
from slurm_pal.profiling.driver import check
from slurm_pal.profiling.driver.backend import DriverBackend, DriverKernel
from slurm_pal.profiling.node import backends, benchmarks
from slurm_pal.profiling.node.backends import BACKENDS, BackendChoice, Setting
from slurm_pal.profiling.node.benchmarks import Benchmark, select
from slurm_pal.profiling.node.devices import Counters, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.emu import Device, EmuBackend, EmuKernel, EmuTelemetry
from slurm_pal.profiling.node.repeat import GpuRepeats, HotRun
from slurm_pal.profiling.node.workers import Channel, Worker
from slurm_pal.profiling.selftest import checks, probes, run
from slurm_pal.profiling.selftest.checks import FAILED, NOT_CHECKED, OK, Check
from slurm_pal.profiling.selftest.run import Plan, Report, _SelfTest
from slurm_pal.variability.records import from_json

from ...doubles.null_telemetry import NullWatch
from ...doubles.processes import in_session
from ...doubles.watchdog import HOUR_S, hasten
from ..driver_double.machine import Machine, compiled, machine

__all__ = ["compiled", "machine"]

SMALL = check.SHAPES | {"hbm_triad": "3x64KiB", "hbm_copy": "2x64KiB", "allreduce": "256KiB-ring"}
PAL_PROFILE = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import profile; profile()"]
PATIENCE_S = 120.0
ALL_CHECKS = dict(check.CHECKS)


def children() -> set[str]:
    found: set[str] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # the thread has ended meanwhile
            found.update(Path(f"/proc/self/task/{task}/children").read_text().split())
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No test may leave a process, an open file, a handler or a timer."""
    before, there = sorted(os.listdir("/proc/self/fd")), children()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    assert children() <= there
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert [signal.getsignal(number) for number in numbers] == handlers
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


class Card:
    """A registry of emulated GPUs and the command on one of them."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.registry = str(tmp_path / "gpus.json")
        write_registry(self.registry, draw_registry(["n0"], 4, 5))
        for name in [name for name in os.environ if name.startswith("SLURM")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def run(self, *argv: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        self._monkeypatch.setattr(sys, "argv", ["pal-profile", *argv])
        with pytest.raises(SystemExit) as ended:
            pal_profile.main()
        out, err = self._capsys.readouterr()
        return int(ended.value.code or 0), out, err

    def words(self, *more: str) -> list[str]:
        return ["selftest", "--registry", self.registry, "--node", "n0", "--wall-scale", "0", *more]

    def tested(self, *more: str) -> tuple[int, dict[str, Any]]:
        code, out, err = self.run(*self.words(*more, "--json"))
        assert err == ""
        table: dict[str, Any] = json.loads(out)
        return code, table


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Card:
    return Card(tmp_path, monkeypatch, capsys)


def rows(table: dict[str, Any], verdict: str) -> dict[str, str]:
    return {f"{c['step']} {c['name']}": c["text"] for c in table["checks"] if c["verdict"] == verdict}


def test_a_healthy_gpu_holds_and_what_cannot_run_is_not_called_good(card: Card) -> None:
    code, table = card.tested("--gpu", "1")
    assert code == Exit.OK and (table["schema"], table["verdict"]) == ("pal.selftest/1", "ok")
    assert table["gpu"]["index"] == 1 and table["backend"] == "emu" and table["limits_of"] == "emulator"
    counts = table["counts"]
    assert counts["failed"] == 0 and counts["ok"] + counts["not_checked"] == len(table["checks"])
    assert {c["step"] for c in table["checks"]} == set(run.STEPS)
    left = rows(table, NOT_CHECKED)
    assert {"numerics all", "library all", "sampler all", "benchmarks p2p", "sensors GPM"} <= left.keys()
    assert all(left.values())
    assert [c for c in table["checks"] if c["verdict"] == OK and c["step"] in ("numerics", "library", "sampler")] == []
    gemm = next(c for c in table["checks"] if c["name"] == "gemm_bf16 level")
    assert gemm["low"] < gemm["value"] < gemm["high"] and gemm["unit"] == "TFLOP/s" and gemm["source"]
    record = next(r for r in table["records"] if r["bench"]["id"] == "gemm_bf16")
    assert record["result"]["value"] == gemm["value"] and record["schema"] == "pal.record/1"
    cv = next(c for c in table["checks"] if c["name"] == "gemm_bf16 CV")
    assert 0 < cv["value"] < cv["high"] == 0.5 and cv["text"].startswith("10 runs: ")


def test_the_verdict_comes_first(card: Card) -> None:
    code, out, _ = card.run(*card.words("--bench", "gemm_bf16,hbm_triad"))
    first, second, blank, header, *table = out.splitlines()
    assert code == Exit.OK and first.startswith("selftest ok: ") and "not checked; GPU n0:0 PAL Emulated GPU" in first
    assert (second, blank) == ("limits: those of emulated GPUs", "") and header.startswith("STEP  ")
    assert any(line.startswith("numerics") and "not checked" in line and "compute nothing" in line for line in table)
    set_fault(card.registry, "n0", 0, "throttle", 1.3)
    code, out, _ = card.run(*card.words("--bench", "gemm_bf16,hbm_triad"))
    assert code == Exit.FAILED and out.startswith("selftest failed: 4 of ")
    assert "\n  benchmarks gemm_bf16, hbm_triad: the board held the clock back" in out


@pytest.mark.parametrize(
    ("fault", "value", "where", "why"),
    [
        ("foreign_process", True, "device idle", "in use by pid 4711"),
        ("ecc", True, "benchmarks gemm_bf16", "memory errors that could not be corrected"),
        ("error", True, "benchmarks gemm_bf16", "has fallen off the bus (Xid 79)"),
        ("mig", True, "device MIG off", "a partition is no whole GPU"),
        ("missing", True, "device listed", "the driver does not list it: no GPU 1; there are 0, 2, 3"),
        ("noisy", True, "benchmarks gemm_bf16", "blocks of a second scatter by more than 0.5 %"),
        ("drift", 1.3, "levels gemm_bf16 level", "below what such a card reaches"),
        ("throttle", 1.2, "regime class A under the power cap", "its clock was held back by hw_slowdown"),
        ("thermal", 1.2, "benchmarks gemm_tf32", "check cooling"),
        ("power_brake", 1.2, "regime class A under the power cap", "held back by power_brake"),
        ("pcie", 4.0, "benchmarks pcie_h2d", "fewer lanes"),
        ("host", 2.0, "levels launch_latency level", "above what such a card reaches"),
    ],
)
def test_a_fault_fails_with_its_reason(card: Card, fault: str, value: float | bool, where: str, why: str) -> None:
    set_fault(card.registry, "n0", 1, fault, value)
    code, table = card.tested("--gpu", "1", "--runs", "3")
    assert code == Exit.FAILED and table["verdict"] == FAILED
    assert why in rows(table, FAILED)[where]
    assert {c["step"] for c in table["checks"]} == set(run.STEPS)  # each step says something


@pytest.mark.parametrize("fault", ["foreign_process", "ecc", "error", "mig", "missing"])
def test_nothing_is_judged_on_a_gpu_that_was_given_up(card: Card, fault: str) -> None:
    set_fault(card.registry, "n0", 1, fault)
    _, table = card.tested("--gpu", "1")
    late = [c for c in table["checks"] if c["step"] in ("levels", "regime", "repeat", "library", "sampler")]
    assert {c["verdict"] for c in late} == {NOT_CHECKED} and len(rows(table, FAILED)) == 1


def test_a_gpu_that_hangs_is_given_up(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_fault(card.registry, "n0", 0, "hang")
    hasten(tmp_path, monkeypatch)
    code, table = card.tested()
    assert code == Exit.FAILED
    assert rows(table, FAILED) == {"benchmarks gemm_bf16": "no answer within 30 s in gemm_bf16"}
    assert rows(table, NOT_CHECKED)["repeat all"] == "the GPU failed in gemm_bf16"


def test_no_gpu_no_library_no_node(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and the exit code of what is missing."""
    code, out, err = card.run("selftest", "--registry", card.registry)
    assert (code, out) == (Exit.USAGE, "") and "--node" in err and err.count("\n") == 1
    code, out, err = card.run("selftest", "--registry", card.registry, "--node", "n9")
    assert (code, out) == (Exit.MISSING, "")
    assert err == "pal-profile: error: backend emu finds no GPU node n9 of the lab; name one of its nodes with --node\n"
    monkeypatch.setattr("slurm_pal.profiling.driver.backend.LIBRARY", "/no/libcuda.so.1")
    code, out, err = card.run("selftest", "--backend", "driver")
    assert (code, out, err.count("\n")) == (Exit.MISSING, "", 1) and "libcuda cannot be loaded (/no/libcuda.so.1" in err
    monkeypatch.setattr(
        backends, "BACKENDS", BACKENDS | {n: BACKENDS[n]._replace(available=lambda e: "none") for n in backends.REAL}
    )
    code, out, err = card.run("selftest", "--backend", "auto")
    assert (code, out) == (Exit.MISSING, "")
    assert err == "pal-profile: error: no GPU here that can be measured (torch: none; driver: none; cupy: none)\n"
    assert card.run("selftest", "--gpu", "-1")[0] == card.run("selftest", "--bench", "gather")[0] == Exit.USAGE


def test_a_busy_host_spoils_only_what_it_slows(card: Card) -> None:
    set_fault(card.registry, "n0", 0, "host", 2.0)
    _, table = card.tested()
    assert not [name for name in rows(table, FAILED) if name.startswith("benchmarks ")]
    left = {name.partition(" ")[2] for name, why in rows(table, NOT_CHECKED).items() if "processors were busy" in why}
    assert left == {"tblock", "pcie_h2d", "pcie_d2h", "launch_latency"}
    assert rows(table, OK)["benchmarks gemm_bf16"].endswith("; host_noise")


def test_a_power_limit_is_shown_and_does_not_fail_a_card(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    static = EmuTelemetry.static

    def limited(self: EmuTelemetry, device: DeviceInfo) -> Static:
        return static(self, device)._replace(power_limit_w=250.0)

    monkeypatch.setattr(EmuTelemetry, "static", limited)
    _, table = card.tested("--runs", "2")
    assert rows(table, FAILED) == {} and table["verdict"] == OK
    assert rows(table, NOT_CHECKED)["device default limits"].startswith("power limit 250 W of 300 W: it is compared ")


def test_what_the_sampler_changes_is_seen() -> None:
    """Twice with it, twice without; the bound is no finer than runs repeat."""
    device = DeviceInfo("GPU-0", "nvidia", "m", 0)

    def ran(value: float, share: float) -> GpuRepeats:
        run = HotRun("hbm_copy", "GB/s", value, 0.1, 0.1, True, (), "", None, None, None, None)
        return GpuRepeats(device, (run,), sampler_share=share)

    seen = [(False, ran(100.0, 0.0)), (True, ran(99.55, 0.03)), (True, ran(99.65, 0.02)), (False, ran(100.0, 0.0))]
    effect, core = checks.of_sampler(seen, 0.05)
    assert (effect.verdict, effect.value, effect.low) == (FAILED, pytest.approx(-0.4), -0.2)
    assert (core.verdict, core.value) == (OK, pytest.approx(3.0))
    assert checks.of_sampler(seen, 0.2)[0].verdict == OK
    seen[3] = (False, ran(99.5, 0.0))  # no more than runs without it differ by
    assert checks.of_sampler(seen, 0.05)[0].verdict == OK


def test_a_job_tests_only_its_own_gpus(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    words = ["selftest", "--registry", card.registry, "--wall-scale", "0", "--bench", "hbm_triad"]
    code, out, err = card.run(*words)
    assert (code, out) == (Exit.USAGE, "") and "this job holds no GPU" in err and err.count("\n") == 1
    monkeypatch.setenv("SLURM_JOB_GPUS", "1-3")
    monkeypatch.setenv("SLURM_STEP_GPUS", "2,3")
    code, out, err = card.run(*words, "--gpu", "1")
    assert (code, out) == (Exit.USAGE, "") and "--gpu 1 is not among the GPUs of this job: 2, 3" in err
    code, out, _ = card.run(*words)
    assert code == Exit.OK and "; GPU n0:2 " in out
    code, out, _ = card.run(*words, "--gpu", "3")
    assert code == Exit.OK and "; GPU n0:3 " in out


def test_a_process_that_comes_later_spoils_it(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look finds nobody; then a run's counters show somebody."""
    calls = []

    def counters(self: EmuTelemetry, device: DeviceInfo) -> Counters:
        calls.append(1)
        return Counters(others=("pid 99 of uid 1000",) if len(calls) > 3 else ())

    monkeypatch.setattr(EmuTelemetry, "counters", counters)
    code, table = card.tested()
    bad = rows(table, FAILED)
    assert code == Exit.FAILED and list(bad.values()) == ["another process was on the GPU"]
    assert "given up after foreign_process" in rows(table, NOT_CHECKED)["repeat all"]


def test_ctrl_c_between_two_workers_keeps_what_was_found(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: _SelfTest) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_SelfTest, "_library", interrupted)
    code, table = card.tested("--runs", "2")
    assert (code, table["verdict"], table["stopped"]) == (130, "interrupted", "SIGINT")
    left = rows(table, NOT_CHECKED)
    assert left["library all"] == left["sampler all"] == "stopped by SIGINT" and table["counts"]["ok"] > 20


def test_a_budget_too_short_shows_what_it_left_out(card: Card) -> None:
    code, out, err = card.run(
        "selftest", "--registry", card.registry, "--node", "n0", "--wall-scale", "1", "--budget", "5"
    )
    assert (code, err) == (Exit.PARTIAL, "") and out.startswith("selftest incomplete: no benchmark was run")
    assert "this takes about 46 s: raise --budget" in out


def test_time_that_runs_out_in_a_step_ends_it_and_keeps_what_was_said() -> None:
    device = DeviceInfo("GPU-0", "test", "model", 0)
    heard: list[dict[str, Any]] = []

    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.send({"number": 1})
        channel.enter("sleeping")
        time.sleep(HOUR_S)

    def hear(worker: Worker, message: dict[str, Any]) -> str:
        heard.append(message)
        return ""

    ended = probes.serve(device, work, hear, timeout_s=PATIENCE_S, left_s=1.0)
    assert (ended.stopped, ended.error, ended.worker.phase) == (probes.BUDGET, "", "sleeping")
    assert heard == [{"number": 1}]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_what_was_found(card: Card, number: signal.Signals, code: int) -> None:
    words = [*PAL_PROFILE, "selftest", "--registry", card.registry, "--node", "n0", "--wall-scale", "1"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    path = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    deadline_s = time.monotonic() + PATIENCE_S
    while not path.read_text():  # its first worker: it idles for two seconds to see who else is there
        assert time.monotonic() < deadline_s and child.poll() is None
        time.sleep(0.02)
    os.kill(child.pid, number)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, err) == (code, "")
    assert re.match(rf"selftest interrupted: by {number.name}; \d checks held, 0 did not", out)
    assert f"stopped by {number.name}" in out
    assert in_session(child.pid) == []


# -- the driver's kernels, on the double of the driver


class Wrong(DriverBackend):
    """A GPU whose product of one benchmark has one wrong number."""

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> DriverKernel:
        kernel = super().prepare(device, spec, peers)
        if spec.id == "gemm_fp32":
            read = kernel.read

            def spoilt(array: Any) -> bytes:  # noqa: ANN401
                kernel._gpus[0].wait()
                if array == kernel.arrays["c"]:
                    ctypes.memset(array.address, 0x41, 4)  # 12.08: what such a product of normal numbers may be
                return read(array)

            kernel.read = spoilt  # type: ignore[method-assign]
        return kernel


class Stuck(DriverBackend):
    """A GPU that answers no more."""

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> DriverKernel:
        time.sleep(HOUR_S)
        return super().prepare(device, spec, peers)


def numerics(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    names: str,
    kind: type[DriverBackend] = DriverBackend,
    given: tuple[int, ...] = (),
) -> tuple[list[Check], str]:
    """The step on the double, for these benchmarks: its checks, and why nothing more can be done on the GPU."""
    monkeypatch.setattr(check, "SHAPES", SMALL)
    monkeypatch.setattr(check, "CHECKS", {name: ALL_CHECKS[name] for name in names.split()})
    backend = machine.backend()
    backend.__class__ = kind
    plan = Plan(Setting("driver"), "n0", 0, given, select(""), 2, PATIENCE_S)
    test = _SelfTest(plan, backend, machine.devices[0], lambda text: None)
    test.found.clear()
    test._numerics()
    return test.found, test.lost


def verdicts(found: list[Check]) -> dict[str, str]:
    return {c.name.partition(" ")[0]: c.verdict for c in found if c.verdict != OK}


def test_the_kernels_of_a_sound_gpu_agree_with_their_reference(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, lost = numerics(machine, monkeypatch, "gemm_fp32 tblock hbm_triad p2p allreduce", given=(0, 1))
    assert lost == "" and verdicts(found) == {}
    names = {c.name for c in found}
    assert {"gemm_fp32 product", "hbm_triad b + s c", "p2p target as source, GPU 1"} <= names
    assert any(name.startswith("tblock ") for name in names)
    found, _ = numerics(
        machine, monkeypatch, "hbm_copy p2p allreduce"
    )  # no other GPU in the job: those of other jobs are not touched
    assert verdicts(found) == {"p2p": NOT_CHECKED, "allreduce": NOT_CHECKED}


def test_wrong_numbers_are_found(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = numerics(machine, monkeypatch, "gemm_tf32 gemm_fp32 hbm_copy", Wrong)
    (bad,) = [c for c in found if c.verdict == FAILED]
    assert bad.name == "gemm_fp32 product" and bad.text == "wrong numbers: do not trust this GPU"
    assert bad.value is not None and bad.high is not None and bad.value > bad.high
    machine.double.double_peers(2)  # what is copied between GPUs does not arrive
    found, _ = numerics(machine, monkeypatch, "hbm_copy p2p allreduce", given=(0, 1))
    assert {c.name.partition(" ")[0] for c in found if c.verdict == FAILED} == {"p2p", "allreduce"}


def test_a_device_fault_ends_the_step_and_the_test(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.fail("hbm_triad", 719)
    found, lost = numerics(machine, monkeypatch, "hbm_copy hbm_triad launch_latency")
    assert found[-1].name == "hbm_triad" and "unspecified launch failure" in found[-1].text
    assert verdicts(found)["hbm_triad"] == FAILED and lost == "the GPU failed in hbm_triad"


def test_a_driver_that_hangs_is_given_up(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hasten(tmp_path, monkeypatch)
    found, lost = numerics(machine, monkeypatch, "gemm_bf16 hbm_copy", Stuck)
    assert [(c.name, c.verdict) for c in found] == [("gemm_bf16", FAILED)]
    assert found[0].text.startswith("no answer within ") and lost == "the GPU failed in gemm_bf16"


def test_all_steps_run_through_the_driver_backend(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the double of the driver: benchmarks of small shapes, a clock that jumps, sensors that see nothing."""
    monkeypatch.setattr(check, "SHAPES", SMALL)
    monkeypatch.setattr(check, "CHECKS", {name: ALL_CHECKS[name] for name in ("gemm_fp32", "hbm_copy", "gemm_fp64")})
    monkeypatch.setattr(probes, "_EYES_S", 0.1)
    small = tuple(b._replace(shape=SMALL.get(b.id, b.shape), work=1e12) for b in benchmarks.BENCHMARKS)
    monkeypatch.setattr(benchmarks, "BENCHMARKS", small)
    missing = BackendChoice("", lambda environ: "is not here", lambda setting: machine.backend())
    monkeypatch.setattr(run, "BACKENDS", BACKENDS | {"torch": missing, "cupy": missing})
    machine.double.double_launch_s(2.0)
    specs = select("gemm_fp32,hbm_triad,hbm_copy,launch_latency")
    plan = Plan(Setting("driver"), "n0", 0, (0,), specs, 2, 10000.0)
    report = _SelfTest(plan, machine.backend(), machine.devices[0], lambda text: None).run()
    good, left, bad = (of(report, verdict) for verdict in (OK, NOT_CHECKED, FAILED))
    kernels = [check.name for check in report.checks if check.step == "numerics" and check.name.endswith("product")]
    assert kernels == ["gemm_fp32 product", "gemm_fp64 product"]
    assert {"numerics gemm_fp32 product", "numerics hbm_copy a as b", "device idle", "device MIG off"} <= good.keys()
    assert {r.bench.id for r in report.records if r.valid} == {spec.id for spec in specs}
    assert {
        "sampler effect on gemm_fp32",
        "sampler effect on hbm_copy",
        "sampler effect on launch_latency",
    } <= good.keys()
    assert left["library all"].text == "torch: is not here; cupy: is not here"
    assert left["levels gemm_fp32 level"].text == "no peaks are known for model 'double'"
    assert left["repeat gemm_fp32 CV"].text.startswith("all 2 runs gave the same value")
    assert left["regime class A under the power cap"].text == "throttle reasons are not reported"
    assert "sensors look" in left and bad["sensors fields"].text.startswith("not reported: ")


# -- a whole test of what claims to be a real card


class Claimed(EmuBackend):
    """Emulated physics under a real name: `speed` are values by benchmark, others nominal."""

    def __init__(self, registry: str, name: str, model: str, speed: dict[str, float]) -> None:
        super().__init__(load_registry(registry), 0, 0.0)
        self.name, self._model, self._speed = name, model, speed

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        found = super().devices("n0", [i for i in indexes if i < 4])
        return tuple(d._replace(vendor="nvidia", model=self._model) for d in found)

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> EmuKernel:
        return super().prepare(device, spec._replace(nominal=self._speed.get(spec.id, spec.nominal)), peers)


H200 = {
    "gemm_bf16": 470.0,
    "gemm_tf32": 240.0,
    "gemm_fp32": 45.0,
    "tblock": 80.0,
    "hbm_triad": 4200.0,
    "hbm_copy": 4200.0,
}


def answers(device: DeviceInfo) -> dict[str, Any]:
    """NVML as it should be."""
    return {"look_ms": 3.0, "look_p95_ms": 5.0, "gpm": True}


def claimed(
    card: Card,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    speed: dict[str, float],
    library: float | None = 700.0,
    nvml: Callable[[DeviceInfo], dict[str, Any]] = answers,
    gpu: int = 0,
    given: tuple[int, ...] = (),
    compare: Callable[..., None] = lambda *them: them[-1].send({"numerics": "gemm_bf16", "lack": "a stand-in"}),
) -> Report:
    """The whole test by the driver backend on such a card, PyTorch beside it if it has a speed."""
    here = Claimed(card.registry, "driver", model, speed)
    beside = Claimed(card.registry, "torch", model, speed | {"gemm_bf16": library or 1.0})
    missing = "PyTorch is not installed"
    table = {
        "driver": BackendChoice("", lambda environ: "", lambda setting: here),
        "torch": BackendChoice("", lambda environ: "" if library else missing, lambda setting: beside),
        "cupy": BackendChoice("", lambda environ: "CuPy for CUDA is not installed", lambda setting: beside),
    }
    for module in (run, backends):
        monkeypatch.setattr(module, "BACKENDS", BACKENDS | table)
    monkeypatch.setattr(probes, "compare", compare)
    monkeypatch.setattr(probes, "_nvml", nvml)
    return run.selftest(Plan(Setting("driver"), "n0", gpu, given, select(""), 4, 460.0), lambda text: None)


def of(report: Report, verdict: str) -> dict[str, Check]:
    return {f"{c.step} {c.name}": c for c in report.checks if c.verdict == verdict}


def test_a_card_with_known_peaks_is_judged_by_them(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    report = claimed(card, monkeypatch, "NVIDIA H200", H200)
    assert (report.verdict, of(report, FAILED)) == ("ok", {})
    good = of(report, OK)
    level = good["levels gemm_bf16 level"]
    assert level.low == pytest.approx(0.35 * 989) and level.high == pytest.approx(1.1 * 989)
    assert level.source == "H200 SXM: bf16 peak 989 TFLOP/s by datasheet, at least 35 % of it by estimate"
    share = good["library gemm_bf16, driver over torch"].value
    assert share == pytest.approx(470 / 700, rel=0.01)
    assert {"sampler effect on gemm_bf16", "sampler effect on hbm_copy", "sampler share of a core"} <= good.keys()
    assert {"sensors GPM", "sensors look", "repeat gemm_bf16 CV", "repeat hbm_triad CV"} <= good.keys()


def test_a_job_that_sees_only_its_gpus_finds_the_right_one(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NVML in a job's cgroup: indexes 2 and 3 are the first and second GPU that is seen."""
    devices = Claimed.devices

    def seen(self: Claimed, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        visible = devices(self, node, (2, 3))
        order = sorted(indexes) if len(indexes) == len(visible) else range(len(visible))
        slots = dict(zip(order, visible, strict=True))
        return tuple(slots[i]._replace(slot=i) for i in indexes if i in slots)

    monkeypatch.setattr(Claimed, "devices", seen)
    report = claimed(card, monkeypatch, "NVIDIA H200", H200, gpu=3, given=(2, 3))
    assert (report.verdict, report.device.slot) == ("ok", 3)
    assert report.device.uuid == load_registry(card.registry).gpu("n0", 3).uuid


def test_a_kernel_of_no_sweep_that_faults_or_hangs_costs_no_other_check(
    card: Card, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """gemm_bf16_wgmma has never run on a card: it comes last."""

    def faults(backend: object, device: DeviceInfo, others: object, names: Sequence[str], channel: Channel) -> None:
        for name in names:
            channel.enter(name)
            if name == "gemm_bf16_wgmma":
                channel.send({"numerics": name, "error": "CUDA_ERROR_ILLEGAL_INSTRUCTION", "flag": "xid"})
                return
            channel.send({"numerics": name, "found": []})

    def hangs(backend: object, device: DeviceInfo, others: object, names: Sequence[str], channel: Channel) -> None:
        if "gemm_bf16_wgmma" in names:
            time.sleep(HOUR_S)

    report = claimed(card, monkeypatch, "NVIDIA H200", H200, compare=faults)
    assert of(report, FAILED).keys() == {"numerics gemm_bf16_wgmma"}
    assert {"levels gemm_bf16 level", "sampler effect on gemm_bf16"} <= of(report, OK).keys()
    hasten(tmp_path, monkeypatch)
    report = claimed(card, monkeypatch, "NVIDIA H200", H200, compare=hangs)
    (bad,) = of(report, FAILED).values()
    assert bad.step == "numerics" and bad.text.startswith("no answer within ")
    assert {"levels gemm_bf16 level", "sampler effect on gemm_bf16"} <= of(report, OK).keys()


def test_an_error_of_our_own_is_no_fault_of_the_gpu(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*them: object) -> None:
        raise ValueError("cannot reshape")

    report = claimed(card, monkeypatch, "NVIDIA H200", H200, compare=broken)
    assert {check.text for check in of(report, FAILED).values()} == {"cannot reshape"}
    assert {"levels gemm_bf16 level", "sampler effect on gemm_bf16"} <= of(report, OK).keys()


def test_an_error_of_our_own_in_a_benchmark_leaves_no_benchmark_without_a_line(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Claimed.prepare

    def broken(self: Claimed, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> EmuKernel:
        if spec.id == "tblock":
            raise ValueError("cannot reshape")
        return prepare(self, device, spec, peers)

    monkeypatch.setattr(Claimed, "prepare", broken)
    report = claimed(card, monkeypatch, "NVIDIA H200", H200)
    shown = [check.name for check in report.checks if check.step == "benchmarks"]
    assert sorted(shown) == sorted(spec.id for spec in select(""))
    assert of(report, FAILED)["benchmarks tblock"].text == "cannot reshape"
    assert of(report, NOT_CHECKED)["benchmarks hbm_triad"].text == "its worker ended in tblock"
    assert "repeat gemm_bf16 CV" in of(report, OK)


def test_a_gpu_that_is_tested_is_held_until_the_end(
    card: Card, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without persistence mode the driver would stop it after each step."""
    (tmp_path / "nvidia3").touch()
    devices, held = Claimed.devices, list[bool]()

    def seen(self: Claimed, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        return tuple(d._replace(minor=3) for d in devices(self, node, indexes))

    def sampler(self: _SelfTest) -> None:
        files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        held.append(str(tmp_path / "nvidia3") in files)

    monkeypatch.setattr(Claimed, "devices", seen)
    monkeypatch.setattr(_SelfTest, "_sampler", sampler)
    monkeypatch.setattr(probes, "DEVICES", str(tmp_path))
    claimed(card, monkeypatch, "NVIDIA H200", H200)
    assert held == [True]  # and it is closed: nothing_left_behind
    monkeypatch.setattr(probes, "DEVICES", str(tmp_path / "none"))
    assert claimed(card, monkeypatch, "NVIDIA H200", H200).verdict == OK


@pytest.mark.parametrize(
    ("word", "slot"),
    [("", 0), ("2,0", 2), ("GPU-b", 1), ("GPU-b,GPU-a", 1), ("7", None), ("-1", None), ("MIG-1", None)],
)
def test_without_a_job_cuda_visible_devices_names_the_gpu(word: str, slot: int | None) -> None:
    seen = [DeviceInfo(f"GPU-{name}", "nvidia", "m", i) for i, name in enumerate("abc")]
    if slot is None:
        with pytest.raises(UsageError, match=f"CUDA_VISIBLE_DEVICES={word} names no GPU here; there are 0, 1, 2: "):
            run._visible(word, seen)
    else:
        assert run._visible(word, seen).slot == slot
    assert run._visible(word, [seen[2]._replace(vendor="amd")]).slot == 2


def test_the_command_heeds_cuda_visible_devices(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []

    def noted(plan: Plan, say: object) -> Report:
        plans.append(plan.visible)
        raise UsageError("enough")

    monkeypatch.setattr(run, "selftest", noted)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7")
    card.run(*card.words())
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0")
    card.run(*card.words())
    assert plans == ["GPU-7", ""]  # in a job Slurm's own numbers count


HANGS = """
import ctypes, sys
from slurm_pal.cli.pal_profile import main
from slurm_pal.profiling.selftest import run
run.open_backend = lambda setting: print("asked", flush=True) or ctypes.CDLL(None).sleep(3600)
sys.argv = ["pal-profile", "selftest", "--backend", "driver", *sys.argv[1:]]
main()
"""


def test_a_driver_that_hangs_when_it_lists_its_gpus_is_given_up(tmp_path: Path) -> None:
    environ = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    words = [sys.executable, "-P", "-c", HANGS]
    done = subprocess.run(
        [*words, "--gpu-timeout-s", "0.5"], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (Exit.FAILED, "asked\n", 1)
    assert done.stderr.startswith("selftest failed: no answer within 0.5 s when the driver was asked for its GPUs")
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdout.readline() == "asked\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=PATIENCE_S) == ("", "") and child.returncode == -signal.SIGINT


ALONE = """
import importlib.abc, sys
class Only(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("slurm_pal", "click"):
            raise ImportError(name)
sys.meta_path.insert(0, Only())
from slurm_pal.cli.start import profile
profile()
"""
LOADING = """
import sys
from slurm_pal.cli.start import profile
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("slurm_pal.profiling"):
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
profile()
"""


def test_it_needs_no_more_than_click_to_begin(card: Card) -> None:
    """On a machine without a network: as docs/selftest.md says."""
    words = [sys.executable, "-P", "-c", ALONE, *card.words("--bench", "hbm_triad", "--runs", "2")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (Exit.OK, "") and done.stdout.startswith("selftest ok: ")


@pytest.mark.parametrize("words", [["selftest"], ["plan"]])
def test_ctrl_c_while_it_is_loaded_is_one_line(words: list[str]) -> None:
    words = [sys.executable, "-P", "-c", LOADING, *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "pal-profile: interrupted\n")


def test_the_first_look_may_take_as_long_as_the_driver_to_start_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Late(NullWatch):
        def sample(self) -> SensorSample:
            return SensorSample(now[0], temp_c=30.0 if now[0] > 8.0 else None)

    class Cards:
        class telemetry:
            watch = staticmethod(lambda device: Late())

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(probes, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    fields = cast(Callable[[object, object], list[str]], probes._fields)
    assert fields(Cards, None) == ["temp_c"]
    monkeypatch.setattr(Late, "take", lambda self: (SensorSample(0.0),))
    now[0] = 0.0
    assert fields(Cards, None) == [] and now[0] == 0.0  # it looked, and saw nothing


def test_a_root_that_cannot_become_a_user_fails_no_card(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with one user, or without CAP_SETGID."""

    def denied(groups: list[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "setgroups", denied)
    report = claimed(card, monkeypatch, "NVIDIA H200", H200)
    assert report.verdict == OK
    assert "cannot become an ordinary user" in of(report, NOT_CHECKED)["sensors look as an ordinary user"].text


def test_values_that_no_such_card_has_fail(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = H200 | {"gemm_bf16": 1200.0, "hbm_triad": 3000.0}
    report = claimed(card, monkeypatch, "NVIDIA H200", speed, library=None)
    bad = of(report, FAILED)
    assert bad.keys() == {"levels gemm_bf16 level", "levels hbm_triad level"}
    assert "counted wrongly" in bad["levels gemm_bf16 level"].text
    assert "below what such a card reaches" in bad["levels hbm_triad level"].text
    assert of(report, NOT_CHECKED)["library all"].text == (
        "torch: PyTorch is not installed; cupy: CuPy for CUDA is not installed"
    )
    slow = claimed(card, monkeypatch, "NVIDIA H200", H200, library=1200.0)
    assert of(slow, FAILED).keys() == {"library gemm_bf16, driver over torch"}


def test_a_slow_launch_is_slow_and_a_quick_one_is_counted_wrongly(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    for latency_us, why in ((50.0, "150 % above what such a card reaches"), (0.2, "counted wrongly")):
        speed = H200 | {"launch_latency": latency_us}
        (bad,) = of(claimed(card, monkeypatch, "NVIDIA H200", speed), FAILED).values()
        assert bad.name == "launch_latency level" and bad.text.endswith(why)


def test_a_narrow_link_spoils_no_product(card: Card) -> None:
    set_fault(card.registry, "n0", 1, "pcie", 4.0)
    _, table = card.tested("--gpu", "1", "--runs", "2")
    bad = {name.partition(" ")[2] for name in rows(table, FAILED) if name.startswith("benchmarks ")}
    assert bad == {"pcie_h2d", "pcie_d2h", "launch_latency"}
    assert rows(table, OK)["benchmarks gemm_bf16"].endswith("; pcie_link")


def test_an_unknown_model_is_judged_by_what_needs_no_peak(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    report = claimed(card, monkeypatch, "NVIDIA Z9", H200)
    left = of(report, NOT_CHECKED)
    assert left["levels gemm_bf16 level"].text == "no peaks are known for model 'NVIDIA Z9'"
    assert report.verdict == "ok" and report.to_json()["limits_of"] is None
    assert {"levels pcie_h2d level", "levels launch_latency level", "repeat gemm_bf16 CV"} <= of(report, OK).keys()


def test_a_card_that_never_caps_fails_the_regime(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "reasons", property(lambda self: 0))
    monkeypatch.setattr(Device, "power_w", property(lambda self: 250.0))
    found = of(claimed(card, monkeypatch, "NVIDIA H200", H200), FAILED)
    assert found.keys() == {"regime class A under the power cap"}
    assert found["regime class A under the power cap"].text.endswith("their classes are flat")


def test_the_regime_is_that_of_the_benchmark_that_scores_are_formed_from(card: Card) -> None:
    """One that meets the cap comes first, as on a V100: `classify` chooses so, and the card is none the worse."""
    _, table = card.tested("--runs", "2")
    records = [from_json(json.dumps(record)) for record in table["records"]]
    below = [
        replace(
            r, telemetry=r.telemetry | {"duty": r.telemetry["duty"] | {"power_cap": 0.0}, "power_w": {"p50": 240.0}}
        )
        if i < 2
        else r
        for i, r in enumerate(records)
    ]
    found = checks.of_regime(below)
    first = checks.fingerprint(below)
    assert first and first.bench.id == "gemm_fp32" and found.verdict == OK and found.value == 100.0
    assert found.text.startswith("gemm_fp32: ")
    assert found.text.endswith("; it counts, since it meets the cap: not so gemm_bf16, gemm_tf32")
    by_power = [replace(r, telemetry={k: v for k, v in r.telemetry.items() if k != "duty"}) for r in below]
    assert checks.of_regime(by_power).verdict == OK and checks.of_regime(by_power).value is None
    assert checks.of_regime(by_power[:2]).verdict == NOT_CHECKED and checks.of_regime(below[:2]).verdict == FAILED


def test_a_file_repeats_nothing(card: Card, tmp_path: Path) -> None:
    """What cannot be shown by replayed runs is not checked, and the rest is judged without limits."""
    (tmp_path / "runs.csv").write_text("uuid,perf,input_size\nG0,70,8192\nG1,80,8192\n")
    words = ["--backend", "replay", "--registry", str(tmp_path / "runs.csv"), "--node", "r0"]
    code, out, _ = card.run("selftest", *words, "--json")
    table = json.loads(out)
    left = rows(table, NOT_CHECKED)
    assert code == Exit.OK and table["limits_of"] is None and rows(table, FAILED) == {}
    assert left["repeat gemm_fp32 CV"] == "all 10 runs gave the same value: nothing was repeated"
    assert left["levels gemm_fp32 level"] == "no peaks are known for model 'replayed'"
    assert left["sensors fields"].startswith("the file does not hold ") and "numerics all" in left


def test_a_number_that_is_none_is_no_number() -> None:
    for value in (None, float("nan"), float("inf")):
        row = checks.within("levels", "x", value, "GB/s", None, None, "")
        assert row.verdict == FAILED and row.to_json()["value"] is None


# -- what NVML answers, through nvidia-ml-py over a library in C

LOOK = """
import json, os
from slurm_pal.profiling.node.nvml import Nvml
from slurm_pal.profiling.selftest import probes
told = []
def say(message):
    told.append(message)
class Parent:
    enter, send = staticmethod(lambda phase: None), staticmethod(say)
class Cards:
    telemetry, wall_scale = Nvml(), 0.0
device = Cards.telemetry.devices("n1", (0, 1))[0]
probes.look_at(Cards, device, Parent)
probes.ask_nvml(device, Parent)
told.append(probes._nvml(device._replace(uuid="GPU-none")))
if os.geteuid() == 0:
    probes.ask_nvml_as_nobody(device, Parent)
    told.append(os.getuid())
print(json.dumps(told))
"""


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process of another session, as another user's would be; even process 1 can be of ours in a container."""
    with subprocess.Popen(["sleep", str(HOUR_S)], start_new_session=True) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize("gpm", ["works", "denied", ""])
def test_what_nvml_answers(tmp_path: Path, gpm: str, stranger: int) -> None:
    if not (gcc := shutil.which("gcc")):
        pytest.skip("needs gcc")
    source = Path(__file__).parents[2] / "doubles" / "nvml_library.c"
    subprocess.run([gcc, "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(source)], check=True)
    environ = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "FAKE_NVML_GPM": gpm, "FAKE_NVML_PIDS": f"{stranger}:600"}
    if not gpm:
        del environ["FAKE_NVML_GPM"]
    words = [sys.executable, "-P", "-c", LOOK]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    static, others, fields, nvml, unknown, *again = json.loads(done.stdout)
    assert static["static"]["driver"]
    assert others["others"][0].startswith(f"pid {stranger} ") and "600 MiB" in others["others"][0]
    assert set(checks.NEEDED_SENSORS) <= set(fields["fields"])
    told = nvml["nvml"]
    assert 0 < told["look_ms"] <= told["look_p95_ms"] and told["gpm"] == (gpm == "works")
    assert unknown == {"error": "NVML knows no device GPU-none"}
    if again:
        assert again[0]["nvml"]["gpm"] == told["gpm"] and again[1] == probes.NOBODY


def test_nvml_that_hangs_is_not_a_gpu_that_hangs(card: Card, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(device: DeviceInfo) -> dict[str, Any]:
        time.sleep(HOUR_S)
        return {}

    hasten(tmp_path, monkeypatch)
    monkeypatch.setattr(probes, "NOBODY", os.geteuid())  # who may say in a file that they hang
    report = claimed(card, monkeypatch, "NVIDIA H200", H200, nvml=hang)
    bad = of(report, FAILED)
    assert {name.partition(" as ")[0] for name in bad} == {"sensors look"}
    assert all(check.text.startswith("no answer within 20 s in NVML") for check in bad.values())
    assert "levels gemm_bf16 level" in of(report, OK) and "sampler effect on gemm_bf16" in of(report, OK)


@pytest.mark.parametrize(
    ("model", "gpm", "verdict"),
    [
        ("NVIDIA H200", False, NOT_CHECKED),
        ("NVIDIA H200", True, OK),
        ("NVIDIA A40", False, NOT_CHECKED),
        ("Z9", True, OK),
    ],
)
def test_gpm_that_is_denied_does_not_fail_a_card(card: Card, model: str, gpm: bool, verdict: str) -> None:
    backend = Claimed(card.registry, "driver", model, {})
    (device,) = backend.devices("n0", (0,))
    test = _SelfTest(Plan(Setting("driver"), "n0", 0, (), (), 2, 460.0), backend, device, lambda text: None)
    found = {c.name: c for c in test._of_nvml({"look_ms": 30.0, "look_p95_ms": 40.0, "gpm": gpm}, "")}
    assert found["GPM"].verdict == verdict
    assert ("the driver denies it here" in found["GPM"].text) == (model == "NVIDIA H200" and not gpm)
    assert (found["look"].verdict, found["look, 95th percentile"].verdict) == (FAILED, OK)
