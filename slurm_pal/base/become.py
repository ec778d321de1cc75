# SPDX-License-Identifier: MIT
"""root gives up its powers where SlurmUser owns our files, so that they stay SlurmUser's."""

from __future__ import annotations

import contextlib
import os
import pwd

from slurm_pal.base import config as settings
from slurm_pal.base.files import slurm_user_uid


def slurm_user() -> None:
    """Become SlurmUser for good if this is root and SlurmUser owns the state directory. Raises OSError."""
    if os.geteuid() != 0:
        return
    wanted = slurm_user_uid()
    state_dir = settings.load().state_dir
    with contextlib.suppress(FileNotFoundError):
        if wanted and os.stat(state_dir).st_uid == wanted:
            user = pwd.getpwuid(wanted)
            os.initgroups(user.pw_name, user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(wanted)
