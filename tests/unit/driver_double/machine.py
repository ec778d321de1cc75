# SPDX-License-Identifier: MIT
"""A machine with a double of the NVIDIA driver: the fake libcuda, compiled with the kernels' own source."""

from __future__ import annotations

import ctypes
import fcntl
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.profiling import driver
from slurm_pal.profiling.driver import vendor
from slurm_pal.profiling.driver.backend import DriverBackend
from slurm_pal.profiling.node.devices import Counters, DeviceInfo, SensorSample, Static

_HERE = Path(__file__).parent
_SOURCES = ("fake_cuda.c", "fibers.c")


class Quiet:
    """Sensors that see nothing."""

    def __init__(self, devices: tuple[DeviceInfo, ...]) -> None:
        self._devices = devices

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        return tuple(d for d in self._devices if d.slot in indexes)

    def static(self, device: DeviceInfo) -> Static:
        return Static("535.1")

    def counters(self, device: DeviceInfo) -> Counters:
        return Counters()

    def watch(self, device: DeviceInfo) -> Quiet:
        return self

    def sample(self) -> SensorSample:
        return SensorSample(0.0)

    def take(self) -> tuple[SensorSample, ...]:
        return ()

    def close(self) -> None:
        """Nothing to stop."""


class Machine:
    """The double, its devices, and the knobs of fake_cuda.c."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.double = ctypes.CDLL(self.path)
        self.double.double_launch_s.argtypes = (ctypes.c_double,)
        self.double.double_memory.argtypes = (ctypes.c_longlong,)
        self.reset()

    def reset(self, devices: int = 2, capability: int = 80) -> None:
        """A healthy machine with so many devices."""
        self.double.double_reset(devices, capability)
        self.devices = tuple(
            DeviceInfo(f"GPU-00000000-0000-0000-0000-{i:012x}", "nvidia", "double", i) for i in range(devices)
        )

    def fail(self, name: str, code: int, after: int = 0) -> None:
        """The call or kernel of this name fails with `code`, after so many that succeed."""
        self.double.double_fail(name.encode(), code, after)

    def heal(self) -> None:
        """Nothing fails any more."""
        self.double.double_heal()

    def live(self) -> int:
        """Contexts, modules, allocations, streams and events that were not given back."""
        return int(self.double.double_live())

    def backend(self) -> DriverBackend:
        """A backend in a process of its own, as it were."""
        return DriverBackend(Quiet(self.devices), self.path)


class Without:
    """A library in which these functions are not found."""

    def __init__(self, library: ctypes.CDLL, names: Collection[str]) -> None:
        self._library = library
        self._names = names

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name in self._names:
            raise AttributeError(name)
        return getattr(self._library, name)


def _compile(path: Path, sources: Sequence[str], *options: str) -> None:
    """Make `path`, unless another process of this test run has."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed, and the double of the driver is compiled by it")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            files = [str(_HERE / name) for name in sources]
            subprocess.run(
                [compiler, "-std=gnu11", "-shared", "-fPIC", *files, *options, "-o", str(path.with_suffix(".new"))],
                check=True,
            )
            path.with_suffix(".new").rename(path)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The double as a shared library: a driver of CUDA 11.0."""
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # of pytest-xdist: all workers share one
        base = base.parent
    kernels = Path(driver.__file__).resolve().parent
    # Fibers jump between stacks, which a fortified longjmp takes for an attack.
    options = ("-O2", "-U_FORTIFY_SOURCE", "-I", str(_HERE), "-I", str(kernels), "-lm")
    _compile(base / "libdouble.so", _SOURCES, *options)
    return base / "libdouble.so"


@pytest.fixture
def machine(compiled: Path) -> Iterator[Machine]:
    """A healthy machine of two devices; whoever uses it leaves nothing on them."""
    made = Machine(compiled)
    yield made
    assert made.live() == 0
    assert made.double.double_damaged() == 0


@pytest.fixture
def cublas(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The double of cuBLAS, found in place of the library; no handle stays."""
    path = compiled.with_name("libcublas_double.so")
    _compile(path, ("cublas.c",), "-O2", str(compiled))
    monkeypatch.setattr(vendor, "LIBRARIES", ("libcublas.so.none", str(path)))
    library = ctypes.CDLL(str(path))
    yield library
    assert library.cublas_handles() == 0


@pytest.fixture
def late_machine(compiled: Path) -> Iterator[Machine]:
    """The same with a driver that has the functions of CUDA 11.4."""
    late = compiled.with_name("liblate.so")
    _compile(late, ("late.c",), str(compiled))
    made = Machine(late)
    yield made
    assert made.live() == 0
