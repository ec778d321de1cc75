# SPDX-License-Identifier: MIT
"""One benchmark on one GPU: prepared, measured, kept running while neighbours are measured, ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.profiling.node import host
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.devices import Backend, Counters, DeviceError, DeviceInfo, Kernel, OwnHost, Watch
from slurm_pal.profiling.node.host import Host
from slurm_pal.profiling.node.runner import BenchRun, StopRules, block_size, failed, measure, nothing, rules_for


class MeasuredRun(NamedTuple):
    """One run with the counters around it."""

    before: Counters
    after: Counters
    run: BenchRun
    host: tuple[Host, Host]
    libs: dict[str, str] = {}  # that this benchmark alone calls


class Attempt:
    """One benchmark on one GPU, from its preparation to its end: a kernel that counts its device time."""

    def __init__(self, backend: Backend, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> None:
        self.work, self.unit = spec.work, spec.unit
        self.spent_s = 0.0  # of device time so far
        self._spec, self._device, self._backend = spec, device, backend
        self._look = backend.host if isinstance(backend, OwnHost) else host.look
        self._host = self._look()
        self._host_after: Host | None = None
        self._before = Counters()
        self._after: Counters | None = None  # when the measurement was over
        self._kernel: Kernel | None = None
        self._launches = 0
        self._libs: dict[str, str] = {}
        try:
            self._before = backend.telemetry.counters(device)
            self._kernel = backend.prepare(device, spec, peers)
            self.work, self._libs = self._kernel.work, getattr(self._kernel, "libs", {})
            self._run = BenchRun(nothing(spec, "error"), (), ())
        except DeviceError as error:
            self._run = failed(spec, error)
            self._run = self._run._replace(reason=f"{spec.id} cannot be prepared: {self._run.reason}")

    def run_block(self, n: int) -> float:
        """As the kernel's."""
        assert self._kernel
        self._launches = n
        seconds = self._kernel.run_block(n)
        self.spent_s += seconds
        return seconds

    def measure(self, watch: Watch, rules: StopRules) -> MeasuredRun:
        """The run as far as it is known while the kernel is still open."""
        if self._kernel:
            self._run = measure(self, self._spec, watch, rules)
            self._count()
        return self._result()

    def again(self) -> float:
        """One more block that nobody records, s of device time; 0 when the device can do no more."""
        if not self._kernel or self._run.reason:
            return 0.0
        try:
            began_s = self.spent_s
            self.run_block(self._launches or block_size(self, rules_for(self._spec, hot=True))[0])
            return self.spent_s - began_s
        except DeviceError as error:
            self._fail(error)
            return 0.0

    def close(self) -> None:
        """Free the device. An error of a launch may show only when all are waited for, and spoils the run."""
        kernel, self._kernel = self._kernel, None
        if kernel:
            try:
                kernel.close()
            except DeviceError as error:
                self._fail(error)
            self._count()

    def end(self) -> MeasuredRun:
        """Close it: the whole run."""
        self.close()
        return self._result()

    def _count(self) -> None:
        """Look at the counters; energy and time below the wanted clock are those of the first look."""
        first, self._host_after = self._after, self._host_after or self._look()
        try:
            self._after = self._backend.telemetry.counters(self._device)
        except DeviceError as error:
            self._fail(error)
            return
        if first:
            self._after = self._after._replace(energy_j=first.energy_j, violation_s=first.violation_s)

    def _fail(self, error: DeviceError) -> None:
        self._run = self._run if self._run.reason else failed(self._spec, error)

    def _result(self) -> MeasuredRun:
        hosts = self._host, self._host_after or self._look()
        return MeasuredRun(self._before, self._after or self._before, self._run, hosts, self._libs)
