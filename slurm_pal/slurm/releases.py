# SPDX-License-Identifier: MIT
"""Slurm's releases: which are known here, and from which on they differ in what we ask or write.

The one place for such differences; code that fits all releases, or reads either form
(`gres:gpu:2` and `gres/gpu:2`), needs no entry. Found by running the same tests under
all three (make test-releases); docs/slurm.md has the differences that users see.
"""

from __future__ import annotations

from slurm_pal.base.errors import SlurmError

Release = tuple[int, int]
"""Year and month, like (22, 5)."""

OLDEST: Release = (22, 5)
NEWEST: Release = (26, 5)

SINCE: dict[str, Release] = {
    # cgroup.conf(5) lists CgroupPlugin=disabled; in older releases cgroup/v1 does nothing until it is used.
    "cgroup plugin disabled": (24, 5),
    # slurm.conf(5) has PreemptParameters; before, its words stood elsewhere, as preempt_....
    "preempt parameters": (23, 2),
    # slurm.conf(5), TopologyPlugin.
    "topology of blocks": (23, 11),
    # 24.11 refuses a node list of more than one segment and does not show that a job has segments; 26.05 takes the
    # list and shows SegmentSize. No release between was run.
    "segments with node lists": (26, 5),
    # An empty TresPerNode takes them away in 22.05 and in 26.05.5. In 24.11 the job is given them after every update
    # that Slurm accepts (that one, Gres=gpu:0, Gres=). No release between was run.
    "pending jobs keep their GPUs": (22, 6),
    "one REST plug-in": (23, 11),  # openapi/slurmctld for all versions of the data; before, one plug-in for each
    "slurmrestd refuses SlurmUser": (24, 12),  # 24.11 runs as them if told so, 26.05 does not; none between was run
    "narrow partitions refuse jobs": (22, 6),  # 22.05 lets them wait, 24.11 and 26.05 refuse; none between was run
}
"""Difference -> the first release that has it."""

UNTIL: dict[str, Release] = {"pending jobs keep their GPUs": (26, 5)}
"""Difference -> the first release that has it no more."""


def has(release: Release, difference: str) -> bool:
    """Whether a release has what `SINCE` names."""
    return release >= SINCE[difference] and not (difference in UNTIL and release >= UNTIL[difference])


def known(release: Release) -> bool:
    """Whether the tests were run under this release, or under an older and a newer one."""
    return OLDEST <= release <= NEWEST


def text(release: Release) -> str:
    """As Slurm writes it: 22.05."""
    return f"{release[0]}.{release[1]:02d}"


def printed(stdout: str, command: str) -> Release:
    """The release in what `command` (`-V`, `--version`) printed. Raises SlurmError where there is none.

    Debian's packages print `slurm-wlm 22.05.8`, others `slurm 22.05.8`.
    """
    import re

    match = re.search(r"(?:^|\s)([0-9]{1,4})\.([0-9]{1,4})", stdout)
    if match is None:
        raise SlurmError(f"{command} printed {stdout.strip()!r}, not a release")
    return int(match.group(1)), int(match.group(2))
