# SPDX-License-Identifier: MIT
"""Slurm's states in one place. A state we do not know is UNKNOWN, never a crash.

Names from squeue(1) and sinfo(1), releases 22.05 to 26.05.
"""

from __future__ import annotations

JOB_ACTIVE = frozenset(
    {"RUNNING", "COMPLETING", "CONFIGURING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "RESIZING"}
)
JOB_WAITING = frozenset(
    {
        "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "POWER_UP_NODE",
        "EXPEDITING",
    }
)  # fmt: skip
JOB_ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
        "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT", "UPDATE_DB",
    }
)  # fmt: skip
JOB_UNKNOWN = "UNKNOWN"
HELD_BACK = "BadConstraints"
"""The reason of a pending job that no node of its partition fits: Slurm holds it, and does not release it by itself."""

NODE_BASE = frozenset({"ALLOCATED", "DOWN", "ERROR", "FUTURE", "IDLE", "MIXED", "UNKNOWN", "INVAL"})
NODE_FLAGS = frozenset(
    {
        "BLOCKED", "CLOUD", "COMPLETING", "DRAIN", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "EXTERNAL", "FAIL", "INVALID_REG",
        "MAINTENANCE", "NOT_RESPONDING", "PERFCTRS", "PLANNED", "POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN",
        "POWERING_UP", "POWER_UP", "REBOOT_CANCEL", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED", "RES", "UNDRAIN",
    }
)  # fmt: skip

_NODE_MARKS = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN",
    "$": "MAINTENANCE", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip
_NODE_OTHER_NAMES = {"MAINT": "MAINTENANCE", "DRAINED": "DRAIN", "DRAINING": "DRAIN", "NO_RESPOND": "NOT_RESPONDING"}

NODE_UNUSABLE = frozenset(
    {
        "BLOCKED", "DOWN", "DRAIN", "ERROR", "FAIL", "FUTURE", "INVAL", "INVALID_REG", "MAINTENANCE", "NOT_RESPONDING",
        "POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED", "REBOOT_REQUESTED", "UNKNOWN",
    }
)  # fmt: skip
"""A node in one of these states starts no job now."""

ASLEEP = frozenset({"POWERED_DOWN", "POWERING_UP"})
"""A node in one of these states takes a job, which starts when the node has booted."""

EXACTLY_IDLE = frozenset({"IDLE"})
"""The whole state of a node that a sweep may take; CLOUD and DYNAMIC_NORM nodes are left alone."""


def job_state(text: str) -> str:
    """The name of a job state, or UNKNOWN."""
    name = text.strip().upper()
    return name if name in JOB_ACTIVE or name in JOB_WAITING or name in JOB_ENDED else JOB_UNKNOWN


def node_states(text: str) -> frozenset[str]:
    """Split scontrol's `IDLE+DRAIN` or sinfo's `idle*` into names; strange words become UNKNOWN."""
    names: set[str] = set()
    for word in text.strip().upper().split("+"):
        while word and word[-1] in _NODE_MARKS:
            names.add(_NODE_MARKS[word[-1]])
            word = word[:-1]
        word = _NODE_OTHER_NAMES.get(word, word)
        if word:
            names.add(word if word in NODE_BASE or word in NODE_FLAGS else "UNKNOWN")
    return frozenset(names or {"UNKNOWN"})


def usable(states: frozenset[str]) -> bool:
    """Whether a node in these states could start a job now (as far as states show)."""
    return not states & NODE_UNUSABLE


def asleep(states: frozenset[str]) -> bool:
    """Whether Slurm would give a node in these states to a job that has to wait until it has booted."""
    return bool(states & ASLEEP) and usable(woken(states))


def woken(states: frozenset[str]) -> frozenset[str]:
    """The states of such a node once it has booted."""
    return states - ASLEEP - {"NOT_RESPONDING"}
