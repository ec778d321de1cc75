# SPDX-License-Identifier: MIT
"""The table of device backends, and how one is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from slurm_pal.base.errors import BusyError, MissingPackageError, SlurmError, UsageError, one_line
from slurm_pal.profiling.node.devices import Backend


class Setting(NamedTuple):
    """What a backend is opened with: plain words that survive a command line."""

    name: str
    registry: str = ""  # emu: the lab's registry of GPUs; replay: the CSV
    seed: int = 0
    wall_scale: float | None = None  # None: the backend's own


class BackendChoice(NamedTuple):
    """One row of the table."""

    description: str
    available: Callable[[Mapping[str, str]], str]  # environment -> "" when usable here, else why not
    open: Callable[[Setting], Backend]
    wall_scale: float = 1.0  # wall seconds per second of device time
    needs_registry: bool = False  # knows no devices without the file that `registry` names


def _lab(environ: Mapping[str, str]) -> str:
    from slurm_pal.emulation.gpus import find_registry

    return "" if find_registry(environ) else "there is no lab here: start one with pal lab up, then pal lab env"


def _retry_busy(action: Callable[[], object], tries: int = 50) -> None:
    """Call again while another bench holds the lock; the last BusyError is raised."""
    import time

    for left in range(tries - 1, -1, -1):
        try:
            action()
            return
        except BusyError:
            if not left:
                raise
            time.sleep(0.02)


def _open_emu(setting: Setting) -> Backend:
    from slurm_pal.emulation.gpus import load_registry, wear
    from slurm_pal.profiling.node.emu import DEFAULT_WALL_SCALE, EmuBackend

    scale = DEFAULT_WALL_SCALE if setting.wall_scale is None else setting.wall_scale

    def worn(node: str, index: int) -> None:
        _retry_busy(lambda: wear(setting.registry, node, index))

    return EmuBackend(load_registry(setting.registry), setting.seed, scale, worn)


def _open_replay(setting: Setting) -> Backend:
    from slurm_pal.profiling.node.replay import open_backend

    return open_backend(setting)


def _module(name: str) -> tuple[Callable[[Mapping[str, str]], str], Callable[[Setting], Backend]]:
    """`available` and `open` of a separate module, imported only when asked."""

    def available(environ: Mapping[str, str]) -> str:
        try:
            return str(importlib.import_module(name).available())
        except (ImportError, OSError) as error:  # an optional package, or a library that it loads, is not there
            return f"cannot be imported: {one_line(error)}"

    def opened(setting: Setting) -> Backend:
        reason = available({})
        if reason:
            raise MissingPackageError(f"backend {setting.name} cannot be used here: {reason}")
        return cast(Backend, importlib.import_module(name).open_backend(setting))

    return available, opened


def _open_first(setting: Setting) -> Backend:
    """The first of the real backends that can be used on this machine."""
    reasons = []
    for name in REAL:
        reason = BACKENDS[name].available({})
        if not reason:
            return BACKENDS[name].open(setting._replace(name=name))
        reasons.append(f"{name}: {reason}")
    raise MissingPackageError(f"no GPU here that can be measured ({'; '.join(reasons)})")


REAL = ("torch", "driver", "cupy")
"""The order in which `auto` tries: libraries with tuned kernels first, then what needs only the driver."""

BACKENDS: dict[str, BackendChoice] = {
    "auto": BackendChoice(
        "the GPUs of a lab, else the first backend that finds a GPU", lambda environ: "", _open_first
    ),
    "emu": BackendChoice("emulated GPUs of a lab, with a virtual clock", _lab, _open_emu, 0.01, needs_registry=True),
    "torch": BackendChoice("PyTorch on CUDA, ROCm or XPU", *_module("slurm_pal.profiling.node.torch_backend")),
    "driver": BackendChoice("NVIDIA GPUs with nothing but the driver", *_module("slurm_pal.profiling.driver")),
    "cupy": BackendChoice("CuPy on CUDA", *_module("slurm_pal.profiling.node.cupy_backend")),
    "replay": BackendChoice(
        "measurements of a file, in place of devices",
        lambda environ: "it replays the CSV that --registry names",
        _open_replay,
        0.0,
        needs_registry=True,
    ),
}


def resolve(wanted: str, environ: Mapping[str, str], registry: str = "") -> Setting:
    """The setting for `wanted`, a name of the table or "auto" (a lab's GPUs where there is a lab).

    Called where a sweep is planned as well as on its nodes: only the node
    knows, when it opens the backend, whether a real GPU is there. Raises UsageError for an unknown
    name, SlurmError when the emulated GPUs have no lab.
    """
    if wanted not in BACKENDS:
        raise UsageError(f"unknown backend {wanted!r}; there are: {', '.join(BACKENDS)}")
    from slurm_pal.emulation.gpus import find_registry

    found = registry or find_registry(environ) or ""
    if wanted == "auto":
        return Setting("emu", found) if found else Setting("auto")
    if not BACKENDS[wanted].needs_registry:
        return Setting(wanted)
    if wanted == "replay" and not registry:
        raise UsageError("backend replay needs --registry FILE.csv, the measurements to replay")
    if not found:
        raise SlurmError(
            f"backend {wanted} finds no devices: start a lab with pal lab up and use its environment (pal lab env)"
        )
    return Setting(wanted, found)


def open_backend(setting: Setting) -> Backend:
    """The backend itself.

    Raises UsageError for an unknown name, MissingPackageError where it cannot be used, and
    what the backend raises.
    """
    if setting.name not in BACKENDS:
        raise UsageError(f"unknown backend {setting.name!r}; there are: {', '.join(BACKENDS)}")
    return BACKENDS[setting.name].open(setting)
