# SPDX-License-Identifier: MIT
"""All-reduce over the GPUs of a node, driven by one process: copies between neighbours and our own adds.

Who sends what to whom is profiling/node/ring.py. Each device has one stream, in which it fetches its
left neighbour's chunk and adds it; a step of a device waits for the neighbour's step before it.
Inputs are kept, sums are beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_void_p

from slurm_pal.profiling.driver.arguments import NumberFormat, Stream
from slurm_pal.profiling.driver.gpu import GpuContext, Marks
from slurm_pal.profiling.driver.traffic import BLOCK_VECTORS, VECTOR
from slurm_pal.profiling.driver.workbench import Array, BenchLaunch, DriverWorkbench
from slurm_pal.profiling.node import ring
from slurm_pal.profiling.node.devices import DeviceError


class _Member:
    """One device of the ring: its input, its sums, and room for the chunk that comes."""

    def __init__(self, gpu: GpuContext, size: int, chunk: int) -> None:
        self.gpu = gpu
        self.input, self.sums, self.stage = gpu.allocate(size), gpu.allocate(size), gpu.allocate(chunk)
        self.done = gpu.event(timed=False)
        gpu.load(["ring_add"])


class Ring:
    """The whole ring. Its marks come after the streams of all devices (profiling/node/in_flight.py: Clock)."""

    def __init__(self, bench: DriverWorkbench, first: Array) -> None:
        n = len(bench.gpus)
        self.chunk = first.size // n
        self._copy = bench.gpu.library.function("cuMemcpyPeerAsync")
        self._members = [_Member(gpu, first.size, self.chunk) for gpu in bench.gpus]
        for left, right in zip(bench.gpus, bench.gpus[1:] + bench.gpus[:1], strict=True):
            left.reach(right)  # neighbours alone: without a switch a device has eight peers at most
            right.reach(left)
        for member in self._members:  # each has the same input: drawn once, then sent
            self._fetch(member, member.input, bench.gpu, first.address, first.size)
            member.gpu.wait()
        self._marks = Marks(bench.gpu)
        self._steps = [[self._move(move) for move in moves] for moves in ring.steps(n)]
        self._sources = [[(move.target, move.source) for move in moves] for moves in ring.steps(n)]
        self.sums = [Array(m.sums, NumberFormat.FP32, (first.size // 4,)) for m in self._members]

    def _fetch(self, to: _Member, address: int, source: GpuContext, from_address: int, size: int) -> None:
        to.gpu.use()
        code = self._copy(address, to.gpu.context, from_address, source.context, size, to.gpu.stream)
        to.gpu.library.check("cuMemcpyPeerAsync", code)

    def _move(self, move: ring.Transfer) -> Callable[[], None]:
        """One chunk from one device to the next, as launches in the target's stream."""
        source, target = self._members[move.source], self._members[move.target]
        at, size = move.chunk * self.chunk, self.chunk
        origin = (source.input if move.first else source.sums) + at
        if not move.add:
            return lambda: self._fetch(target, target.sums + at, source.gpu, origin, size)
        argument = Stream(target.sums + at, target.input + at, target.stage, size // VECTOR, 1.0, 0)
        add = target.gpu.launch("ring_add", (size // VECTOR // BLOCK_VECTORS, 1), argument)

        def fetch_and_add() -> None:
            self._fetch(target, target.stage, source.gpu, origin, size)
            add()  # in the target's context, which the copy has made the current one

        return fetch_and_add

    def launch(self) -> None:
        """One all-reduce: afterwards the sums of every device are those over all inputs."""
        self._meet()
        for moves, sources in zip(self._steps, self._sources, strict=True):
            for target, source in sources:
                self._wait_for(self._members[target], self._members[source].done)
            for move in moves:
                move()
            self._record()

    def _meet(self) -> None:
        """No device starts again while another still reads its sums."""
        self._record()
        for member in self._members:
            for other in self._members:
                self._wait_for(member, other.done)

    def _record(self) -> None:
        for member in self._members:
            member.gpu.use()
            member.gpu.library.call("cuEventRecord", member.done, member.gpu.stream)

    def _wait_for(self, member: _Member, event: c_void_p) -> None:
        member.gpu.use()
        member.gpu.library.call("cuStreamWaitEvent", member.gpu.stream, event, 0)

    def mark(self) -> c_void_p:
        self._meet()
        return self._marks.mark()

    def wait(self, mark: c_void_p) -> None:
        self._marks.wait(mark)

    def elapsed_s(self, start: c_void_p, end: c_void_p) -> float:
        return self._marks.elapsed_s(start, end)


def build(bench: DriverWorkbench) -> BenchLaunch:
    """The benchmark over its own device and all peers. Raises DeviceError."""
    n = len(bench.gpus)
    if n < 2:
        raise DeviceError(f"{bench.spec.id} needs two devices or more and got {n}")
    bench.load([])
    unit = n * VECTOR * BLOCK_VECTORS
    size = bench.array_bytes(VECTOR) // unit * unit  # a few KiB less where n divides the array unevenly
    if not size:
        raise DeviceError(
            f"{bench.spec.id}: an array of {bench.array_bytes(VECTOR)} bytes; wanted {unit} or more for {n} devices"
        )
    first = bench.normal(NumberFormat.FP32, size // 4)
    reduction = Ring(bench, first)
    arrays = {"input": first} | {f"sums{i}": array for i, array in enumerate(reduction.sums)}
    return BenchLaunch(reduction.launch, ring.link_bytes(reduction.chunk, n), arrays, reduction)
