# SPDX-License-Identifier: MIT
"""Whether a process that this one leaves behind lives on: a watcher that dies early takes no node list back."""

from __future__ import annotations

import os

from slurm_pal.base.job_folder import job_of

LOGIND = ("/usr/lib/systemd/logind.conf.d", "/etc/systemd/logind.conf", "/run/systemd/logind.conf.d",
          "/etc/systemd/logind.conf.d")  # fmt: skip
"""Where logind's settings are, weakest first (logind.conf(5)); folders hold files of their own."""
LINGER = "/var/lib/systemd/linger"


def ends_with() -> str:
    """What would take such a process with it: "this job", "this service", "your login", or "" for nothing."""
    if os.environ.get("SLURM_JOB_ID"):
        return "this job"
    text = _text("/proc/self/cgroup")
    if job_of(text):
        return "this job"
    groups = [line.split("/")[1:] for line in text.splitlines()]
    # A service of the user's own, by a timer perhaps; those of the system stay, like cron and sshd. Its end is the end
    # of all its processes (systemd.kill(5)).
    if any(part.startswith("user@") for path in groups if path[-1:] and path[-1].endswith(".service")
           for part in path[:-1]):  # fmt: skip
        return "this service"
    session = any(part.startswith("session-") and part.endswith(".scope") for path in groups for part in path)
    return "your login" if session and kills_at_logout() else ""


def kills_at_logout() -> bool:
    """Whether logind ends what a user leaves behind, and this user has not asked to linger (loginctl(1))."""
    said = ""
    for place in LOGIND:
        names = [place] if place.endswith(".conf") else _files(place)
        for name in names:
            for line in _text(name).splitlines():
                key, sign, value = line.partition("=")
                if sign and key.strip() == "KillUserProcesses":
                    said = value.strip()
    if said.lower() not in ("yes", "true", "1", "on"):
        return False
    import pwd

    try:
        return not os.path.exists(os.path.join(LINGER, pwd.getpwuid(os.getuid()).pw_name))
    except KeyError:
        return True


def _files(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".conf")]
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(1 << 16)
    except OSError:
        return ""
