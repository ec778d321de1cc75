# SPDX-License-Identifier: MIT
"""What a user should learn once a day, not with each submission."""

from __future__ import annotations

import os

from slurm_pal.base import state

DAY_S = 86400.0
_NAME = "said"


def due(cluster: str, now_s: float) -> bool:
    """Whether a day has passed since this was last true for a cluster; False where that cannot be kept."""
    try:
        path = os.path.join(state.folder("leases", cluster), _NAME)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        if found.st_size and 0 <= now_s - found.st_mtime < DAY_S:
            return False
        os.write(descriptor, b"1")
        os.utime(descriptor, (now_s, now_s))
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
