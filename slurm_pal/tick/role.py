# SPDX-License-Identifier: MIT
"""What this process may do on this cluster, by who runs it (scontrol(1), sacctmgr(1))."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from typing import NamedTuple

from slurm_pal.base.errors import SlurmError, UsageError, one_line
from slurm_pal.slurm.cli import subprocess_runner
from slurm_pal.slurm.client import Runner, SlurmClient
from slurm_pal.slurm.parse import whole

OWN, OTHERS, COMMENT, FEATURES, WEIGHTS, PLACES, WAIT, LOANS = (
    "own",
    "others",
    "admin-comment",
    "features",
    "weights",
    "places",
    "wait",
    "loans",
)
"""Own jobs; those of others; AdminComment; node features; node weights; places in the queue; reservations, without
which nobody waits; the nodes of partitions, without which nothing is lent."""

OPERATOR = "operator"
"""The role of those whom slurmdbd knows as operators or administrators."""

_MAY = {
    "slurm-user": frozenset({OWN, OTHERS, COMMENT, FEATURES, WEIGHTS, PLACES, WAIT, LOANS}),
    OPERATOR: frozenset({OWN, OTHERS, PLACES, WAIT}),
    "user": frozenset({OWN}),
}
_NOT_DONE = {
    FEATURES: "class features are not published: only SlurmUser ({owner}) and root may change nodes",
    WEIGHTS: "node weights are not set: only SlurmUser ({owner}) and root may change nodes",
    PLACES: "the queue keeps Slurm's order (rebalance.order): only a Slurm operator, SlurmUser ({owner}) and root may "
    "order the jobs of all users",
    WAIT: "no job waits for better GPUs behind a reservation (rebalance.wait): only SlurmUser ({owner}), root and "
    "Slurm operators may reserve nodes",
    LOANS: "no nodes are lent (loan.owners): only SlurmUser ({owner}) and root may change partitions",
}
"""One line for each thing that the settings ask for and this role may not do."""
_OPERATORS = frozenset({"operator", "administrator", "admin"})
TIMEOUT_S = 10.0


class Role(NamedTuple):
    """Who acts, and what Slurm lets them do."""

    name: str  # "slurm-user" (root too), "operator" or "user"
    user: str
    may: frozenset[str]  # of OWN, OTHERS, COMMENT, FEATURES, WEIGHTS, PLACES, WAIT, LOANS
    cannot: tuple[str, ...]  # one line for each thing asked for that is not done


def role_of(
    client: SlurmClient,
    pairs: Mapping[str, str],
    mine: bool,
    asked: Collection[str] = (),
    run: Runner | None = None,
    uid: int | None = None,
) -> Role:
    """The role of this process (or of `uid`) on a cluster with this configuration (`scontrol show config`).

    Where `pairs` is empty Slurm is asked for them. `asked` are the levers that the
    settings ask for (FEATURES, WEIGHTS, PLACES, WAIT, LOANS); `run` starts sacctmgr. With `mine` even SlurmUser cares
    for their own jobs only, as an ordinary user. A Slurm administrator counts as an operator.

    Raises UsageError for an ordinary user without `mine`, SlurmError when Slurm, or slurmdbd where it must be asked,
    does not answer.
    """
    pairs = pairs or client.config()
    uid = os.geteuid() if uid is None else uid
    user = _user_name(uid)
    owner, _, number = pairs.get("SlurmUser", "unknown").partition("(")
    name = "user" if mine else "slurm-user" if uid in (0, whole(number, -1)) else _by_accounting(pairs, user, run)
    if name == "user" and not mine:
        raise UsageError(
            f"{user} is neither SlurmUser ({owner}), root nor a Slurm operator, and may steer only their own jobs: "
            "pal-rebalance --mine"
        )
    refused = (line for what, line in _NOT_DONE.items() if what in asked and what not in _MAY[name])
    return Role(name, user, _MAY[name], tuple(line.format(owner=owner) for line in refused))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _by_accounting(pairs: Mapping[str, str], user: str, run: Runner | None) -> str:
    """ "operator" where the accounting database says so; "user" where it does not or is not in use.

    slurmdbd alone knows administration levels (sacctmgr(1), AdminLevel). Raises SlurmError when it does not answer.
    """
    if not pairs.get("AccountingStorageType", "").endswith("slurmdbd"):
        return "user"
    argv = ["sacctmgr", "-n", "-P", "-r", "show", "user", user, "format=AdminLevel"]
    try:
        done = (run or subprocess_runner(TIMEOUT_S))(argv, "")
        if done.returncode:
            raise SlurmError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    except SlurmError as error:
        raise SlurmError(
            f"slurmdbd does not answer, which knows whether {user} is a Slurm operator ({one_line(error)}): wait until "
            "it does, or steer only your own jobs: pal-rebalance --mine"
        ) from None
    return OPERATOR if done.stdout.strip().lower() in _OPERATORS else "user"
