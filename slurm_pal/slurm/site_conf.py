# SPDX-License-Identifier: MIT
"""What slurm.conf says of counting, read as Slurm's own commands read it: no question to slurmctld.

`scontrol show config` would ask every controller whether it lives, and so wait for a backup that does not.
"""

from __future__ import annotations

import os

from slurm_pal.base.cluster import Counting, Partition
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import MOST_BYTES, read_plain
from slurm_pal.base.light import Iterator, Sequence
from slurm_pal.slurm.parse import counting, whole

_WANTED = {
    key.lower(): key
    for key in (
        "DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU", "DefCpuPerGPU", "MaxMemPerCPU", "SelectTypeParameters"
    )
}  # fmt: skip
_RECORDS = ("nodename=", "partitionname=", "nodeset=", "downnodes=", "frontendname=")
"""How lines begin whose words are about one record only."""
_DEEPEST = 4
CONFIGLESS = "/run/slurm/conf/slurm.conf"
"""Where slurmd and sackd keep what slurmctld has sent them (slurm.conf(5), configless)."""


RESUME_TIMEOUT_S = 60
"""Slurm's own default."""


def site_counting(path: str) -> Counting:
    """The site's own defaults and limits; none where there is no such file (a client that asks slurmctld each time)."""
    known = pairs(_in_force(path))
    return counting({key: known[name] for name, key in _WANTED.items() if name in known})


def boots_s(path: str, partitions: Sequence[Partition], known_s: float = 0.0) -> dict[str, float]:
    """Partition -> within so many s any node of it that is powered down has booted; `known_s` where that is known.

    Else after ResumeTimeout, when Slurm counts it as down: the highest one of a node's partitions, or the cluster's
    where none of them has one (slurm.conf(5)).
    """
    if known_s > 0:
        return {one.name: known_s for one in partitions}
    path = _in_force(path)
    general_s, own_s = float(whole(pairs(path).get("resumetimeout", ""), RESUME_TIMEOUT_S)), _own_timeouts_s(path)
    nodes_s: dict[str, float] = {}
    for one in partitions:
        if one.name in own_s:
            nodes_s |= {node: max(own_s[one.name], nodes_s.get(node, 0.0)) for node in one.nodes}
    if not nodes_s:
        return {one.name: general_s for one in partitions}
    return {
        one.name: max((nodes_s.get(node, general_s) for node in one.nodes), default=general_s) for one in partitions
    }


def _own_timeouts_s(path: str) -> dict[str, float]:
    """Partition -> its own ResumeTimeout, where it has one. What DEFAULT has holds for the partitions after it."""
    found: dict[str, float] = {}
    default_s = 0.0
    for line in _lines(path, 0):
        words = {key.lower(): text for key, _, text in (word.partition("=") for word in line.split())}
        if line.lower().startswith("partitionname="):
            timeout_s = float(whole(words.get("resumetimeout", "")))
            if words["partitionname"].upper() == "DEFAULT":
                default_s = timeout_s or default_s
            elif timeout_s or default_s:
                found |= dict.fromkeys(words["partitionname"].split(","), timeout_s or default_s)
    return found


def _in_force(path: str) -> str:
    return CONFIGLESS if not os.path.exists(path) and os.path.exists(CONFIGLESS) else path


def pairs(path: str) -> dict[str, str]:
    """What the file sets for the whole cluster: key in lower case -> value; {} for one that cannot be read."""
    found: dict[str, str] = {}
    for line in _lines(path, 0):
        if not line.lower().startswith(_RECORDS):
            for word in line.split():
                name, sign, text = word.partition("=")
                if sign:
                    found[name.lower()] = text
    return found


def _lines(path: str, depth: int) -> Iterator[str]:
    """The lines of a file and of those that it includes, without comments."""
    try:
        text = read_plain(path, MOST_BYTES).decode(errors="replace")
    except (OSError, DataError):
        return
    for line in text.replace("\\\n", "").split("\n"):
        line = line.partition("#")[0].strip()
        if line[:8].lower() == "include " and depth < _DEEPEST:
            yield from _lines(os.path.join(os.path.dirname(path), line[8:].strip()), depth + 1)
        elif line:
            yield line
