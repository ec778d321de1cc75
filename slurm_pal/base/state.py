# SPDX-License-Identifier: MIT
"""Where palsub keeps its records: under $XDG_STATE_HOME, one folder for each cluster."""

from __future__ import annotations

import os

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import MOST_BYTES, read_plain, slurm_conf

DEFAULT_CONF = "/etc/slurm/slurm.conf"


def home(environment: dict[str, str] | None = None) -> str:
    """`$XDG_STATE_HOME/slurm-pal`, by default `~/.local/state/slurm-pal` (XDG base directories)."""
    env = os.environ if environment is None else environment
    base = env.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "slurm-pal")


def cluster_key(conf: str | None = None) -> str:
    """The folder name of the cluster in force: its ClusterName.

    The key of a cluster whose slurm.conf is not the system's own holds a checksum of that
    path: two private clusters may have the same name, and their job ids overlap.
    """
    path = conf or slurm_conf()
    name = "cluster"
    try:
        for line in read_plain(path, MOST_BYTES).decode(errors="replace").split("\n"):
            key, _, text = line.partition("=")
            if key.strip().lower() == "clustername":
                name = "".join(c for c in text.split("#")[0].strip().lower() if c.isalnum() or c in "-_") or name
                break
    except (OSError, DataError):
        pass  # a configless client has no such file; the system's cluster is meant
    if os.path.realpath(path) == os.path.realpath(DEFAULT_CONF) or not os.path.exists(path):
        return name
    from binascii import crc32

    return f"{name}-{crc32(os.fsencode(os.path.realpath(path))):08x}"


def folder(kind: str, cluster: str) -> str:
    """The folder of one kind ("leases", "decisions") of records, made if necessary, mode 0700.

    Raises OSError when it cannot be made.
    """
    path = os.path.join(home(), kind, cluster)
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path
