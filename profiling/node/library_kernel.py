# SPDX-License-Identifier: MIT
"""One benchmark as a kernel of a GPU library: what PyTorch and CuPy have in common.

A library brings a workbench, which allocates and takes time, and a table of builders, which say what one
launch of each benchmark is. How a kernel is opened, run and closed is here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from slurm_pal.profiling.node import inputs, ring
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.device_errors import device_error, told
from slurm_pal.profiling.node.devices import DeviceError
from slurm_pal.profiling.node.in_flight import Clock, InFlight

Foreign: TypeAlias = Any
"""The library's own: an array, a stream, a device."""


class Workbench(Protocol):
    """Where a kernel is built; while it is open, its device is the current one."""

    @property
    def spec(self) -> Benchmark: ...

    @property
    def devices(self) -> Sequence[Foreign]:
        """Its own first, then the peers."""
        ...

    @property
    def clock(self) -> Clock[Foreign]:
        """Takes time stamps where its launches go."""
        ...

    def normal(self, *size: int) -> Foreign:
        """N(0,1) data in fp32 on its own device."""
        ...


class KernelBody(NamedTuple):
    """What a builder gives: one launch."""

    launch: Callable[[], object]
    work: float | None = None  # per launch, where it is not what the benchmark says
    clock: Clock[Foreign] | None = None  # where it is not the workbench's


AnyBench = TypeVar("AnyBench", bound=Workbench)


class LibraryKernel:
    """One benchmark on one device. Raises DeviceError where it cannot be built, and frees what it had.

    `builders` are by benchmark id; `errors` is what the library raises; leaving `bench` frees its memory.
    """

    def __init__(
        self,
        spec: Benchmark,
        builders: Mapping[str, Callable[[AnyBench], KernelBody]],
        bench: contextlib.AbstractContextManager[AnyBench],
        errors: tuple[type[Exception], ...],
    ) -> None:
        if spec.id not in builders:
            raise DeviceError(f"this backend has no kernel for {spec.id}")
        self.unit = spec.unit
        self._id = spec.id
        self._errors = errors
        self._until_close = contextlib.ExitStack()
        self._flight: InFlight[Foreign] | None = None
        try:
            place = self._until_close.enter_context(bench)
            if spec.peers and len(place.devices) < 2:
                raise DeviceError(f"{spec.id} needs two devices or more and got {len(place.devices)}")
            body = builders[spec.id](place)
        except DeviceError as error:
            failure = error.with_traceback(None)  # which would keep the builder's frame
        except errors as error:
            failure = device_error(error, spec.id)
        else:
            self.work = spec.work if body.work is None else body.work
            self._flight = InFlight(body.launch, body.clock or place.clock)
            return
        # Only here are the frames gone that held the allocations.
        self.close()
        raise failure

    def run_block(self, n: int) -> float:
        """Launch `n` times; return seconds of device time, one block behind. Raises DeviceError."""
        if self._flight is None:
            raise DeviceError(f"{self._id}: the kernel is closed")
        with told(self._errors, self._id):
            return self._flight.run_block(n)

    def close(self) -> None:
        """Wait, free the memory and leave the workbench. A device that is gone frees nothing."""
        flight, self._flight = self._flight, None
        with contextlib.suppress(*self._errors):
            if flight is not None:
                flight.drain()
        del flight  # with it what the launches hold
        with contextlib.suppress(*self._errors):
            self._until_close.close()


def all_reduce(bench: Workbench, lanes: ring.Lanes) -> KernelBody:
    """An all-reduce over the workbench's devices. Its work is what passes over each link (ring.link_bytes)."""
    n = len(bench.devices)
    items = inputs.items(bench.spec.shape) // n
    first = bench.normal(n, items)
    made = ring.AllReduce([lanes.member(first, device) for device in bench.devices], lanes, bench.clock)
    return KernelBody(made.launch, ring.link_bytes(4 * items, n), made)
