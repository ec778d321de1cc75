"""A machine with a double of the NVIDIA driver: the fake libcuda, compiled with the kernels' own source."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slurm_pal.profiling import driver
from slurm_pal.profiling.devices import Counters, DeviceInfo, Sample, Static
from slurm_pal.profiling.driver.backend import DriverBackend

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

    def sample(self) -> Sample:
        return Sample(0.0)

    def take(self) -> tuple[Sample, ...]:
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


def _compile(folder: Path, *options: str) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed, and the double of the driver is compiled by it")
    path = folder / "libcuda.so"
    kernels = Path(driver.__file__).resolve().parent
    # Fibers jump between stacks, which a fortified longjmp takes for an attack.
    how = (
        "-std=gnu11",
        "-O2",
        "-U_FORTIFY_SOURCE",
        "-shared",
        "-fPIC",
        "-I",
        str(_HERE),
        "-I",
        str(kernels),
        "-x",
        "c",
    )
    sources = [str(_HERE / name) for name in _SOURCES]
    subprocess.run([compiler, *how, *options, *sources, "-o", str(path), "-lm"], check=True)
    return path


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The double as a shared library: a driver of CUDA 11.0."""
    return _compile(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def machine(compiled: Path) -> Iterator[Machine]:
    """A healthy machine of two devices; whoever uses it leaves nothing on them."""
    made = Machine(compiled)
    yield made
    assert made.live() == 0
    assert made.double.double_damaged() == 0


@pytest.fixture
def late_machine(tmp_path: Path) -> Iterator[Machine]:
    """The same with a driver that has the functions of CUDA 11.4."""
    made = Machine(_compile(tmp_path, "-DLATE"))
    yield made
    assert made.live() == 0
