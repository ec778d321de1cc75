# SPDX-License-Identifier: MIT
"""pal admin install and systemd: units are written, and services started by those who agree. systemctl is a double."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_pal.admin import services, units
from slurm_pal.base.errors import PalError
from slurm_pal.cli.admin import admin
from slurm_pal.emulation.gpus import FILE_NAME
from slurm_pal.slurm.question import Completed

Change = Callable[["Site", pytest.MonkeyPatch], None]
GUARD, PUBLISH, TICKS = "pal-lease-guard.service", "pal-publish-table.service", "pal-rebalance.service"
SYSTEMCTL = """#!/bin/sh
echo "$*" >> {log}
case "$1" in
  is-active) [ -e "{root}/active.$3" ];;
  enable) shift 2; for unit; do touch "{root}/active.$unit"; done;;
  disable) shift 2; for unit; do rm -f "{root}/active.$unit"; done;;
esac
"""


class Site:
    """A slurm.conf, a folder of units and a systemctl that writes down what it is asked."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self.units, self.stamps = root, root / "log", root / "system", root / "stamps"
        self.units.mkdir()
        self.stamps.mkdir()
        (root / "bin").mkdir()
        (root / "slurm.conf").write_text("ClusterName=c\nSlurmUser=root\n")
        self.toml("advise")
        self.systemctl(SYSTEMCTL.format(log=self.log, root=root))

    def toml(self, mode: str) -> None:
        (self.root / "pal.toml").write_text(f'[paths]\nstate_dir = "{self.root}"\n[rebalance]\nmode = "{mode}"\n')

    def systemctl(self, text: str) -> None:
        path = self.root / "bin" / "systemctl"
        path.write_text(text)
        path.chmod(0o755)

    def asked(self) -> list[str]:
        """The orders since the last look; questions left out."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.write_text("")
        return [line for line in lines if not line.startswith("is-active")]

    def admin(self, *words: str) -> Result:
        return CliRunner().invoke(admin, list(words))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setattr(services, "FOLDER", str(made.units))
    monkeypatch.setattr(services, "RUNNING", str(made.units))
    monkeypatch.setattr(services, "STAMPS", str(made.stamps))
    monkeypatch.setattr(units, "find", lambda path=None: "/opt/pal/bin/pal-rebalance")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("slurm_pal.cli.admin._running", dict)
    monkeypatch.setattr("slurm_pal.cli.admin._carry_out", lambda found, todo, act: act)  # Slurm's own files
    monkeypatch.setenv("PATH", f"{made.root}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.delenv("SLURM_PAL_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return made


def test_without_act_units_are_only_shown(site: Site) -> None:
    shown = site.admin("install")
    assert shown.exit_code == 0 and f"would write {site.units}/{PUBLISH}" in shown.output
    assert os.listdir(site.units) == [] and site.asked() == []


def test_units_are_written_and_nothing_starts_unasked(site: Site) -> None:
    done = site.admin("install", "--act")
    assert done.exit_code == 0, done.output
    assert {PUBLISH, GUARD, TICKS} < set(os.listdir(site.units))
    assert (site.units / PUBLISH).read_text().count("ExecStart=/opt/pal/bin/pal publish-table --every 5\n") == 1
    assert site.asked() == ["daemon-reload"]
    assert f"  systemctl enable --now {GUARD} {PUBLISH}\n" in done.output


def test_yes_starts_what_the_mode_needs_and_a_second_time_nothing(site: Site) -> None:
    done = site.admin("install", "--act", "-y")
    assert site.asked() == ["daemon-reload", f"try-restart {TICKS}", f"enable --now {GUARD} {PUBLISH}"]
    assert f"started: {GUARD} and {PUBLISH}, which writes the table" in done.output
    assert "publish-table --every" not in done.output and "systemctl" not in done.output
    assert site.admin("install", "--act", "-y").exit_code == 0 and site.asked() == []


def test_a_daemon_that_acts_replaces_the_publisher(site: Site) -> None:
    site.admin("install", "--act", "-y")
    site.toml("act")
    site.asked()
    site.admin("install", "--act", "-y")
    wanted = [f"disable --now {PUBLISH}", f"try-restart {TICKS}", f"enable --now {GUARD} {TICKS}"]
    assert site.asked() == wanted
    site.toml("advise")
    site.admin("install", "--act", "-y")
    assert site.asked() == [f"try-restart {TICKS}", f"enable --now {GUARD} {PUBLISH}"]


@pytest.mark.parametrize(("answer", "started"), [("y\n", True), ("n\n", False)])
def test_the_admin_is_asked_at_a_terminal(
    site: Site, monkeypatch: pytest.MonkeyPatch, answer: str, started: bool
) -> None:
    monkeypatch.setattr("slurm_pal.cli.admin._at_terminal", lambda: True)
    done = CliRunner().invoke(admin, ["install", "--act"], input=answer)
    assert f"Start {GUARD} and {PUBLISH}, now and at each boot?" in done.output
    assert (f"enable --now {GUARD} {PUBLISH}" in site.asked()) is started


def test_what_systemd_says_is_shown(site: Site) -> None:
    refuses = "[ \"$1\" != enable ] || { echo 'Failed to enable unit: no' >&2; exit 1; }"
    site.systemctl(f"#!/bin/sh\n{refuses}\n[ $1 != is-active ]\n")
    error = site.admin("install", "--act", "-y").exception
    assert isinstance(error, PalError) and "Failed to enable unit: no" in str(error)


def test_a_unit_of_the_sites_own_stays(site: Site) -> None:
    (site.units / PUBLISH).write_text("[Unit]\nDescription=ours\n")
    done = site.admin("install", "--act", "-y")
    assert f"{site.units}/{PUBLISH} is not ours" in done.output and site.asked() == []
    assert os.listdir(site.units) == [PUBLISH]


def test_uninstall_ends_services_and_removes_their_units(site: Site) -> None:
    site.admin("install", "--act", "-y")
    (site.units / "other.service").write_text("[Unit]\n")
    for name in ("stamp-pal-profile.timer", "stamp-other.timer"):
        (site.stamps / name).touch()
    site.asked()
    assert site.admin("uninstall").exit_code == 0 and site.asked() == []
    assert site.admin("uninstall", "--act").exit_code == 0
    stopped, reloaded, reset = site.asked()
    assert stopped.startswith("disable --now ") and {GUARD, PUBLISH, TICKS} < set(stopped.split())
    assert reloaded == "daemon-reload" and os.listdir(site.units) == ["other.service"]
    assert reset.startswith("reset-failed ") and {f"{GUARD}*", f"{TICKS}*"} < set(reset.split())
    assert os.listdir(site.stamps) == ["stamp-other.timer"]


def show(name: str, active: str, sub: str, enabled: str) -> str:
    return f"Id={name}\nActiveState={active}\nSubState={sub}\nUnitFileState={enabled}\n"


@pytest.mark.parametrize("sub", ["auto-restart", "auto-restart-queued"])
def test_what_systemd_says_of_our_units_is_found(site: Site, sub: str) -> None:
    timer, once, sweep = "pal-rebalance.timer", "pal-rebalance-once.service", "pal-profile.service"
    said = [
        show(GUARD, "active", "running", "enabled"),
        show(TICKS, "activating", sub, "enabled"),
        show(PUBLISH, "inactive", "dead", "disabled"),
        show(timer, "inactive", "dead", "enabled"),
        show(once, "inactive", "dead", "static"),
        show(sweep, "failed", "failed", "static"),
    ]
    seen: list[list[str]] = []

    def run(argv: Sequence[str], stdin: str) -> Completed:
        seen.append(list(argv))
        return Completed(0, "\n".join(said), "")

    assert services.findings(run) == [] and seen == []
    for name in (GUARD, TICKS, PUBLISH, timer, once, sweep):
        (site.units / name).write_text("# slurm-pal: x\n")
    (site.units / "pal-profile.timer").write_text("# the site's own\n")
    found = services.findings(run)
    assert [(one.level, one.mend) for one in found] == [
        ("warn", f"journalctl -u {TICKS}"),
        ("warn", f"systemctl start {timer}"),
        ("warn", f"systemctl status {sweep}"),
        ("ok", ""),
    ]
    assert found[-1].text == f"{GUARD}: running" and "pal-profile.timer" not in seen[0]


def no_systemd(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "RUNNING", str(site.root / "nosuch"))


def a_lab(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.root / FILE_NAME).write_text("{}")


@pytest.mark.parametrize("without", [no_systemd, a_lab])
@pytest.mark.parametrize(
    ("mode", "command"),
    [("advise", "/opt/pal/bin/pal publish-table --every 5"), ("act", "/opt/pal/bin/pal-rebalance --daemon")],
)
def test_where_systemd_does_not_serve_the_command_is_shown(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    without: Callable[[Site, pytest.MonkeyPatch], None],
    mode: str,
    command: str,
) -> None:
    without(site, monkeypatch)
    site.toml(mode)
    done = site.admin("install", "--act", "-y")
    assert f"\n  {command}    # as root, under a supervisor: writes the table" in done.output
    assert os.listdir(site.units) == [] and site.asked() == []


def test_a_slurm_user_who_is_not_root_leaves_the_units_to_root(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    done = site.admin("install", "--act", "-y")
    assert "as root" in done.output and os.listdir(site.units) == [] and site.asked() == []
