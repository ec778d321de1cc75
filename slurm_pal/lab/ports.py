# SPDX-License-Identifier: MIT
"""A block of free TCP ports for slurmctld and the slurmds of one lab."""

from __future__ import annotations

import contextlib
import errno
import socket
import zlib
from collections.abc import Iterator

LOWEST, HIGHEST = 15000, 32000  # below the ports that Linux gives to clients (ip(7), from 32768)


def free_blocks(size: int, key: str) -> Iterator[int]:
    """First ports of free blocks of `size` ports, each block at most once.

    The search starts at a place given by `key`, so that labs started at the same moment
    do not all try the same block. Nothing is reserved: if a daemon still finds its port
    taken, the next block is tried.
    """
    starts = range(LOWEST, HIGHEST - size, size)
    offset = zlib.crc32(key.encode()) % max(1, len(starts))
    for start in [*starts[offset:], *starts[:offset]]:
        if block_is_free(start, size):
            yield start


def block_is_free(start: int, size: int) -> bool:
    """Whether every port of the block can be bound now, the way Slurm binds (any address)."""
    with contextlib.ExitStack() as held:
        for port in range(start, start + size):
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm does: TIME_WAIT does not matter
            try:
                probe.bind(("", port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return False
                raise
    return True


def is_listening(port: int) -> bool:
    """Whether somebody listens on a TCP port of this machine, by proc_net(5), which disturbs nobody."""
    listening, local = "0A", f":{port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as stream:
        rows = (line.split(None, 4) for line in stream)
        return any(row[1].endswith(local) and row[3] == listening for row in rows if len(row) > 3)
