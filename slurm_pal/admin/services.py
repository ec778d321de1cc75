# SPDX-License-Identifier: MIT
"""The units in the site's systemd: which are written, which are started, which of them replaces which."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.admin import units
from slurm_pal.admin.changes import ChangePlan, FileChange
from slurm_pal.admin.site_files import read_text
from slurm_pal.base.errors import PalError
from slurm_pal.report.check_result import CheckResult
from slurm_pal.slurm.client import Runner

FOLDER = "/etc/systemd/system"
RUNNING = "/run/systemd/system"
"""It exists where systemd runs (sd_booted(3))."""
SYSTEMCTL = "systemctl"
STAMPS = "/var/lib/systemd/timers"
_OURS = "# slurm-pal:"
"""How each of our units begins."""


class Wanted(NamedTuple):
    """The services that a site needs for the filter's table and the end of leases."""

    run: tuple[str, ...]  # names of units, to be started now and at each boot
    end: tuple[str, ...]  # which they replace
    anew: tuple[str, ...]  # which must read pal.toml again, if they run
    by_hand: str  # the same without systemd


def present() -> bool:
    """Whether this machine is run by systemd."""
    return os.path.isdir(RUNNING) and shutil.which(SYSTEMCTL) is not None


def wanted(mode: str, where: units.Deployment) -> Wanted:
    """By rebalance.mode: a daemon that acts also publishes and takes lists back, one that advises does not."""
    guard, publish, ticks = (os.path.basename(name) for name in (units.GUARD, units.PUBLISH, units.SERVICE))
    if mode == "act":
        return Wanted((guard, ticks), (publish,), (ticks,), f"{where.program} --daemon")
    return Wanted((guard, publish), (), (ticks,), f"{where.pal} publish-table --every 5")


def install(where: units.Deployment) -> ChangePlan:
    """The plan that writes all units; none of them is started by that."""
    plan = ChangePlan()
    for name, text in units.filled(where).items():
        if not name.startswith("systemd/"):
            continue
        path = os.path.join(FOLDER, os.path.basename(name))
        old = read_text(path) if os.path.lexists(path) else None
        if old is not None and not old.startswith(_OURS):
            plan += ChangePlan(blockers=(f"{path} is not ours: move it away",))
        elif old != text:
            plan += ChangePlan((FileChange("copy", path, "a unit; nothing is started by it", text, old),))
    return plan


def uninstall() -> ChangePlan:
    """The plan that removes the units that are ours."""
    return ChangePlan(tuple(FileChange("remove", path, "our unit", old=text) for path, text in _written().items()))


def _written() -> dict[str, str]:
    """The units that are ours: path -> text."""
    found = [os.path.join(FOLDER, os.path.basename(name)) for name in units.NAMES if name.startswith("systemd/")]
    texts = {path: read_text(path) for path in found if os.path.isfile(path)}
    return {path: text for path, text in texts.items() if text.startswith(_OURS)}


def start(needs: Wanted) -> list[list[str]]:
    """The commands that put the services into force, in their order: only one process at a time may publish."""
    ends = [[SYSTEMCTL, "disable", "--now", *needs.end]] if needs.end else []
    return [
        *ends,
        [SYSTEMCTL, "try-restart", *needs.anew],
        [SYSTEMCTL, "enable", "--now", *needs.run],
    ]


def running(needs: Wanted, run: Runner) -> bool:
    """Whether all that is needed runs, and nothing that it replaces."""

    def active(name: str) -> bool:
        return run([SYSTEMCTL, "is-active", "--quiet", name], "").returncode == 0

    return all(map(active, needs.run)) and not any(map(active, needs.end))


def stop(paths: Sequence[str]) -> list[str]:
    """The command that ends the services of these unit files."""
    return [SYSTEMCTL, "disable", "--now", *map(os.path.basename, paths)]


def forget(paths: Sequence[str]) -> list[list[str]]:
    """The commands after these unit files were removed: systemd keeps nothing of them."""
    # Patterns, since a name that is not loaded would be an error.
    patterns = [f"{os.path.basename(path)}*" for path in paths]
    return [[SYSTEMCTL, "daemon-reload"], [SYSTEMCTL, "reset-failed", *patterns]]


def stamps(paths: Sequence[str]) -> ChangePlan:
    """The plan that removes what systemd keeps of these timers for ever: files that show when each last elapsed."""
    found = [os.path.join(STAMPS, f"stamp-{os.path.basename(path)}") for path in paths if path.endswith(".timer")]
    return ChangePlan(tuple(FileChange("remove", path, "our timer's") for path in found if os.path.isfile(path)))


def findings(run: Runner) -> list[CheckResult]:
    """Those of our units that have failed, start again and again, or are stopped though each boot starts them."""
    names = [os.path.basename(path) for path in _written()]
    if not names:
        return []
    done = run([SYSTEMCTL, "show", "--property=Id,ActiveState,SubState,UnitFileState", *names], "")
    runs, found = [], []
    for block in done.stdout.split("\n\n"):
        facts = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name, state = facts.get("Id", ""), facts.get("ActiveState")
        if facts.get("SubState", "").startswith("auto-restart"):  # systemd 254 has auto-restart-queued, too
            found.append(CheckResult("warn", "services", f"{name} ends and starts again", f"journalctl -u {name}"))
        elif state == "failed":
            found.append(CheckResult("warn", "services", f"{name} has failed", f"systemctl status {name}"))
        elif state == "inactive" and facts.get("UnitFileState") == "enabled":
            text = f"{name} is stopped, though each boot starts it"
            found.append(CheckResult("warn", "services", text, f"systemctl start {name}"))
        elif state in ("active", "activating"):
            runs.append(name)
    return [*found, *([CheckResult("ok", "services", f"{', '.join(runs)}: running")] if runs else [])]


def carry_out(commands: Sequence[Sequence[str]], run: Runner) -> None:
    """Run commands one after the other. Raises PalError for the first that fails, SlurmError where one hangs."""
    for words in commands:
        done = run(words, "")
        if done.returncode != 0:
            said = next((line for line in done.stderr.splitlines() if line.strip()), f"exit code {done.returncode}")
            raise PalError(f"{' '.join(words)} failed: {said}; see systemctl status {words[-1]}")
