# SPDX-License-Identifier: MIT
"""What each flag means, in a line for people, and how much it matters."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_pal.base.faults import FAULTS
from slurm_pal.report.inventory import NEVER_MEASURED, NOT_IN_SLURM
from slurm_pal.variability.records import Record
from slurm_pal.variability.regime import NOT_CAPPED

FAULT, NOTICE, AGE = "fault", "notice", "age"

MEANINGS: dict[str, tuple[str, str]] = {
    **{flag: (FAULT, state.meaning) for flag, state in FAULTS.items()},
    "degraded": (FAULT, "slowed down by the hardware (heat, power brake) while it was measured"),
    "quarantined": (NOTICE, "slow for good, in 2 of its last 4 sweeps: slow, not broken"),
    "outlier": (NOTICE, "far from the others of its model"),
    "step": (NOTICE, "its speed changed suddenly, and a second run confirmed it"),
    "drift": (NOTICE, "its speed changes slowly from sweep to sweep"),
    "unconfirmed": (NOTICE, "one run says so; the next sweep will show"),
    "thermal_limited": (NOTICE, "slowed down by the driver because of heat"),
    "config_differs": (NOTICE, "power limit, clocks or ECC differ from its peers"),
    "node_coupled": (NOTICE, "the whole node is slow in what depends on the host"),
    "pcie_link": (NOTICE, "the PCIe link is narrower or slower than it could be"),
    "foreign_process": (NOTICE, "somebody else's process was on the GPU: the run does not count"),
    "host_noise": (NOTICE, "the host was busy with other work"),
    "noisy": (NOTICE, "its blocks, joined to a second, scatter more than 0.5 %"),
    "unsteady": (NOTICE, "did not come to a steady state"),
    "late": (NOTICE, "running jobs waited for it since its last measurement"),
    "clock_skew": (NOTICE, "the clock of the node was ahead"),
    NOT_IN_SLURM: (NOTICE, "measured, but Slurm does not know it"),
    NOT_CAPPED: (AGE, "class A was measured below the power cap, where GPUs hardly differ"),
    "small_group": (AGE, "too few GPUs of its kind to compare with: score 1.0"),
    "stale": (AGE, "measured more than 30 days ago: its score counts less every day"),
    "unknown": (AGE, "no run that counts: all were bad or too long ago, or driver or settings have changed since"),
    NEVER_MEASURED: (AGE, "never measured"),
}
"""Flag -> (kind, meaning), the gravest first."""


def meaning(flag: str) -> str:
    """In words; the flag itself if it comes from a newer release and is not known here."""
    return MEANINGS[flag][1] if flag in MEANINGS else flag


def kind(flag: str) -> str:
    """`fault`: check the hardware; `notice`: be aware of it; `age`: measure again."""
    return MEANINGS[flag][0] if flag in MEANINGS else NOTICE


def why_refused(record: Record) -> str:
    """Why a run does not count, without naming the owner of a process; "" if it counts."""
    if "foreign_process" in record.flags or "in use by" in record.reason:
        return "another process was on the GPU"
    return record.reason or ("" if record.valid else ", ".join(by_gravity(record.flags)) or "not valid")


def by_gravity(flags: Iterable[str]) -> list[str]:
    """The flags, the gravest first, unknown ones last."""
    order = list(MEANINGS)
    return sorted(set(flags), key=lambda f: (order.index(f) if f in MEANINGS else len(order), f))
