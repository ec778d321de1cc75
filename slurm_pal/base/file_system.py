# SPDX-License-Identifier: MIT
"""On which kind of file system a path is: whether other hosts can see it."""

from __future__ import annotations

import contextlib
import os

OF_ONE_HOST = frozenset({
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "f2fs", "jfs", "reiserfs", "bcachefs",
})  # fmt: skip
"""File systems that one host has for itself, unless it exports them."""


def file_system(path: str) -> str:
    """The type of the file system that a path is or would be on, "" if that is not known."""
    path = os.path.realpath(path)
    best = ("", "")
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="replace") as stream:
        for words in map(str.split, stream):
            place = words[1].replace("\\040", " ") if len(words) > 2 else ""
            if len(place) >= len(best[0]) and f"{path}/".startswith(place.rstrip("/") + "/"):
                best = (place, words[2])
    return best[1]
