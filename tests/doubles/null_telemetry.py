# SPDX-License-Identifier: MIT
"""Telemetry of a device that tells nothing: classes still form, flags are fewer."""

from __future__ import annotations

import time

from slurm_pal.profiling.node.devices import Counters, DeviceInfo, SensorSample, Static


class NullWatch:
    """Looks without fields."""

    def sample(self) -> SensorSample:
        return SensorSample(time.monotonic())

    def take(self) -> tuple[SensorSample, ...]:
        return ()

    def close(self) -> None:
        """Nothing to end."""


class Null:
    """A `Telemetry` where nothing is known."""

    def static(self, device: DeviceInfo) -> Static:
        return Static(driver="")

    def watch(self, device: DeviceInfo) -> NullWatch:
        return NullWatch()

    def counters(self, device: DeviceInfo) -> Counters:
        return Counters()
