# SPDX-License-Identifier: MIT
"""gres.conf: GPU types whose order makes Slurm give a job the wrong devices.

CUDA_VISIBLE_DEVICES counts positions in Slurm's list (seen on 22.05.8): with types that
alternate along the device numbers, a job of one type gets numbers of the other, unless a
device cgroup hides the rest.
"""

from __future__ import annotations

import re

from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import expand

_WORD = re.compile(r"([A-Za-z]+)=(\S+)")


def mixed_types(text: str) -> list[str]:
    """One line for each NodeName= of a gres.conf whose GPU types are not contiguous and in order."""
    devices: dict[str, list[tuple[int, str]]] = {}
    for line in text.split("\n"):
        words = {key.lower(): value for key, value in _WORD.findall(line.partition("#")[0])}
        if words.get("name", "").lower() == "gpu" and "file" in words:
            found = devices.setdefault(words.get("nodename", "all nodes"), [])
            found += [(number, words.get("type", "")) for number in _numbers(words["file"])]
    return [
        f"{nodes}: GPU types {', '.join(dict.fromkeys(kind or 'none' for _, kind in rows))} are not in device order"
        for nodes, rows in devices.items()
        if not _in_order(rows)
    ]


def _numbers(files: str) -> list[int]:
    try:
        names = expand(files)
    except UsageError:
        return []
    tails = (re.search(r"(\d+)$", name) for name in names)
    return [int(tail.group(1)) for tail in tails if tail]


def _in_order(rows: list[tuple[int, str]]) -> bool:
    """One type, or each type together, with numbers rising along the lines."""
    kinds = [kind for _, kind in rows]
    if len(set(kinds)) < 2:
        return True
    runs = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
    return rows == sorted(rows, key=lambda row: row[0]) and len(runs) == len(set(kinds))
