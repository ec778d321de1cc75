# SPDX-License-Identifier: MIT
"""The record's telemetry table, the flags, and who is on a GPU before a measurement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.profiling.node import telemetry, throttle
from slurm_pal.profiling.node.devices import Counters, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.host import Host
from slurm_pal.variability.runs import INVALIDATING, RUN_FLAGS

from ...doubles.null_telemetry import Null

DEVICE = DeviceInfo("GPU-0", "nvidia", "x", 0)
CALM, BUSY = Host(3.0, 64, 1000, 0), Host(70.0, 64, 2000, 0)
STOLEN = Host(3.0, 64, 2000, 30)
MIB = 2**20
HIDDEN = "a process that is not shown (busy {} % of the time before the start)"


def test_all_fields_of_a_run() -> None:
    samples = [
        SensorSample(
            t_s=0.1 * i,
            sm_clk_mhz=1400.0 + i,
            mem_clk_mhz=1593.0,
            power_w=290.0 + i,
            temp_c=60.0 + i,
            mem_temp_c=70.0,
            reasons=throttle.SW_POWER_CAP if i % 2 else 0,
            power_avg_w=288.0,
            utilisation=0.1 * i,
            pcie_gen=4 if i else 1,
            pcie_width=16 if i < 10 else 8,
            dram=0.5 if i else None,  # told less often
            tensor=0.08 * i,
        )
        for i in range(11)
    ]
    before = Counters(100.0, 1, (), 5, False, 2, {"power": 1.0, "thermal": 0.5}, (79,), 10)
    after = Counters(1600.04, 1, (), 9, True, 3, {"power": 9.5, "reliability": 1.0}, (79, 31), 20)
    assert telemetry.summary(samples, before, after) == {
        "hz": 10.0,
        "sm_clk_mhz": {"p5": 1400.5, "p50": 1405.0, "p95": 1409.5},
        "mem_clk_mhz": {"p5": 1593.0, "p50": 1593.0, "p95": 1593.0},
        "power_w": {"p5": 290.5, "p50": 295.0, "p95": 299.5},
        "power_avg_w": {"p5": 288.0, "p50": 288.0, "p95": 288.0},
        "mem_temp_c": {"p5": 70.0, "p50": 70.0, "p95": 70.0},
        "utilisation": {"p5": 0.05, "p50": 0.5, "p95": 0.95},
        "dram": {"p5": 0.5, "p50": 0.5, "p95": 0.5},
        "tensor": {"p5": 0.04, "p50": 0.4, "p95": 0.76},
        "temp_c": {"start": 60.0, "p50": 65.0, "end": 70.0},
        "pcie": {"gen": 1, "width": 8},
        "duty": {
            "power_cap": 0.4545,
            "sw_thermal": 0.0,
            "hw_thermal": 0.0,
            "hw_slowdown": 0.0,
            "power_brake": 0.0,
            "idle": 0.0,
        },
        "energy_j": 1500.0,
        "violation_s": {"power": 8.5},
        "ecc_corrected": 4,
        "ecc_uncorrected": 0,
        "pcie_replays": 1,
        "remap_failed": True,
        "xids": [31],
    }


def test_counters_that_began_anew_tell_nothing() -> None:
    """After a reset of the GPU or of the driver, or past the end of the counter."""
    before = Counters(9000.0, 4, (), 5, None, 2, {"power": 7.0, "thermal": 0.5})
    after = Counters(10.0, 0, (), 1, None, 0, {"power": 0.1, "thermal": 0.75})
    assert telemetry.summary((), before, after) == {"violation_s": {"thermal": 0.25}}


def test_a_device_that_tells_nothing() -> None:
    watch = Null().watch(DEVICE)
    assert watch.sample()._replace(t_s=0.0) == SensorSample(0.0)
    watch.close()
    assert telemetry.summary(watch.take(), Null().counters(DEVICE), Null().counters(DEVICE)) == {}
    assert telemetry.flags((), Null().static(DEVICE), Counters(), Counters()) == ()


FIELDS = [f for f in SensorSample._fields if f != "t_s"]


@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), st.integers(0, 511), max_size=len(FIELDS)), max_size=12))
def test_any_fields_may_be_missing_in_any_sample(looks: list[dict[str, int]]) -> None:
    samples = [SensorSample(float(i))._replace(**look) for i, look in enumerate(looks)]  # type: ignore[arg-type]
    table = telemetry.summary(samples, Counters(), Counters())
    known = {name for look in looks for name in look}
    in_table = {"pcie_gen": "pcie", "pcie_width": "pcie", "reasons": "duty"}
    assert set(table) - {"hz"} == {in_table.get(name, name) for name in known}
    telemetry.flags(samples, Static("1", pcie_max_width=16), Counters(), Counters())


def capped(share: float, bit: int) -> list[SensorSample]:
    return [SensorSample(float(i), reasons=bit if i < share * 200 else 0) for i in range(200)]


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"samples": capped(0.02, throttle.HW_SLOWDOWN)}, "degraded"),
        ({"samples": capped(0.02, throttle.HW_THERMAL)}, "degraded"),
        ({"samples": capped(0.02, throttle.POWER_BRAKE)}, "degraded"),
        ({"samples": capped(0.01, throttle.POWER_BRAKE)}, ""),
        ({"samples": capped(0.06, throttle.SW_THERMAL)}, "thermal_limited"),
        ({"samples": capped(0.05, throttle.SW_THERMAL)}, ""),
        ({"samples": capped(1.0, throttle.SW_POWER_CAP)}, ""),
        ({"before": Counters(ecc_uncorrected=3), "after": Counters(ecc_uncorrected=4)}, "ecc"),
        ({"before": Counters(ecc_uncorrected=3), "after": Counters(ecc_uncorrected=3)}, ""),
        ({"after": Counters(ecc_uncorrected=4)}, ""),  # a lifetime's count, without a look before
        ({"before": Counters(ecc_corrected=3), "after": Counters(ecc_corrected=900)}, ""),
        ({"before": Counters(remap_failed=True), "after": Counters(remap_failed=True)}, "ecc"),
        ({"after": Counters(remap_failed=False)}, ""),
        ({"after": Counters(xids=(79,))}, "xid"),
        ({"before": Counters(xids=(79,)), "after": Counters(xids=(79,))}, ""),
        ({"after": Counters(others=("pid 1",))}, "foreign_process"),
        ({"before": Counters(others=("pid 1",))}, "foreign_process"),
        ({"idle": (HIDDEN.format(40),)}, "foreign_process"),
        ({"static": Static("1", power_limit_w=250, default_power_limit_w=300)}, "config_differs"),
        ({"static": Static("1", power_limit_w=299.6, default_power_limit_w=300)}, ""),  # as a board reports it
        ({"static": Static("1", power_limit_w=300)}, ""),  # the default is not told
        ({"static": Static("1", default_power_limit_w=300)}, ""),
        ({"static": Static("1", app_clocks_mhz=1200)}, "config_differs"),
        ({"host": (CALM, BUSY)}, "host_noise"),
        ({"host": (CALM, STOLEN)}, "host_noise"),
        ({"host": (CALM, CALM)}, ""),
        ({"host": (Host(), Host())}, ""),
        ({"samples": [SensorSample(0.0, pcie_width=8)], "static": Static("1", pcie_max_width=16)}, "pcie_link"),
        ({"samples": [SensorSample(0.0, pcie_width=16)], "static": Static("1", pcie_max_width=16)}, ""),
        ({"samples": [SensorSample(0.0, pcie_width=8)]}, ""),
    ],
)
def test_flags(given: dict[str, Any], flag: str) -> None:
    all_of = {"samples": [], "static": Static("1"), "before": Counters(), "after": Counters()} | given
    raised = telemetry.flags(**all_of)
    assert raised == ((flag,) if flag else ())
    assert set(raised) <= RUN_FLAGS  # the store keeps them


def test_a_narrow_link_invalidates_nothing() -> None:
    assert "pcie_link" in RUN_FLAGS and "pcie_link" not in INVALIDATING


class Scripted:
    """Telemetry of which a test says what it sees."""

    def __init__(self, counters: Counters, looks: tuple[SensorSample, ...] = ()) -> None:
        self._counters, self._looks = counters, looks
        self.closed = False

    def static(self, device: DeviceInfo) -> Static:
        return Static("1")

    def counters(self, device: DeviceInfo) -> Counters:
        return self._counters

    def watch(self, device: DeviceInfo) -> Scripted:
        return self

    def sample(self) -> SensorSample:
        return self._looks[-1]

    def take(self) -> tuple[SensorSample, ...]:
        return self._looks

    def close(self) -> None:
        self.closed = True


def looks(*shares: float | None) -> tuple[SensorSample, ...]:
    return tuple(SensorSample(float(i), utilisation=share) for i, share in enumerate(shares))


@pytest.mark.parametrize(
    ("counters", "seen", "found"),
    [
        (Counters(), (), ()),
        (Counters(others=("pid 7",), used_bytes=9000 * MIB), (), ("pid 7",)),
        (Counters(used_bytes=612 * MIB), (), ("a process that is not shown (612 MiB before the start)",)),
        (Counters(used_bytes=500 * MIB), (), ()),
        (Counters(), looks(0.4, 0.3, 0.5), (HIDDEN.format(40),)),
        (Counters(), looks(1.0, 0.0, 0.0), ()),  # what ended just before we came
        (Counters(), looks(0.05, 0.05, 0.05), ()),
        (Counters(), looks(None, None), ()),
        (
            Counters(others=("pid 7",)),
            looks(0.9),
            ("pid 7", HIDDEN.format(90)),
        ),
    ],
)
def test_preflight(counters: Counters, seen: tuple[SensorSample, ...], found: tuple[str, ...]) -> None:
    scripted = Scripted(counters, seen)
    assert telemetry.preflight(scripted, DEVICE, 0.0) == found
    assert scripted.closed


def test_a_gpu_that_was_just_started_is_not_taken_for_busy() -> None:
    """NVML counts clearing the memory as use; the GPU must stay busy to be somebody's."""

    class Starting(Scripted):
        def __init__(self, busy: int) -> None:
            super().__init__(Counters(), looks(0.0))
            self._busy, self.watches = busy, 0

        def watch(self, device: DeviceInfo) -> Scripted:
            self.watches += 1
            return self

        def take(self) -> tuple[SensorSample, ...]:
            self._busy -= 1
            return looks(1.0, 1.0) if self._busy >= 0 else looks(0.0, 0.0)

    started, used = Starting(2), Starting(3)
    assert telemetry.preflight(started, DEVICE, 0.0) == ()
    assert telemetry.preflight(used, DEVICE, 0.0) == (HIDDEN.format(100),)
    assert started.watches == used.watches == 1 and started.closed and used.closed


def test_preflight_watches_for_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    pause: Callable[[float], None] = slept.append
    monkeypatch.setattr(telemetry.time, "sleep", pause)
    telemetry.preflight(Null(), DEVICE)
    assert slept == [2.0]
