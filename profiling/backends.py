"""The table of device backends, and how one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from slurm_pal.errors import BusyError, MissingPackageError, SlurmError, UsageError
from slurm_pal.profiling.devices import Backend


class Setting(NamedTuple):
    """What a backend is opened with: plain words that survive a command line."""

    name: str
    registry: str = ""  # emu: the lab's registry of GPUs
    seed: int = 0
    wall_scale: float | None = None  # None: the backend's own


class Choice(NamedTuple):
    """One row of the table."""

    description: str
    find: Callable[[Mapping[str, str]], str | None]  # environment -> what `auto` found, None: not here
    open: Callable[[Setting], Backend]
    wall_scale: float  # wall seconds per second of device time


def _find_lab(environ: Mapping[str, str]) -> str | None:
    from slurm_pal.lab.gpus import find_registry

    return find_registry(environ)


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
    from slurm_pal.lab.gpus import load_registry, set_fault
    from slurm_pal.profiling.emu import DEFAULT_WALL_SCALE, EmuBackend

    scale = DEFAULT_WALL_SCALE if setting.wall_scale is None else setting.wall_scale

    def spend(node: str, index: int) -> None:
        _retry_busy(lambda: set_fault(setting.registry, node, index, "transient", None))

    return EmuBackend(load_registry(setting.registry), setting.seed, scale, spend)


BACKENDS: dict[str, Choice] = {
    "emu": Choice("emulated GPUs of a lab, with a virtual clock", _find_lab, _open_emu, 0.01),
}


def resolve(wanted: str, environ: Mapping[str, str], registry: str = "") -> Setting:
    """The backend for `wanted`, a name of the table or "auto" (the first that finds its devices).

    Raises UsageError for an unknown name, MissingPackageError when `auto` finds nothing,
    SlurmError when the named one does not.
    """
    if wanted == "auto":
        for name, choice in BACKENDS.items():
            found = registry or choice.find(environ)
            if found:
                return Setting(name, found)
        raise MissingPackageError(
            f"no GPU that this release can measure (backends: {', '.join(BACKENDS)}): start a lab with pal lab up"
        )
    if wanted not in BACKENDS:
        raise UsageError(f"unknown backend {wanted!r}; there are: auto, {', '.join(BACKENDS)}")
    found = registry or BACKENDS[wanted].find(environ)
    if not found:
        raise SlurmError(
            f"backend {wanted} finds no devices: start a lab with pal lab up and use its environment (pal lab env)"
        )
    return Setting(wanted, found)


def open_backend(setting: Setting) -> Backend:
    """The backend itself. Raises UsageError for an unknown name, and what the backend raises."""
    if setting.name not in BACKENDS:
        raise UsageError(f"unknown backend {setting.name!r}; there are: {', '.join(BACKENDS)}")
    return BACKENDS[setting.name].open(setting)
