# SPDX-License-Identifier: MIT
"""Where the tick keeps its journal and its log, and which journal this user may read."""

from __future__ import annotations

import os
import pwd

from slurm_pal.base import state
from slurm_pal.base.config import Config
from slurm_pal.base.files import slurm_user_uid

KIND = "rebalance"
"""The folder of a user's own ticks below `state.home()`."""


def journal_path(config: Config, mine: bool) -> str:
    """The journal to write: STATE_DIR/rebalance.db, or with `mine` one in the user's own state folder.

    That folder is made if need be, mode 0700. Raises OSError when it cannot be made.
    """
    return os.path.join(_folder() if mine else config.state_dir, "journal.db" if mine else "rebalance.db")


def log_path(config: Config, mine: bool) -> str:
    """The log to write: `rebalance.log` of the settings or beside the journal; with `mine` the user's own.

    Raises OSError as `journal_path` does.
    """
    if mine:
        return os.path.join(_folder(), "rebalance.log")
    return config.text("rebalance", "log") or os.path.join(config.state_dir, "rebalance.log")


def readable_journal(config: Config) -> str | None:
    """The journal that shows this user what they may know: the site's for root and SlurmUser, else their own.

    None where there is none: no tick was ever made here. Creates nothing. It may
    exist and yet not open.
    """
    own = os.path.join(state.home(), KIND, state.cluster_key(), "journal.db")
    site = os.path.join(config.state_dir, "rebalance.db")
    places = (site, own) if has_powers() else (own,)
    return next((path for path in places if os.path.lexists(path)), None)


def has_powers() -> bool:
    """Whether this is root or SlurmUser, who may see everybody's jobs."""
    return os.geteuid() in {0, slurm_user_uid()}


def user_name() -> str:
    """The name of the user that this process is, whatever the environment says."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _folder() -> str:
    return state.folder(KIND, state.cluster_key())
