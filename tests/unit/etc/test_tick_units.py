# SPDX-License-Identifier: MIT
"""The files by which systemd, cron and logrotate serve ticks and sweeps: as shipped, and filled in for a site."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from slurm_pal.admin import units
from slurm_pal.base.config import Config
from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.cli.admin import admin
from slurm_pal.cli.pal_rebalance import pal_rebalance
from slurm_pal.cli.publish import publish_table
from slurm_pal.cli.sweep import run as pal_profile_run

PLAIN = {"PATH": "/usr/bin:/bin"}
ETC = Path(__file__).parents[3] / "etc"
ASSIGNMENT = re.compile(r"[A-Z][A-Za-z]+=.*")


def config(**paths: str) -> Config:
    made = Config()
    for name, path in paths.items():
        section = {"log": "rebalance", "metrics": "rebalance", "keep_ticks": "rebalance", "window": "profile"}.get(
            name, "paths"
        )
        made.set(section, name, path, "test")
    return made


def place(made: Config | None = None, program: str = "/usr/bin/pal-rebalance", **env: str) -> units.Deployment:
    found = units.place(made or config(), 0, PLAIN | env, program)
    return found._replace(user="slurm", group="slurm")


def keys(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if ASSIGNMENT.fullmatch(line):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
        else:
            assert not line or line.startswith(("#", "[")), line
    return found


def options(command_line: str) -> list[str]:
    return [word for word in command_line.split() if word.startswith("--")]


def test_at_the_usual_places_the_files_are_as_shipped() -> None:
    found = units.filled(place())
    assert set(found) == set(units.NAMES)
    for name, text in found.items():
        assert text == (ETC / name).read_text(), name


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (units.PUBLISH, publish_table),
        (units.SERVICE, pal_rebalance),
        (units.GUARD, pal_rebalance),
        (units.ONCE, pal_rebalance),
        (units.SWEEP, pal_profile_run),
    ],
)
def test_a_service_is_shut_in_and_can_do_its_work(name: str, command: click.Command) -> None:
    found = keys((ETC / name).read_text())
    assert found["User"] == ["slurm"] and found["StateDirectory"] == ["slurm-pal"]
    assert found["CapabilityBoundingSet"] == [""] and found["NoNewPrivileges"] == ["true"]
    assert found["ProtectSystem"] == ["strict"] and found["SystemCallFilter"][0] == "@system-service"
    # Else SIGTERM would hit the scontrol in hand too; and one tick leaves a child behind.
    assert found["KillMode"] == ["process" if name == units.ONCE else "mixed"]
    assert "RemoveIPC" not in found  # slurmctld is the same user
    assert found["LimitCORE"] == ["0"]
    assert set(found["RestrictAddressFamilies"][0].split()) == {"AF_UNIX", "AF_INET", "AF_INET6"}
    known = {option for parameter in command.params for option in parameter.opts}
    (line,) = found["ExecStart"]
    assert options(line) and set(options(line)) <= known


@pytest.mark.parametrize("name", [units.PUBLISH, units.GUARD, units.ONCE, units.SWEEP])
def test_what_a_service_never_needs_is_refused(name: str) -> None:
    """Each was tried under systemd (packaging/systemd.sh). The daemon's hooks, any program of the site, may need it."""
    found = keys((ETC / name).read_text())
    assert found["SystemCallFilter"][1:] == ["~@privileged @resources"]
    assert (found["MemoryDenyWriteExecute"], found["ProcSubset"]) == (["true"], ["pid"])
    assert "MemoryMax" in found


def test_what_a_program_that_has_no_luck_exits_with_is_known_to_systemd() -> None:
    stays, once = (keys((ETC / name).read_text()) for name in (units.SERVICE, units.ONCE))
    assert stays["RestartPreventExitStatus"] == [f"{int(Exit.USAGE)} {int(Exit.CONFIG)}"]
    assert once["SuccessExitStatus"] == [f"{int(Exit.BUSY)} SIGTERM"]  # Type=oneshot: else it has failed when stopped
    assert keys((ETC / units.TIMER).read_text())["Unit"] == [os.path.basename(units.ONCE)]
    sweep = keys((ETC / units.SWEEP).read_text())
    assert sweep["SuccessExitStatus"] == [f"{int(Exit.FAILED)} {int(Exit.BUSY)} {128 + signal.SIGTERM} SIGTERM"]
    assert sweep["TimeoutStartSec"] == ["infinity"]  # Type=oneshot would be ended after 90 s
    assert keys((ETC / units.EVENING).read_text())["Unit"] == [os.path.basename(units.SWEEP)]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("pal-rebalance", "pal-profile", "pal"):
        (programs / program).symlink_to("/bin/true")
    for name, text in units.filled(place(program=str(programs / "pal-rebalance"))).items():
        if name.startswith("systemd/"):
            (tmp_path / os.path.basename(name)).write_text(text)
    names = sorted(str(path) for path in tmp_path.iterdir() if path != programs)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("logrotate", path="/usr/sbin:/usr/bin"), reason="logrotate is not installed")
def test_logrotate_takes_its_rule(tmp_path: Path) -> None:
    rule = tmp_path / "pal-rebalance"
    where = units.place(config(state_dir=str(tmp_path / "state")), os.geteuid(), PLAIN, "/bin/true")
    rule.write_text(units.filled(where)[units.LOGROTATE])
    rule.chmod(0o644)
    program = shutil.which("logrotate", path="/usr/sbin:/usr/bin") or ""
    argv = [program, "-d", "-s", str(tmp_path / "status"), str(rule)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and "error" not in done.stderr
    assert f"{tmp_path}/state/rebalance.log" in done.stderr


def cron_command(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(("*", "0"))]
    *when, user, command = line.split(None, 6)
    assert when[2:] == ["*"] * 3 and user == "slurm" and "%" not in command
    return command


@pytest.mark.parametrize("name", [units.CRON, units.SWEEP_CRON, units.PUBLISH_CRON])
@pytest.mark.parametrize(("code", "complaint"), [(0, ""), (9, "is already at work"), (6, "no slurmctld")])
def test_cron_never_mails(tmp_path: Path, name: str, code: int, complaint: str) -> None:
    """What the command prints would be mailed; the trouble is to be in syslog."""
    tag = os.path.basename(name)
    program = tmp_path / ("pal" if name == units.PUBLISH_CRON else tag)
    program.write_text(f"#!/bin/sh\necho the plan\n[ -z '{complaint}' ] || echo '{complaint}' >&2\nexit {code}\n")
    logger = tmp_path / "logger"
    logger.write_text(f"#!/bin/sh\n[ \"$*\" = '-t {tag}' ] && cat > {tmp_path}/syslog\n")
    for path in (program, logger):
        path.chmod(0o755)
    text = units.filled(place(program=str(tmp_path / "pal-rebalance")))[name]
    assert text.endswith("\n") and re.fullmatch(r"[A-Za-z0-9_-]+", os.path.basename(name))  # else cron skips it
    done = subprocess.run(
        ["/bin/sh", "-c", cron_command(text)], capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")
    said = [complaint] if complaint else []
    if name == units.SWEEP_CRON:
        said.insert(0, "the plan")
    elif name == units.PUBLISH_CRON and code == 9:
        said = []  # each minute while the publisher runs as it should
    assert (tmp_path / "syslog").read_text().splitlines() == said


def test_a_window_in_pal_toml_is_when_sweeps_begin_and_is_read_there() -> None:
    found = units.filled(place(config(window="9:05-17:00"), "/opt/pal/bin/pal-rebalance"))
    assert keys(found[units.SWEEP])["ExecStart"] == ["/opt/pal/bin/pal-profile run --since 14d -y"]
    assert keys(found[units.EVENING])["OnCalendar"] == ["09:05"]
    assert "\n5 9 * * * slurm /opt/pal/bin/pal-profile run --since 14d -y 2>&1 |" in found[units.SWEEP_CRON]
    with pytest.raises(UsageError, match="window 'later'"):
        place(config(window="later"))


def test_a_site_with_other_places() -> None:
    made = config(
        state_dir="/srv/pal", table="/shared/slurm/pal_table.lua", log="/var/log/slurm/pal.log",
        metrics="/var/lib/node_exporter/pal.prom",
    )  # fmt: skip
    where = place(made, "/home/anna/venv/bin/pal-rebalance", SLURM_CONF="/opt/slurm/etc/slurm.conf")
    found = units.filled(where._replace(user="root", group="root"))
    service = keys(found[units.SERVICE])
    assert service["ExecStart"] == ["/home/anna/venv/bin/pal-rebalance --daemon"] and service["User"] == ["root"]
    assert service["Environment"] == ["SLURM_CONF=/opt/slurm/etc/slurm.conf"]
    assert "StateDirectory" not in service and "StateDirectoryMode" not in service
    assert service["ReadWritePaths"] == ["/srv/pal", "-/shared/slurm", "-/var/lib/node_exporter", "-/var/log/slurm"]
    assert service["ProtectHome"] == ["read-only"] and service["PrivateTmp"] == ["true"]
    assert "\nSLURM_CONF=/opt/slurm/etc/slurm.conf\n" in found[units.CRON]
    assert " root /home/anna/venv/bin/pal-rebalance --once " in found[units.CRON]
    assert "\n/var/log/slurm/pal.log {\n    su root root\n" in found[units.LOGROTATE]


def test_a_state_folder_elsewhere_below_var_lib_stays_systemds() -> None:
    service = keys(units.filled(place(config(state_dir="/var/lib/slurm/pal")))[units.SERVICE])
    assert service["StateDirectory"] == ["slurm/pal"] and "ReadWritePaths" not in service


def test_the_service_may_write_where_ticks_are_kept() -> None:
    for folder, paths in (("/var/log/pal-ticks", ["-/var/log/pal-ticks"]), ("/var/lib/slurm-pal/ticks", None)):
        service = keys(units.filled(place(config(keep_ticks=folder)))[units.SERVICE])
        assert service.get("ReadWritePaths") == paths


def test_a_slurm_beside_the_usual_path_is_found(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\n")
    (tmp_path / "scontrol").chmod(0o755)
    where = place(PATH=f"{tmp_path}:/usr/bin")
    assert where.variables["PATH"].split(":")[0] == str(tmp_path)


@pytest.mark.parametrize("path", ["/srv/my pal", "/srv/100%", "/srv/a;b", "/srv/$HOME"])
def test_a_path_that_a_unit_file_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="cannot stand in a unit file"):
        place(config(state_dir=path))


def test_pal_admin_units_writes_and_tells_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nSlurmUser=root\n")
    (tmp_path / "pal.toml").write_text('[paths]\nstate_dir = "/var/lib/slurm-pal"\n')
    monkeypatch.setattr(units, "find", lambda path=None: "/opt/pal/bin/pal-rebalance")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = CliRunner().invoke(admin, ["units"])
    assert shown.exit_code == 0 and "ExecStart=/opt/pal/bin/pal-rebalance --daemon" in shown.stdout
    written = CliRunner().invoke(admin, ["units", "--dir", str(tmp_path / "new" / "units")])
    assert written.exit_code == 0, written.output
    for name in units.NAMES:
        assert f"==> {name} <==\n{(tmp_path / 'new' / 'units' / name).read_text()}" in shown.stdout
        assert f"/units/{name}" in written.stdout.partition("Left to do")[2]
    assert "PrivateTmp=false" in shown.stdout or not str(tmp_path).startswith(("/tmp/", "/var/tmp/"))


def test_without_the_program_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python3"))
    with pytest.raises(UsageError, match="install slurm-pal first"):
        units.find(str(tmp_path))
