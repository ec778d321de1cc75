# SPDX-License-Identifier: MIT
"""The files with which systemd or cron start ticks and sweeps, filled in for a site."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.profiling.sweep import window as windows

PROGRAM = "pal-rebalance"
SERVICE, ONCE, TIMER = (
    "systemd/pal-rebalance.service",
    "systemd/pal-rebalance-once.service",
    "systemd/pal-rebalance.timer",
)
GUARD = "systemd/pal-lease-guard.service"
PUBLISH = "systemd/pal-publish-table.service"
CRON, LOGROTATE = "cron.d/pal-rebalance", "logrotate.d/pal-rebalance"
SWEEP, EVENING, SWEEP_CRON = "systemd/pal-profile.service", "systemd/pal-profile.timer", "cron.d/pal-profile"
PUBLISH_CRON = "cron.d/pal-publish-table"
NAMES = (PUBLISH, SERVICE, GUARD, ONCE, TIMER, CRON, LOGROTATE, SWEEP, EVENING, SWEEP_CRON, PUBLISH_CRON)

_PROGRAM, _STATE_DIR, _USER, _GROUP = "/usr/bin/pal-rebalance", "/var/lib/slurm-pal", "slurm", "slurm"
_SWEEPER, _WINDOW = "/usr/bin/pal-profile", "20:00-06:00"
_PAL = "/usr/bin/pal"
"""Texts of the shipped files that are replaced."""
_PATH = "/usr/local/bin:/usr/bin:/bin"
_PLAIN = re.compile(r"[A-Za-z0-9_./+@=,-]+")
_PASSED_ON = ("SLURM_CONF", "SLURM_PAL_CONFIG")
_HIDDEN = {
    "ProtectHome=true": ("ProtectHome=read-only", ("/home/", "/root/", "/run/user/")),
    "PrivateTmp=true": ("PrivateTmp=false", ("/tmp/", "/var/tmp/")),
}
"""Settings that hide folders from a service, and their replacement if the service needs something there."""


class Deployment(NamedTuple):
    """Where things are on this site."""

    program: str
    user: str  # SlurmUser
    group: str
    state_dir: str
    log: str
    write_dirs: tuple[str, ...]  # other folders that a tick writes into
    variables: dict[str, str]  # what the programs need to know
    window: str = ""  # profile.window; "": the one of the shipped files

    @property
    def sweeper(self) -> str:
        """The path of pal-profile, beside pal-rebalance."""
        return os.path.join(os.path.dirname(self.program), os.path.basename(_SWEEPER))

    @property
    def pal(self) -> str:
        """The path of pal, beside pal-rebalance."""
        return os.path.join(os.path.dirname(self.program), os.path.basename(_PAL))

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that a service must see."""
        return (self.program, self.state_dir, self.log, *self.write_dirs, *self.variables.values())


def place(config: Config, uid: int, environ: Mapping[str, str] | None = None, program: str | None = None) -> Deployment:
    """What the files need to know. `uid` is SlurmUser's, `program` the path of pal-rebalance.

    Raises UsageError if the program is not found, a path cannot be in such a file, or
    profile.window is malformed.
    """
    env = os.environ if environ is None else environ
    user, group = _names(uid)
    state_dir = os.path.abspath(config.state_dir)
    log = os.path.abspath(config.text("rebalance", "log") or os.path.join(state_dir, "rebalance.log"))
    metrics = config.text("rebalance", "metrics")
    files = [config.snapshot_path, config.table_path, config.gpus_path, log, *([metrics] if metrics else [])]
    folders = {os.path.dirname(os.path.abspath(path)) for path in files} | {os.path.abspath(config.spool_dir)}
    if keep := config.text("rebalance", "keep_ticks"):
        folders.add(os.path.abspath(keep))
    more = sorted(folder for folder in folders if not f"{folder}/".startswith(f"{state_dir}/"))
    variables = {
        name: env[name] for name in _PASSED_ON if env.get(name, "/etc/slurm/slurm.conf") != "/etc/slurm/slurm.conf"
    }
    scontrol = os.path.dirname(shutil.which("scontrol", path=env.get("PATH")) or "")
    if scontrol and scontrol not in _PATH.split(":"):
        variables["PATH"] = f"{scontrol}:{_PATH}"
    program = program or find(env.get("PATH"))
    window = config.text("profile", "window")
    if window:
        windows.parse(window)
    found = Deployment(program, user, group, state_dir, log, tuple(more), variables, window)
    for path in found.paths:
        if not all(map(_PLAIN.fullmatch, path.split(":"))):
            raise UsageError(f"{path!r} cannot stand in a unit file: only letters, digits and _./+@=,- are allowed")
    return found


def find(path: str | None = None) -> str:
    """pal-rebalance beside the running Python, else in PATH. Raises UsageError if it is in neither."""
    beside = os.path.join(os.path.dirname(sys.executable), PROGRAM)
    found = beside if os.access(beside, os.X_OK) else shutil.which(PROGRAM, path=path)
    if not found:
        raise UsageError(f"{PROGRAM} is neither beside {sys.executable} nor in PATH: install slurm-pal first")
    return os.path.abspath(found)


def _names(uid: int) -> tuple[str, str]:
    import grp

    try:
        entry = pwd.getpwuid(uid)
        return entry.pw_name, grp.getgrgid(entry.pw_gid).gr_name
    except KeyError:
        raise UsageError(f"SlurmUser (uid {uid}) is unknown on this machine: run this where slurmctld runs") from None


def filled(where: Deployment) -> dict[str, str]:
    """Name (of `NAMES`) -> text, for this site."""
    folder = resources.files("slurm_pal") / "etc"
    shipped = {name: folder.joinpath(*name.split("/")).read_text("utf-8") for name in NAMES}
    return {
        PUBLISH: _service(shipped[PUBLISH], where),
        SERVICE: _service(shipped[SERVICE], where),
        GUARD: _service(shipped[GUARD], where),
        ONCE: _service(shipped[ONCE], where),
        TIMER: shipped[TIMER],
        CRON: _cron(shipped[CRON], where),
        LOGROTATE: _logrotate(shipped[LOGROTATE], where),
        SWEEP: _windowed(_service(shipped[SWEEP], where), where),
        EVENING: _windowed(shipped[EVENING], where),
        SWEEP_CRON: _windowed(_cron(shipped[SWEEP_CRON], where), where),
        PUBLISH_CRON: _cron(shipped[PUBLISH_CRON], where),
    }


def _service(text: str, where: Deployment) -> str:
    lines = [f"Environment={name}={value}" for name, value in where.variables.items()]
    under = where.state_dir.removeprefix("/var/lib/")
    if under == where.state_dir:
        lines.append(f"ReadWritePaths={where.state_dir}")
        text = re.sub(r"StateDirectory.*\n", "", text)
    else:
        text = text.replace("StateDirectory=slurm-pal\n", f"StateDirectory={under}\n")
    lines += [f"ReadWritePaths=-{folder}" for folder in where.write_dirs]
    for shipped, ours in ((_PROGRAM, where.program), (_SWEEPER, where.sweeper), (_PAL, where.pal)):
        text = text.replace(f"ExecStart={shipped} ", f"ExecStart={ours} ")
    text = text.replace(f"User={_USER}\nGroup={_GROUP}\n", f"User={where.user}\nGroup={where.group}\n")
    for hides, (shows, folders) in _HIDDEN.items():
        if any(path.startswith(folders) for path in where.paths):
            text = text.replace(hides, shows)
    return text.replace("UMask=0022\n", "".join(f"{line}\n" for line in [*lines, "UMask=0022"]))


def _cron(text: str, where: Deployment) -> str:
    variables = {"PATH": _PATH} | where.variables
    text = text.replace(f"PATH={_PATH}\n", "".join(f"{name}={value}\n" for name, value in variables.items()))
    for shipped, ours in ((_PROGRAM, where.program), (_SWEEPER, where.sweeper), (_PAL, where.pal)):
        text = text.replace(f"{_USER} {shipped} ", f"{where.user} {ours} ")
    return text


def _windowed(text: str, where: Deployment) -> str:
    """If pal.toml has a window, sweeps begin when it opens, and read it from there."""
    if not where.window:
        return text
    hour, minute = divmod(windows.parse(where.window).start_min, 60)
    text = text.replace(f" --window {_WINDOW}", "")
    text = text.replace("OnCalendar=20:00\n", f"OnCalendar={hour:02d}:{minute:02d}\n")
    return text.replace("\n0 20 * * * ", f"\n{minute} {hour} * * * ")


def _logrotate(text: str, where: Deployment) -> str:
    text = text.replace(f"{_STATE_DIR}/rebalance.log {{", f"{where.log} {{")
    return text.replace(f"su {_USER} {_GROUP}", f"su {where.user} {where.group}")
