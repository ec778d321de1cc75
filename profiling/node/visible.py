# SPDX-License-Identifier: MIT
"""Which of the devices that a GPU runtime counts is the one that the management library named."""

from __future__ import annotations

import os

from slurm_pal.profiling.node.binding import VISIBLE
from slurm_pal.profiling.node.devices import DeviceInfo

PciAddress = tuple[int, int, int]  # domain, bus, device


def shown(info: DeviceInfo) -> int | None:
    """Its place among the devices that this worker has let the runtime see (binding.show); None when not named."""
    names = os.environ.get(VISIBLE.get(info.vendor, ""), "").split(",")
    return names.index(info.uuid) if info.uuid in names else None


def pci_address(text: str) -> PciAddress | None:
    """The address in "00000000:3B:00.0" or "0000:3b:00"; None when it is not one."""
    try:
        domain, bus, rest = text.split(":")
        return int(domain, 16), int(bus, 16), int(rest.partition(".")[0], 16)
    except ValueError:
        return None
