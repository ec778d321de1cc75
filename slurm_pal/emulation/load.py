# SPDX-License-Identifier: MIT
"""What the emulated GPUs of a lab are doing now, for the code that emulates their sensors.

`pal lab work` writes one small file for each GPU beside the registry, and removes it at its
end. A file whose process has ended does not count: all nodes of a lab are one machine.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence

from slurm_pal.base.files import write_atomic
from slurm_pal.emulation.gpus import CLASSES

FOLDER = "emu_load"


def _path(registry: str, node: str, index: int) -> str:
    return os.path.join(os.path.dirname(registry), FOLDER, f"{node}.{index}.json")


@contextlib.contextmanager
def running(registry: str, gpus: Mapping[str, Sequence[int]], sensitivity: str) -> Iterator[None]:
    """These GPUs (node -> indexes) run work of one class while the block runs.

    A file that cannot be written costs the sensors, not the work.
    """
    paths = [_path(registry, node, index) for node, indexes in gpus.items() for index in indexes]
    with contextlib.suppress(OSError):
        os.makedirs(os.path.join(os.path.dirname(registry), FOLDER), exist_ok=True)
        for path in paths:
            write_atomic(path, json.dumps({"class": sensitivity, "pid": os.getpid()}) + "\n")
    try:
        yield
    finally:
        for path in paths:
            with contextlib.suppress(OSError):
                os.unlink(path)


def load_of(registry: str, node: str, index: int) -> str:
    """The class of the work on a GPU, "" if it is idle."""
    try:
        with open(_path(registry, node, index), encoding="utf-8") as stream:
            said = json.load(stream)
        sensitivity, pid = str(said["class"]), int(said["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return sensitivity if sensitivity in CLASSES and os.path.exists(f"/proc/{pid}") else ""
