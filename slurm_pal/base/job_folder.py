# SPDX-License-Identifier: MIT
"""Which Slurm job a control group belongs to, by the names of its folders."""

from __future__ import annotations

SCOPE = "slurmstepd.scope"  # with the node's name before it where Slurm was built for several slurmd on one machine
_DIGITS = frozenset("0123456789ABCDEFGHJKMNPQRSTVWXYZ")  # Crockford's base 32
_SLUID = 14  # "s" and 13 digits


def job_of(cgroup: str) -> str:
    """The job in the text of a /proc/PID/cgroup (version 1 or 2); "" when there is none.

    It is a number, as in /slurm/uid_1000/job_17 and slurmstepd.scope/job_17, or, from Slurm 26.05 on without
    CgroupJobIdPaths=yes, the job's SLUID, as in slurmstepd.scope/sEKNKTV3WPV500: a key that only compares.
    """
    for line in cgroup.splitlines():
        path = line.split("/")
        for place, name in enumerate(path):
            if name.startswith("job_") and name[4:].isdigit() and name.isascii():
                if any("slurm" in folder for folder in path[:place]):
                    return name[4:]
            elif path[place - 1].endswith(SCOPE) and _is_sluid(name):
                return name
    return ""


def _is_sluid(name: str) -> bool:
    return len(name) == _SLUID and name[0] == "s" and _DIGITS.issuperset(name[1:])
