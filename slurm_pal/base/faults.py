# SPDX-License-Identifier: MIT
"""States of a GPU that was seen to fail: their names, what each means, and how it ends.

A state is the gravest of a GPU's flags that are faults. It lasts until a clean measurement, and meanwhile
jobs are kept off the GPU. Nothing else happens: no node is drained.
"""

from __future__ import annotations

from slurm_pal.base.light import Any, Iterable, Mapping, NamedTuple


class FaultState(NamedTuple):
    """One state."""

    name: str
    meaning: str
    cure: str  # with {node} and {gpu} (NODE:INDEX)


FAULTS = {
    "missing": FaultState(
        "missing", "the driver does not list it", "read dmesg on {node}, reboot it, reseat or replace the GPU"
    ),
    "no_answer": FaultState(
        "no-answer", "it stopped answering while it was measured", "reset the GPU or reboot {node}"
    ),
    "xid": FaultState(
        "xid", "the driver reported an error of the device (Xid)", "read dmesg on {node}, reset or replace the GPU"
    ),
    "ecc": FaultState(
        "ecc",
        "memory errors that could not be corrected",
        "reset the GPU; if they come back, replace it (pal evidence {gpu})",
    ),
    "suspect_hw": FaultState(
        "suspect",
        "slow and below its peers' power: a fault rather than variability",
        "check its cooling, power cable and slot (pal evidence {gpu})",
    ),
}
"""Flag -> state, the gravest first."""
NO_UUID = "missing:"
"""Before NODE:INDEX in place of the UUID of a GPU that the driver does not list."""
OK = "ok"
"""The state of a GPU without a fault."""


def fault_of(flags: Iterable[str]) -> str:
    """The gravest flag that is a fault, "" without one."""
    found = frozenset(flags)
    return next((flag for flag in FAULTS if flag in found), "") if found else ""


def state_of(flags: Iterable[str]) -> str:
    """The state that a GPU's flags mean."""
    flag = fault_of(flags)
    return FAULTS[flag].name if flag else OK


def cure_of(flags: Iterable[str], node: str, index: int) -> str:
    """What to do about a GPU with these flags, and how its state ends; "" where it has no fault."""
    flag = fault_of(flags)
    if not flag:
        return ""
    return f"{FAULTS[flag].cure.format(node=node, gpu=f'{node}:{index}')}; then pal-profile run -w {node}"


def faulty_gpus(offer: Mapping[str, Any]) -> str:
    """Of the record of an offer the GPUs that were seen to fail, like `n5:2 (no-answer)`; "" without any."""
    bad = [gpu for gpu in offer["gpus"] if gpu.get("state", OK) != OK]  # older records have no state
    return ", ".join(f"{gpu['node']}:{gpu['index']} ({gpu['state']})" for gpu in bad)


def fault_line(flags: Iterable[str], node: str, index: int) -> str:
    """One line on a faulty GPU: where, what, and what to do."""
    held = tuple(flags)
    return f"{node}:{index} {state_of(held)}: {cure_of(held, node, index)}"
