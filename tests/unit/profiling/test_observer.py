# SPDX-License-Identifier: MIT
"""The observer: what it looks at, when it speaks, when it ends; and the sensors of a lab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_pal.base import marks
from slurm_pal.emulation import gpus
from slurm_pal.emulation.gpus import EmuGpu, Registry
from slurm_pal.emulation.load import load_of, running
from slurm_pal.profiling.node import observer
from slurm_pal.profiling.node.devices import DeviceError, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.lab_sensors import LabSensors
from slurm_pal.profiling.node.observer import Means, ObserverOptions, observe
from slurm_pal.profiling.node.throttle import IDLE, SW_POWER_CAP
from slurm_pal.sensitivity.behaviour import Behaviour, Timing, by_rules
from slurm_pal.sensitivity.cascade import PROBE
from slurm_pal.sensitivity.observed import read

STATIC = Static("x", power_limit_w=300.0, max_sm_clk_mhz=1500.0)
WORK = {
    "A": SensorSample(0.0, 1350.0, power_w=297.0, reasons=SW_POWER_CAP, utilisation=1.0),
    "B": SensorSample(0.0, 1500.0, power_w=230.0, reasons=0, utilisation=0.9),
    "C": SensorSample(0.0, 1500.0, power_w=80.0, reasons=0, utilisation=1.0),
    "M": SensorSample(0.0, 1500.0, power_w=190.0, reasons=0, utilisation=1.0, dram=0.9, tensor=0.05),
    "-": SensorSample(0.0, 300.0, power_w=40.0, reasons=IDLE, utilisation=0.0),
    "!": SensorSample(0.0),
}


class World:
    """A clock that only sleeping moves, and a GPU that does what `plan` says: [(class, seconds)]."""

    def __init__(self, *plan: tuple[str, float]) -> None:
        self.now_s, self.told, self.ends_s = 0.0, list[tuple[float, Behaviour]](), float("inf")
        self.plan = plan
        self.means = Means(self.tell, lambda: self.now_s, self.sleep, lambda: self.now_s < self.ends_s)

    def tell(self, seen: Behaviour) -> None:
        self.told.append((self.now_s, seen))

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def sample(self) -> SensorSample:
        left_s = self.now_s
        for kind, seconds in self.plan:
            left_s -= seconds
            if left_s < 0:
                return WORK[kind]._replace(t_s=self.now_s)
        return WORK["-"]._replace(t_s=self.now_s)

    def take(self) -> tuple[SensorSample, ...]:
        return ()

    def close(self) -> None:
        pass

    def observe(self, seconds: float = 300.0, **more: object) -> Behaviour:
        return observe([(self, STATIC)], ObserverOptions(seconds, **more), by_rules, self.means)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["A", "B", "C"])
def test_it_speaks_once_it_knows_and_not_again_without_news(kind: str) -> None:
    world = World(("-", 20.0), (kind, 400.0))
    seen = world.observe()
    assert seen.sensitivity == kind and world.now_s == pytest.approx(300.0, abs=1.0)
    assert [(round(at_s), told.sensitivity) for at_s, told in world.told] == [(80, kind)]


def test_memory_and_pipes_are_seen_where_they_are_told() -> None:
    seen = World(("M", 400.0)).observe(90.0)
    assert seen.sensitivity == "C"  # by the specification's rule: memory at work, pipes not
    assert (seen.traits.dram, seen.traits.tensor) == (0.9, 0.05)


def test_news_at_the_end_are_told() -> None:
    world = World(("C", 60.0), ("A", 400.0))
    assert world.observe().sensitivity == "A"
    assert [told.sensitivity for _, told in world.told] == ["C", "A"]


def test_a_job_that_does_too_little_is_not_spoken_of() -> None:
    world = World(("A", 50.0))
    assert world.observe().sensitivity == "?" and world.told == []


def test_a_job_whose_sensors_are_silent_is_not_spoken_of() -> None:
    world = World(("!", 400.0))
    assert world.observe().sensitivity == "?" and world.told == []


def test_it_ends_with_the_job_and_tells_what_it_knows() -> None:
    world = World(("B", 400.0))
    world.ends_s = 63.0
    assert world.observe().sensitivity == "B"
    assert world.now_s == pytest.approx(63.0, abs=1.0) and len(world.told) == 1


def test_a_probe_ends_as_soon_as_it_knows() -> None:
    world = World(("C", 400.0))
    world.observe(stage=PROBE, timing=Timing(10.0, 20.0))
    assert world.now_s == pytest.approx(20.0, abs=5.0)


# -- the sensors that are asked ---------------------------------------------------------------


class Lone:
    """Sensors of two GPUs, of which those in `lost` do not answer."""

    def __init__(self, *lost: int) -> None:
        self.lost, self.watched, self.closed = lost, list[int](), 0

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        return tuple(DeviceInfo(f"GPU-{i}", "x", "x", i) for i in indexes)

    def static(self, device: DeviceInfo) -> Static:
        if device.slot in self.lost:
            raise DeviceError("GPU is lost", "xid")
        return STATIC

    def watch(self, device: DeviceInfo) -> Lone:
        if len(self.watched) == 1 and not self.lost:
            raise DeviceError("no more")
        self.watched.append(device.slot)
        return self

    def sample(self) -> SensorSample:
        return SensorSample(0.0)

    def take(self) -> tuple[SensorSample, ...]:
        return ()

    def close(self) -> None:
        self.closed += 1


def ran(monkeypatch: pytest.MonkeyPatch, sensors: Lone) -> None:
    def broken(environ: object) -> Lone:
        raise KeyError("ROCM_HOME")  # what a vendor's package may do where its driver is missing

    monkeypatch.setattr(observer, "SENSORS", {"amd": broken, "lone": lambda environ: sensors})
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1", "SLURMD_NODENAME": "n0"}
    assert observer.run(ObserverOptions(0.0), env).sensitivity == "?"


def test_a_lost_gpu_does_not_keep_the_others_from_being_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for lost, watched in ((0, [1]), (1, [0])):
        sensors = Lone(lost)
        ran(monkeypatch, sensors)
        assert (sensors.watched, sensors.closed) == (watched, 1)
    with pytest.raises(DeviceError, match="GPU is lost"):
        ran(monkeypatch, Lone(0, 1))


def test_what_was_opened_is_closed_where_another_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    sensors = Lone()
    with pytest.raises(DeviceError, match="no more"):
        ran(monkeypatch, sensors)
    assert (sensors.watched, sensors.closed) == ([0], 1)


# -- in a lab --------------------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path) -> str:
    path = str(tmp_path / gpus.FILE_NAME)
    slots = [EmuGpu("n0", i, f"u{i}", "M", {"A": 1.0 + 0.1 * i, "B": 1.0, "C": 1.0}, {}) for i in range(2)]
    gpus.write_registry(path, Registry(slots))
    return path


def test_a_load_lasts_as_long_as_its_process_says(registry: str) -> None:
    assert load_of(registry, "n0", 0) == ""
    with running(registry, {"n0": (0, 1)}, "B"):
        assert [load_of(registry, "n0", i) for i in (0, 1, 2)] == ["B", "B", ""]
    assert load_of(registry, "n0", 0) == ""
    # A payload that was killed leaves its file: its process is gone.
    code = "import os, sys\nfrom slurm_pal.emulation.load import running\n"
    code += "with running(sys.argv[1], {'n0': (0,)}, 'A'): os._exit(0)"
    subprocess.run([sys.executable, "-c", code, registry], check=True, timeout=60)
    assert os.listdir(Path(registry).parent / "emu_load") == ["n0.0.json"]
    assert load_of(registry, "n0", 0) == ""


def test_a_folder_that_cannot_be_written_costs_the_work_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with running(str(tmp_path / "file" / "x.json"), {"n0": (0,)}, "B"):
        pass


class Shown(NamedTuple):
    dram: float
    tensor: float
    power: float
    clock: float
    capped: bool
    active: bool


def shown(sensors: LabSensors, index: int) -> Shown:
    device = sensors.devices("n0", [index])[0]
    static, seen = sensors.static(device), sensors.watch(device).sample()
    assert static.power_limit_w and static.max_sm_clk_mhz and seen.power_w and seen.sm_clk_mhz
    assert seen.dram is not None and seen.tensor is not None
    power, clock = seen.power_w / static.power_limit_w, seen.sm_clk_mhz / static.max_sm_clk_mhz
    return Shown(seen.dram, seen.tensor, power, clock, bool((seen.reasons or 0) & SW_POWER_CAP), bool(seen.utilisation))


def test_the_labs_sensors_show_the_load(registry: str) -> None:
    sensors = LabSensors(registry, gpus.load_registry(registry), lambda: 7.0)
    assert not shown(sensors, 0).active and sensors.devices("n0", [5]) == () == sensors.devices("n9", [0])
    with running(registry, {"n0": (0, 1)}, "A"):
        fast, slow = shown(sensors, 0), shown(sensors, 1)
    assert fast.capped and fast.power > 0.9 and slow.clock < fast.clock < 0.97
    with running(registry, {"n0": (0,)}, "C"):
        calm = shown(sensors, 0)
    assert calm == Shown(calm.dram, calm.tensor, calm.power, 1.0, False, True) and calm.power < 0.4
    assert calm.dram > 0.8 and calm.tensor < 0.1 and fast.tensor > 0.8 and fast.dram < 0.4


OBSERVER = [sys.executable, "-P", "-m", "slurm_pal.profiling.node.observer", "--seconds", "2", "--active", "1"]


def test_the_program_finds_its_gpus_and_puts_a_word_into_the_comment(registry: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, text in {
        "squeue": 'cat "$COMMENT"; echo', "scontrol": 'printf %s "${3#Comment=}" > "$COMMENT"',
    }.items():  # fmt: skip
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "comment").write_text("my own")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    env = kept | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "COMMENT": str(tmp_path / "comment"), "SLURM_JOB_ID": "77",
        "SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURMD_NODENAME": "n0", "SLURM_JOB_GPUS": "1",
    }  # fmt: skip
    with running(registry, {"n0": (1,)}, "A"):
        done = subprocess.run([*OBSERVER, "--digest", "0" * 16], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    comment = (tmp_path / "comment").read_text()
    found = read(comment)
    assert found is not None and found.sensitivity == "A" and found.digest == "0" * 16
    assert comment == f"my own {marks.word(marks.read(comment, 'obs'))}"


@pytest.mark.parametrize(
    ("env", "part"),
    [
        ({}, "not inside a Slurm job"), ({"SLURM_JOB_ID": "7"}, "holds no GPUs"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "9", "SLURMD_NODENAME": "n0"}, "none of the GPUs"),
    ],
)  # fmt: skip
def test_trouble_is_one_line_and_never_a_failure(env: dict[str, str], part: str, registry: str) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    env = kept | {"SLURM_CONF": str(Path(registry).parent / "slurm.conf")} | env
    done = subprocess.run(OBSERVER, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and part in done.stderr and done.stderr.count("\n") == 1
