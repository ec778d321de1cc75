# SPDX-License-Identifier: MIT
"""What `pal setup` finds on a machine: which host of the cluster it is, who SlurmUser is, which programs are ours."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import sys
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.admin import conf_text, services
from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import expand

PROGRAMS = ("palsub", "pal", "pal-profile", "pal-rebalance")
STANDARD = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
SYSTEMD, CRON, NONE = "systemd", "cron", "none"
KEEPERS = (SYSTEMD, CRON, NONE)
"""What keeps our services running."""
CRON_FOLDER = "/etc/cron.d"
_CRONS = ("cron", "crond")


class Account(NamedTuple):
    """SlurmUser, by slurm.conf."""

    name: str
    uid: int
    gid: int


def slurm_user(conf: str, texts: Mapping[str, str]) -> Account:
    """SlurmUser; root where slurm.conf names none. Raises UsageError for one whom this machine does not know."""
    name = conf_text.value(conf, texts, "SlurmUser").partition("(")[0] or "root"
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        raise UsageError(
            f"{conf}: SlurmUser={name} is unknown on this machine: create that account, or run this where it exists"
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def check_conf(conf: str, texts: Mapping[str, str]) -> None:
    """Raises UsageError for a file that is no slurm.conf: it names neither a cluster nor its controller."""
    if not any(conf_text.value(conf, texts, key) for key in ("ClusterName", "SlurmctldHost", "ControlMachine")):
        raise UsageError(f"{conf} has neither ClusterName nor SlurmctldHost, so it is no slurm.conf: give --conf DIR")


def is_controller(conf: str, texts: Mapping[str, str]) -> bool:
    """Whether slurmctld runs here, by the names after SlurmctldHost in slurm.conf (all of them count)."""
    names: set[str] = set()
    for text in texts.values():
        for statement in conf_text.statements(text):
            if statement.key in ("slurmctldhost", "controlmachine", "backupcontroller"):
                names |= {name.partition("(")[0] for name in expand(statement.value.partition("(")[0])}
    here = socket.gethostname()
    return not names or bool({name.partition(".")[0] for name in names} & {here.partition(".")[0], "localhost"})


def keeper(root: bool, lab: bool) -> str:
    """What could keep services running here: systemd, cron, or none."""
    if not root or lab:
        return NONE
    if services.present():
        return SYSTEMD
    found = any(shutil.which(name, path=":".join(STANDARD)) for name in _CRONS)
    return CRON if found and os.path.isdir(CRON_FOLDER) else NONE


def trusted_path(text: str, powers: set[int]) -> tuple[str, list[str]]:
    """$PATH for root: without folders that others could put programs into; and those folders, "" as "."."""
    kept: list[str] = []
    dropped: list[str] = []
    for folder in text.split(":"):
        try:
            info = os.stat(folder) if os.path.isabs(folder) else None
        except OSError:
            continue
        if info is not None and info.st_uid in powers and not info.st_mode & 0o002:
            kept.append(folder)
        else:
            dropped.append(folder or ".")
    return ":".join(dict.fromkeys((*kept, *STANDARD))), dropped


def bin_folder() -> str:
    """Where our programs are: beside this Python, else where this one was started. Raises UsageError."""
    places = [os.path.dirname(os.path.abspath(sys.executable)), os.path.dirname(os.path.realpath(sys.argv[0]))]
    for folder in places:
        if all(os.access(os.path.join(folder, name), os.X_OK) for name in PROGRAMS):
            return folder
    raise UsageError(f"{', '.join(PROGRAMS)} are not all in {places[0]}: install slurm-pal, by pip or a package")


def by_package(folder: str) -> bool:
    """Whether users have our programs in /usr/bin already, and with them completions and man pages."""
    return all(
        os.path.realpath(f"/usr/bin/{name}") == os.path.realpath(os.path.join(folder, name)) for name in PROGRAMS
    )
