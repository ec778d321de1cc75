# SPDX-License-Identifier: MIT
"""No GPU is measured beside an idle one: who has finished runs on until the last has, and no longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.emulation.gpus import draw_registry, load_registry, set_fault, write_registry
from slurm_pal.profiling.node import bench
from slurm_pal.profiling.node.attempt import Attempt, MeasuredRun
from slurm_pal.profiling.node.benchmarks import Benchmark, select
from slurm_pal.profiling.node.devices import Counters, DeviceError, DeviceInfo, Watch
from slurm_pal.profiling.node.emu import EmuBackend, EmuKernel, EmuTelemetry
from slurm_pal.profiling.node.measurement import Order, RecordOrigin
from slurm_pal.profiling.node.runner import StopRules
from slurm_pal.profiling.node.workers import Channel, Team, Worker
from slurm_pal.variability.records import Record, from_json

from ...doubles.watchdog import HOUR_S, hasten

DEVICES = tuple(DeviceInfo(f"GPU-{i}", "test", "model", i) for i in range(4))
PLACE = RecordOrigin("s1", "c", "n0", 7, 3, "emu")
LONG_S = 120.0  # a limit that no test reaches
Message = tuple[int, dict[str, Any]]


def team_of(work: Callable[[DeviceInfo, Channel], None]) -> tuple[Team, list[Message]]:
    heard: list[Message] = []

    def hear(worker: Worker, message: dict[str, Any]) -> str:
        heard.append((worker.device.slot, message))
        return ""

    team = Team(DEVICES, work, LONG_S)
    team.run(hear)
    return team, heard


def until(done: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    end_s = time.monotonic() + LONG_S
    while not done():
        assert time.monotonic() < end_s, "the others have stopped"
        time.sleep(0.001)


def blocks(folder: Path, slot: int) -> int:
    path = folder / f"blocks.{slot}"
    return len(path.read_text()) if path.exists() else 0


def noted(folder: Path, slot: int, seconds: float = 1.0) -> Callable[[], float]:
    """A block of device time, one character in a file for each."""

    def block() -> float:
        with (folder / f"blocks.{slot}").open("a") as stream:
            stream.write("x")
        return seconds

    return block


def test_who_waits_for_the_last_one_runs_on_until_it_has_come(tmp_path: Path) -> None:
    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.barrier("run")
        if device.slot == 0:  # the last: it comes only when the others have run on for a while
            until(lambda: all(blocks(tmp_path, slot) >= 5 for slot in (1, 2, 3)))
        channel.run_on("run", 1.0, noted(tmp_path, device.slot), own_clock=False)
        channel.send({"blocks": blocks(tmp_path, device.slot)})
        channel.barrier("next")
        channel.send({"later": blocks(tmp_path, device.slot)})

    team, heard = team_of(work)
    assert [w.error for w in team.workers] == [""] * 4
    ran = {slot: m["blocks"] for slot, m in heard if "blocks" in m}
    assert set(ran) == {0, 1, 2, 3} and min(ran[slot] for slot in (1, 2, 3)) >= 5
    assert {slot: m["later"] for slot, m in heard if "later" in m} == ran


def test_a_device_with_a_clock_of_its_own_runs_as_long_as_the_slowest_by_that_clock(tmp_path: Path) -> None:
    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.barrier("run")
        channel.run_on("run", 10.0 - device.slot, noted(tmp_path, device.slot, 0.75), own_clock=True)

    team, _ = team_of(work)
    assert [w.error for w in team.workers] == [""] * 4
    assert [blocks(tmp_path, slot) for slot in range(4)] == [0, 2, 3, 4]  # 1, 2 and 3 s in blocks of .75 s


@pytest.mark.parametrize("own_clock", [False, True])
def test_one_that_hangs_or_dies_ends_the_running_on_of_the_others(
    own_clock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(tmp_path, monkeypatch)

    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.barrier("run")
        if device.slot == 1:
            time.sleep(HOUR_S)
        if device.slot == 2:
            os._exit(7)
        channel.run_on("run", 1.0, noted(tmp_path, device.slot), own_clock)
        channel.send({"others": channel.barrier("next")})

    team, heard = team_of(work)
    assert [w.error for w in team.workers] == [
        "", "no answer within 120 s in run", "worker ended with exit code 7 in run", "",
    ]  # fmt: skip
    assert sorted(slot for slot, _ in heard) == [0, 3] and all(m == {"others": 1} for _, m in heard)


@pytest.mark.parametrize("own_clock", [False, True])
def test_one_that_hangs_while_it_runs_on_is_given_up(
    own_clock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(tmp_path, monkeypatch)

    def work(device: DeviceInfo, channel: Channel) -> None:
        def block() -> float:
            if device.slot == 3:
                (tmp_path / "stuck").touch()
                time.sleep(HOUR_S)
            return 1.0

        channel.barrier("run")
        if device.slot == 0 and not own_clock:
            until((tmp_path / "stuck").exists)
        channel.run_on("run", 5.0 if device.slot == 0 else 1.0, block, own_clock)
        channel.send({"others": channel.barrier("next")})

    team, heard = team_of(work)
    assert [w.error for w in team.workers] == ["", "", "", "no answer within 120 s in run"]
    assert sorted(slot for slot, _ in heard) == [0, 1, 2] and {m["others"] for _, m in heard} == {2}


def test_blocks_begin_the_watchdogs_time_anew_and_one_that_can_run_no_more_is_not_watched() -> None:
    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.barrier("run")
        if device.slot == 0:
            for part in range(4):
                channel.enter(f"part {part}")
                time.sleep(0.8)

        def block() -> float:
            time.sleep(0.1)
            return 0.0 if device.slot == 1 else 1.0

        channel.run_on("run", 1.0, block, own_clock=False)

    team = Team(DEVICES, work, 2.5)  # shorter than what the others wait: 3.2 s
    team.run(lambda worker, message: "")
    assert [w.error for w in team.workers] == [""] * 4


# -- on a node ----------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path) -> str:
    path = str(tmp_path / "gpus.json")
    write_registry(path, draw_registry(["n0"], 4, 3))
    return path


class Noting(EmuBackend):
    """Notes the device time of every block: a file for each GPU, a line for each block."""

    folder: Path

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> EmuKernel:
        kernel, path = super().prepare(device, spec, peers), self.folder / f"{device.slot}"
        run = kernel.run_block

        def run_block(n: int) -> float:
            seconds = run(n)
            with path.open("a") as stream:
                stream.write(f"{spec.id} {seconds!r}\n")
            return seconds

        monkey: Any = kernel
        monkey.run_block = run_block
        return kernel


class Lacking(Noting):
    """One GPU without tf32."""

    def lacks(self, device: DeviceInfo, spec: Benchmark) -> str:
        return "no tf32 here" if spec.dtype == "tf32" and device.slot == 2 else ""


class WallClock(EmuBackend):
    """Devices that are believed to run by the wall's clock, like real ones; they take no time."""

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        found = super().devices(node, indexes)
        self.wall_scale = 1.0
        return found


def run_node(backend: EmuBackend, ids: str, gpus: int = 4) -> list[Record]:
    outcome = bench.measure_node(backend, PLACE, range(gpus), gpus, Order(select(ids)), LONG_S)
    return [from_json(line) for line in outcome.lines]


def worked_s(folder: Path, slot: int) -> list[tuple[str, float]]:
    """Benchmark and device time of each stretch of blocks, in their order."""
    found: list[tuple[str, float]] = []
    for line in (folder / f"{slot}").read_text().splitlines():
        name, seconds = line.split()
        before = found.pop()[1] if found and found[-1][0] == name else 0.0
        found.append((name, before + float(seconds)))
    return found


def measured_s(record: Record) -> float:
    return record.result.warmup_s + record.result.n_blocks * record.result.block_s


def test_every_gpu_works_until_the_last_one_has_been_measured(registry: str, tmp_path: Path) -> None:
    set_fault(registry, "n0", 1, "noisy")  # it takes longest: its interval never becomes narrow
    backend = Noting(load_registry(registry), 3, 0.0)
    backend.folder = tmp_path
    records = run_node(backend, "gemm_bf16,tblock,hbm_triad")
    for place, name in enumerate(("gemm_bf16", "tblock", "hbm_triad")):
        of = [r for r in records if r.bench.id == name]
        assert len(of) == 4
        last_s, first_s = worked_s(tmp_path, 1)[place][1], min(map(measured_s, of))
        assert last_s > first_s + 2.0 * max(r.result.block_s for r in of)  # some had to wait
        for slot in range(4):
            ran, seconds = worked_s(tmp_path, slot)[place]
            assert ran == name and seconds >= last_s
            assert seconds < last_s + 2.0 * max(r.result.block_s for r in of)  # and no longer


def test_numbers_of_emulated_gpus_do_not_depend_on_the_machine(registry: str) -> None:
    def values() -> list[tuple[int, str, float, float]]:
        records = run_node(EmuBackend(load_registry(registry), 3, 0.0), "gemm_bf16,tblock,hbm_triad")
        return sorted((r.gpu.slurm_index, r.bench.id, r.result.value, r.result.warmup_s) for r in records)

    assert values() == values()


def test_a_gpu_that_lacks_a_benchmark_works_all_the_same(registry: str, tmp_path: Path) -> None:
    backend = Lacking(load_registry(registry), 3, 0.0)
    backend.folder = tmp_path
    records = run_node(backend, "gemm_bf16,gemm_tf32,hbm_copy")
    last_s = max(measured_s(r) for r in records if r.bench.id == "gemm_tf32")
    assert [r.bench.id for r in records if r.gpu.slurm_index == 2] == ["gemm_bf16", "hbm_copy"]
    longest_s = max(measured_s(r) for r in records if r.bench.id == "gemm_bf16")
    (gemm, seconds), (copy, _) = worked_s(tmp_path, 2)
    assert (gemm, copy) == ("gemm_bf16", "hbm_copy") and seconds > longest_s + last_s - 0.02


def test_a_gpu_alone_stops_when_it_has_been_measured(registry: str, tmp_path: Path) -> None:
    backend = Noting(load_registry(registry), 3, 0.0)
    backend.folder = tmp_path
    (record,) = run_node(backend, "gemm_bf16", gpus=1)
    assert worked_s(tmp_path, 0)[0][1] == pytest.approx(measured_s(record), rel=2e-3)


def test_on_real_devices_the_others_wait_working(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the wall's clock: GPU 0 is held until each of the others has run blocks that nobody records."""
    again, measure = Attempt.again, Attempt.measure

    def noting(self: Attempt) -> float:
        noted(tmp_path, self._device.slot)()
        return again(self)

    def held(self: Attempt, watch: Watch, rules: StopRules) -> MeasuredRun:
        if self._device.slot == 0:
            until(lambda: all(blocks(tmp_path, slot) >= 3 for slot in (1, 2, 3)))
        return measure(self, watch, rules)

    monkeypatch.setattr(Attempt, "again", noting)
    monkeypatch.setattr(Attempt, "measure", held)
    backend = WallClock(load_registry(registry), 3, 0.0)
    records = run_node(backend, "gemm_bf16")
    assert [(r.reason, r.bench.peers_busy) for r in records] == [("", 3)] * 4


@pytest.mark.parametrize("kind", ["launch", "ecc"])
def test_what_goes_wrong_while_a_gpu_runs_on_spoils_its_run(
    registry: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, counters = Attempt.again, EmuTelemetry.counters
    broken: list[int] = []

    def breaking(self: Attempt) -> float:
        if self._device.slot == 2:
            broken.append(1)
        if broken and kind == "launch":
            monkeypatch.setattr(self._kernel, "run_block", refuse)
        return again(self)

    def refuse(n: int) -> float:
        raise DeviceError("launch failed", "xid")

    def counting(self: EmuTelemetry, device: DeviceInfo) -> Counters:
        return counters(self, device)._replace(ecc_uncorrected=2 if broken and kind == "ecc" else 0)

    monkeypatch.setattr(Attempt, "again", breaking)
    monkeypatch.setattr(EmuTelemetry, "counters", counting)
    set_fault(registry, "n0", 1, "noisy")
    records = run_node(EmuBackend(load_registry(registry), 3, 0.0), "hbm_copy")
    assert sorted(r.gpu.slurm_index for r in records) == [0, 1, 2, 3]  # one record each
    (bad,) = [r for r in records if not r.valid]
    assert bad.gpu.slurm_index == 2
    assert (bad.flags, bad.reason) == {"launch": (("xid",), "launch failed"), "ecc": (("ecc",), "ecc")}[kind]


def test_energy_is_that_of_the_measurement_alone(registry: str) -> None:
    set_fault(registry, "n0", 1, "noisy")
    records = run_node(EmuBackend(load_registry(registry), 3, 0.0), "gemm_bf16")
    for record in records:
        assert record.telemetry["energy_j"] == pytest.approx(300.0 * measured_s(record), rel=5e-3)
