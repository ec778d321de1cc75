# SPDX-License-Identifier: MIT
"""pal setup and its --undo on a folder that stands for a host; systemctl is a double, Slurm is not asked."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_pal.admin import apply, machine, record, services, setup, setup_plan
from slurm_pal.admin.changes import ChangePlan, FileChange
from slurm_pal.base.errors import BusyError, DataError, PalError, UsageError
from slurm_pal.base.files import locked
from slurm_pal.cli import doctor, manual
from slurm_pal.cli.setup import setup_command
from slurm_pal.report.check_result import CheckResult

USER = pwd.getpwuid(os.geteuid()).pw_name
SYSTEMCTL = '#!/bin/sh\necho "$*" >> {log}\n[ "$1" != is-active ] || [ -e {log} -a -e {root}/started ]\n'
UNMEASURED = [
    CheckResult("fail", "placing", "no: no snapshot", "run pal-profile run"),
    CheckResult("fail", "data", "no snapshot", "run pal-profile run"),
]


class Host:
    """A host of one slurm.conf, with folders that stand for /etc, /var/lib and /usr/local."""

    def __init__(self, root: Path) -> None:
        self.root, self.etc, self.state, self.prefix = root, root / "etc", root / "var" / "pal", root / "local"
        self.units, self.cron, self.log = root / "system", root / "cron.d", root / "log"
        for folder in (self.etc, self.units, self.cron, root / "bin", root / "var"):
            folder.mkdir()
            folder.chmod(0o755)
        self.conf(f"ClusterName=c\nSlurmUser={USER}\n")
        self.toml = self.etc / "pal.toml"

    def conf(self, text: str) -> None:
        (self.etc / "slurm.conf").write_text(text)

    def setup(self, *words: str, answers: str | None = None) -> Result:
        own = [] if "--undo" in words else ["--prefix", str(self.prefix)]
        return CliRunner().invoke(setup_command, [*own, *words], input=answers)

    def install(self, *words: str) -> Result:
        done = self.setup("--yes", "--state-dir", str(self.state), *words)
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    def listing(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for path in self.root.rglob("*"):
            if path.is_symlink():
                found[str(path)] = os.readlink(path)
            elif path != self.log:
                found[str(path)] = path.read_text() if path.is_file() else oct(path.stat().st_mode)
        return found

    def record(self) -> Path:
        (found,) = self.etc.glob("pal-setup.*.json")
        return found


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return manual.texts()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(manual, "texts", lambda: texts)
    monkeypatch.setattr(machine, "CRON_FOLDER", str(made.cron))
    monkeypatch.setattr(machine, "keeper", lambda root, lab: machine.NONE)
    monkeypatch.setattr(services, "FOLDER", str(made.units))
    monkeypatch.setattr(services, "STAMPS", str(made.units))
    monkeypatch.setattr("slurm_pal.cli.setup._running", dict)
    monkeypatch.setattr(doctor, "examined", lambda now_s: (UNMEASURED, None))
    monkeypatch.setenv("PATH", f"{made.root}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(made.etc / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SLURM_PAL_CONFIG", raising=False)
    return made


@pytest.fixture
def systemd(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(services, "RUNNING", str(host.units))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    path = host.root / "bin" / "systemctl"
    path.write_text(SYSTEMCTL.format(log=host.log, root=host.root))
    path.chmod(0o755)
    return host


def test_set_up_and_taken_back_nothing_is_left(host: Host) -> None:
    before = host.listing()
    done = host.install()
    assert "Next: pal-profile run --budget 50 " in done.output
    assert f'\nstate_dir = "{host.state}"\n' in host.toml.read_text()
    assert os.readlink(host.prefix / "bin" / "palsub") == os.path.join(machine.bin_folder(), "palsub")
    again = host.install()
    assert "nothing to change" in again.output and "Next: " in again.output
    gone = host.setup("--undo", "--yes")
    assert gone.exit_code == 0 and "All that setup wrote here is gone." in gone.output
    assert host.listing() == before
    assert "nothing to take back" in host.setup("--undo", "--yes").output


def test_without_a_terminal_and_without_yes_nothing_is_written(host: Host) -> None:
    before = host.listing()
    done = host.setup("--state-dir", str(host.state))
    assert f"would write {host.toml}" in done.output and f"would make the folder {host.state}" in done.output
    assert isinstance(done.exception, PalError) and "--yes writes it" in str(done.exception)
    shown = host.setup("--state-dir", str(host.state), "--dry-run")
    assert shown.exit_code == 0 and "Nothing was written: --dry-run." in shown.output
    body = json.loads(host.setup("--state-dir", str(host.state), "--json").stdout)
    assert body["schema"] == "pal.setup/1" and not body["done"] and body["cannot"]
    assert {"action": "mkdir", "path": str(host.state), "target": None, "why": f"for {USER}'s data"} in body["changes"]
    assert host.listing() == before


@pytest.mark.parametrize(("answers", "written"), [("\nn\ny\n", True), ("/nosuch/p\nn\nn\n", False)])
def test_at_a_terminal_the_admin_is_asked(
    host: Host, monkeypatch: pytest.MonkeyPatch, answers: str, written: bool
) -> None:
    monkeypatch.setattr("slurm_pal.cli.setup._at_terminal", lambda: True)
    done = host.setup("--state-dir", str(host.state), answers=answers)
    assert "Folder that all nodes see" in done.output and "Write this?" in done.output, done.exception
    assert (done.exit_code == 0) is host.toml.exists() is written
    assert ("would make the folder /nosuch/p/spool" in done.output) is not written
    monkeypatch.setattr("slurm_pal.cli.setup._at_terminal", lambda: False)
    assert host.setup("--undo").exit_code == (1 if written else 0)


def test_json_has_the_checks_and_what_comes_next(host: Host) -> None:
    done = json.loads(host.install("--json").stdout)
    assert done["done"] and done["placing"] is False and done["next"].startswith("pal-profile run")
    assert [one["topic"] for one in done["findings"]] == ["placing", "data"]
    gone = json.loads(host.setup("--undo", "--yes", "--json").stdout)
    assert gone["done"] and gone["undo"] and not gone["cannot"] and gone["findings"] is None


def test_a_pal_toml_of_the_admins_is_kept(host: Host) -> None:
    host.toml.write_text(f'[paths]\nstate_dir = "{host.state}"\n')
    done = host.setup("--yes")
    assert done.exit_code == 0 and f"{host.toml} is there already: kept as it is" in done.output
    other = host.setup("--yes", "--state-dir", "/elsewhere")
    assert isinstance(other.exception, UsageError) and f"paths.state_dir is '{host.state}' there" in str(
        other.exception
    )
    assert host.setup("--undo", "--yes").exit_code == 0
    assert host.toml.read_text() == f'[paths]\nstate_dir = "{host.state}"\n' and not host.state.exists()


def test_our_own_pal_toml_gets_other_paths_until_the_admin_changes_it(host: Host) -> None:
    host.install()
    shared = host.root / "shared"
    assert host.setup("--yes", "--shared", str(shared)).exit_code == 0
    assert f'\nspool = "{shared}/spool"\n' in host.toml.read_text() and (shared / "spool").is_dir()
    assert f'\nstate_dir = "{host.state}"\n' in host.toml.read_text()
    with host.toml.open("a") as stream:
        stream.write("# ours now\n")
    assert isinstance(host.setup("--yes", "--shared", "/x").exception, UsageError)
    gone = host.setup("--undo", "--yes")
    assert gone.exit_code == 0 and f"{host.toml} was changed since setup wrote it: kept" in gone.output
    assert "All that setup wrote" not in gone.output and host.toml.exists() and not shared.exists()


def test_a_broken_pal_toml_stops_setup_but_not_undo(host: Host) -> None:
    host.install()
    host.toml.write_text("[paths\n")
    before = host.listing()
    done = host.setup("--yes")
    assert done.exit_code != 0 and "cannot be read as TOML" in str(done.exception) and host.listing() == before
    gone = host.setup("--undo", "--yes")
    assert gone.exit_code == 0 and "settings are not read" in gone.output
    assert host.toml.read_text() == "[paths\n" and not host.state.exists() and not host.prefix.exists()


def test_what_was_changed_since_stays_and_is_named(host: Host) -> None:
    host.install()
    page, link = host.prefix / "share/man/man1/pal.1", host.prefix / "bin/palsub"
    page.write_text("mine\n")
    link.unlink()
    link.symlink_to("/bin/true")
    again = host.install()
    for path in (page, link):
        assert f"note: {path} " in again.output and "nothing to change" in again.output
    gone = host.setup("--undo", "--yes")
    for path in (page, link, link.parent):
        assert f"note: {path} " in gone.output
    assert page.read_text() == "mine\n" and os.readlink(link) == "/bin/true"
    assert not list(host.etc.glob("pal-setup*"))


def test_links_in_place_of_our_files_are_neither_followed_nor_replaced(host: Host) -> None:
    target = host.root / "target"
    target.write_text("precious\n")
    page = host.prefix / "share/man/man5/pal.toml.5"
    page.parent.mkdir(parents=True)
    page.symlink_to(target)
    host.toml.symlink_to(host.root / "dangling")
    done = host.setup("--yes")
    assert done.exit_code == 0 and f"{page} is a link to {target}, not ours: kept" in done.output
    assert host.toml.is_symlink() and not (host.root / "dangling").exists()
    host.setup("--undo", "--yes")
    assert target.read_text() == "precious\n" and page.is_symlink()


def test_measurements_stay_until_purge(host: Host) -> None:
    before = host.listing()
    host.install()
    (host.state / "sweeps").mkdir()
    (host.state / "pal.db").write_text("scores")
    kept = host.setup("--undo", "--yes")
    assert f"{host.state} holds measurements: kept" in kept.output and (host.state / "pal.db").exists()
    assert not host.toml.exists() and not host.prefix.exists()
    assert host.setup("--purge").exit_code != 0  # only with --undo
    purged = host.setup("--undo", "--purge", "--yes")
    assert f"remove, with all in it, {host.state}" in purged.output and host.listing() == before


def test_purge_removes_nothing_that_a_link_leads_to(host: Host) -> None:
    host.install()
    other = host.root / "other"
    other.mkdir()
    (other / "file").write_text("")
    host.state.rmdir()
    host.state.symlink_to(other)
    done = host.setup("--undo", "--purge", "--yes")
    assert f"{host.state} is a link to {other} now: kept" in done.output and (other / "file").exists()


def killed(host: Host, at: int, monkeypatch: pytest.MonkeyPatch, *words: str) -> bool:
    """Run setup in a process that ends without a chance to clean up before step number `at`; whether it did."""
    child = os.fork()
    if child == 0:
        count = iter(range(10**6))

        def wrapped(act: Callable[[FileChange, float], object]) -> Callable[[FileChange, float], object]:
            return lambda step, now_s: os._exit(9) if next(count) == at else act(step, now_s)

        for name, act in [*apply._ACTIONS.items()]:
            monkeypatch.setitem(apply._ACTIONS, name, wrapped(act))  # type: ignore[arg-type]
        host.setup("--yes", *words)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_whenever_it_is_killed_undo_and_the_next_setup_finish(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    before = host.listing()
    options = ("--state-dir", str(host.state))
    at, ways = 0, 0
    while killed(host, at, monkeypatch, *options):
        for name in ("pal.toml", record.path_for("/etc/slurm.conf").rpartition("/")[2]):
            (host.etc / f"{name}.0123456789abcdef.tmp").write_text("half")  # of a writer that was killed
        if at % 2:
            host.install()
        assert killed(host, at // 2, monkeypatch, "--undo") or at < 2
        assert host.setup("--undo", "--yes").exit_code == 0
        assert host.listing() == before, at
        at, ways = at + 5, ways + 1
    assert ways >= 5


def test_a_step_that_fails_undoes_the_others(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    before = host.listing()

    def full(step: FileChange, now_s: float) -> Callable[[], object]:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(apply._ACTIONS, "link", full)
    done = host.setup("--yes", "--state-dir", str(host.state))
    assert isinstance(done.exception, OSError) and host.listing() == before


def test_a_folder_that_cannot_be_written_is_named_before_anything_is(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = host.listing()
    real = os.access
    monkeypatch.setattr("os.access", lambda path, *more, **few: str(path) != str(host.etc) and real(path, *more, **few))
    done = host.setup("--yes", "--state-dir", str(host.state))
    assert done.exit_code != 0 and f"cannot: {host.etc} cannot be written: no permission" in done.output
    monkeypatch.undo()
    assert host.listing() == before


def test_files_where_folders_must_be(host: Host) -> None:
    host.prefix.write_text("")
    done = host.setup("--yes", "--state-dir", str(host.state))
    assert done.exit_code != 0 and f"cannot: {host.prefix} is no folder: move it away" in done.output


@pytest.mark.parametrize("name", ["nosuchuser", "4294"])
def test_a_slurm_user_without_an_account(host: Host, name: str) -> None:
    host.conf(f"ClusterName=c\nSlurmUser={name}\n")
    assert f"SlurmUser={name} is unknown on this machine" in str(host.setup("--yes").exception)


def test_another_file_is_no_slurm_conf(host: Host) -> None:
    host.conf("just some text\n")
    wrong = host.setup("--dry-run")
    assert isinstance(wrong.exception, UsageError) and "neither ClusterName nor SlurmctldHost" in str(wrong.exception)


def test_one_setup_at_a_time(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    before, lock = host.listing(), Path(f"{record.path_for(str(host.etc / 'slurm.conf'))}.lock")
    with locked(str(lock), "pal setup"):
        busy = host.setup("--yes", "--state-dir", str(host.state))
    assert isinstance(busy.exception, BusyError)
    lock.unlink()
    assert host.listing() == before
    host.install()
    after, read = host.listing(), record.read
    with monkeypatch.context() as patch:  # as one that looked before the other had written
        earlier = [dict([*read(str(host.record())).items()][:-1])]
        patch.setattr(record, "read", lambda path: earlier.pop() if earlier else read(path))
        late = host.setup("--yes", "--undo")
    assert isinstance(late.exception, BusyError) and host.listing() == after
    host.setup("--yes", "--undo")
    assert not lock.exists()


def test_others_may_not_and_no_slurm_conf(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no" in str(host.setup("--yes", "--conf", "/nosuch").exception)
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    assert f"only root and SlurmUser ({USER}) may" in str(host.setup("--yes").exception)


def test_a_login_node_gets_only_what_users_need(host: Host) -> None:
    host.conf(f"ClusterName=c\nSlurmUser={USER}\nSlurmctldHost=elsewhere(10.0.0.1)\n")
    done = host.setup("--yes")
    assert done.exit_code == 0 and not host.toml.exists() and not host.state.exists()
    assert (host.prefix / "bin" / "palsub").is_symlink()
    assert host.setup("--yes", "--role", "controller", "--state-dir", str(host.state)).exit_code == 0
    assert host.state.is_dir()


def test_systemd_keeps_the_services_running_and_undo_ends_them(systemd: Host) -> None:
    before = systemd.listing()
    done = systemd.install("--service", "systemd")
    unit = systemd.units / "pal-publish-table.service"
    assert f"ExecStart={machine.bin_folder()}/pal publish-table --every 5\n" in unit.read_text()
    orders = [line for line in systemd.log.read_text().splitlines() if not line.startswith("is-active")]
    start = ["try-restart pal-rebalance.service", "enable --now pal-lease-guard.service pal-publish-table.service"]
    assert orders[:3] == ["daemon-reload", *start]
    assert "run systemctl enable --now" in done.output
    (systemd.root / "started").touch()
    systemd.log.write_text("")
    edited = systemd.units / "pal-rebalance.service"
    edited.write_text(edited.read_text() + "# ours\n")
    again = systemd.install("--service", "systemd")
    assert f"{edited} was changed since setup wrote it: kept" in again.output and "# ours" in edited.read_text()
    assert "nothing to change" in again.output
    assert all(line.startswith("is-active") for line in systemd.log.read_text().splitlines())  # all of it runs
    systemd.log.write_text("")
    stamp = systemd.units / "stamp-pal-profile.timer"
    stamp.touch()
    assert systemd.setup("--undo", "--yes").exit_code == 0
    first, *_, reloaded, last = systemd.log.read_text().splitlines()
    assert first.startswith("disable --now ") and "pal-publish-table.service" in first
    assert reloaded == "daemon-reload" and last.startswith("reset-failed pal-")
    assert not stamp.exists()
    (systemd.root / "started").unlink()
    edited.unlink()
    (systemd.root / "bin" / "systemctl").unlink()
    before.pop(str(systemd.root / "bin" / "systemctl"))
    assert systemd.listing() == before


def test_after_an_undo_that_was_killed_the_next_one_tells_systemd(systemd: Host) -> None:
    systemd.install("--service", "systemd")
    path, stamp = systemd.root / "bin" / "systemctl", systemd.units / "stamp-pal-profile.timer"
    usual = path.read_text()
    path.write_text('#!/bin/sh\n[ "$1" != daemon-reload ] || kill -9 $PPID\n')
    child = os.fork()
    if child == 0:
        systemd.setup("--undo", "--yes")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not list(systemd.units.iterdir())
    path.write_text(usual)
    systemd.log.write_text("")
    stamp.touch()  # as if it had not come so far
    assert systemd.setup("--undo", "--yes").exit_code == 0
    reloaded, reset = systemd.log.read_text().splitlines()
    assert reloaded == "daemon-reload" and reset.startswith("reset-failed pal-") and not stamp.exists()
    assert "nothing to take back" in systemd.setup("--undo", "--yes").output


def test_a_service_that_does_not_start_is_told_and_the_rest_is_there(systemd: Host) -> None:
    path = systemd.root / "bin" / "systemctl"
    path.write_text(
        "#!/bin/sh\n[ \"$1\" != enable ] || { echo 'Failed to enable' >&2; exit 1; }\n[ $1 != is-active ]\n"
    )
    done = systemd.setup("--yes", "--state-dir", str(systemd.state), "--service", "systemd")
    assert done.exit_code == 1 and "WARN: systemctl enable" in done.output and systemd.toml.exists()


def test_cron_instead_of_systemd(systemd: Host) -> None:
    systemd.install("--service", "cron")
    text = (systemd.cron / "pal-publish-table").read_text()
    assert f"* * * * * {USER} {machine.bin_folder()}/pal publish-table --every 5 2>&1 " in text
    assert systemd.setup("--undo", "--yes").exit_code == 0
    assert not list(systemd.cron.iterdir())


def test_undo_ends_the_publisher_that_cron_started(systemd: Host) -> None:
    before = systemd.listing()
    systemd.install("--service", "cron")
    code = (
        "import signal, sys; from slurm_pal.leases.promise import publishing; context = publishing(sys.argv[1], 0); "
        "context.__enter__(); print('up', flush=True); signal.pause()"
    )
    table = str(systemd.state / "pal_table.lua")
    with subprocess.Popen([sys.executable, "-c", code, table], stdout=subprocess.PIPE) as publisher:
        try:
            assert publisher.stdout is not None and publisher.stdout.readline() == b"up\n"
            threading.Thread(target=publisher.wait, daemon=True).start()  # as init does
            done = systemd.setup("--undo", "--purge", "--yes")
            assert done.exit_code == 0, done.output
            assert publisher.wait(60) == -signal.SIGTERM
        finally:
            publisher.kill()
    assert systemd.listing() == before


def test_root_uses_no_programs_that_others_could_put_there(tmp_path: Path) -> None:
    open_to_all, own = tmp_path / "open", tmp_path / "own"
    open_to_all.mkdir()
    own.mkdir(mode=0o755)
    open_to_all.chmod(0o777)
    powers = {own.stat().st_uid}
    path, dropped = machine.trusted_path(f"{open_to_all}:.::{own}:/nosuch", powers)
    assert dropped == [str(open_to_all), ".", "."]
    assert path.split(":") == [str(own), *machine.STANDARD]
    assert machine.trusted_path(str(own), {own.stat().st_uid + 1})[1] == [str(own)]


HEAD = '{"schema": "pal.setup-record/1", "entries": [{"written": [], '


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"schema": "pal.setup-record/9"}', HEAD + '"kind": "file", "path": "x"}]}',
     HEAD + '"kind": "all", "path": "/x"}]}', HEAD + '"kind": "file", "path": 1}]}'],
)  # fmt: skip
def test_a_damaged_record_removes_nothing(host: Host, text: str) -> None:
    host.install()
    host.record().write_text(text)
    before = host.listing()
    for words in (("--undo", "--yes"), ("--yes",)):
        done = host.setup(*words)
        assert isinstance(done.exception, DataError), done.output
    assert host.listing() == before


def test_a_record_that_everybody_can_write_is_not_believed(host: Host) -> None:
    host.install()
    host.record().chmod(0o666)
    assert isinstance(host.setup("--undo", "--yes").exception, DataError) and host.toml.exists()


def test_an_older_file_of_ours_is_brought_up_to_date(host: Host, texts: dict[str, str]) -> None:
    host.install()
    page = host.prefix / "share/man/man1/pal.1"
    known = record.read(str(host.record()))
    page.write_text("older\n")
    record.write(str(host.record()), {**known, str(page): record.Entry("file", str(page), (record.digest("older\n"),))})
    assert f"write {page}" in host.install().output
    assert page.read_text() == texts["share/man/man1/pal.1"]


@pytest.mark.parametrize("path", ["relative", '/a"b', "/a\\b", "/a\nb"])
def test_names_that_pal_toml_cannot_hold(path: str) -> None:
    with pytest.raises(UsageError, match="--shared"):
        setup_plan.with_options(setup_plan.SharedPaths("/s"), None, path)


def test_folders_get_their_owner_and_those_above_do_not(tmp_path: Path) -> None:
    plan = setup_plan.folders([str(tmp_path / "a/b")], machine.Account("u", os.geteuid(), os.getegid()), setup.look)
    assert [(Path(step.path).name, step.owner is None) for step in plan.steps] == [("a", True), ("b", False)]
    apply.carry_out(ChangePlan(plan.steps), 0.0)
    assert oct((tmp_path / "a/b").stat().st_mode & 0o7777) == "0o755"


def test_lua_files_that_the_admin_has_changed_stay() -> None:
    known = {name: record.Entry("file", name, (record.digest("v1"),)) for name in ("/e/pal.lua", "/e/job_submit.lua")}
    steps = (
        FileChange("edit", "/e/slurm.conf", "", "", "x"),
        FileChange("remove", "/e/pal.lua", "", old="mine"),
        FileChange("remove", "/e/job_submit.lua", "", old="v2"),
        FileChange("remove", "/e/cli_filter.lua", "", old="by pal admin install"),
        FileChange("remove", "/e/pal_table.lua", ""),
    )
    plan = setup_plan.of_slurm(ChangePlan(steps), known, {"job_submit.lua": "v2"})
    assert [step.path for step in steps if step not in plan.steps] == ["/e/pal.lua"]
    assert plan.notes == ("/e/pal.lua was changed since setup wrote it: kept",)


def test_man_pages_are_read_by_man(texts: dict[str, str], tmp_path: Path) -> None:
    for name, text in texts.items():
        if name.startswith("share/man/"):
            assert text.startswith(".TH ") and ".SH NAME" in text
            commands = [line.split()[0] for line in text.splitlines() if line.startswith(".")]
            assert set(commands) <= {".TH", ".SH", ".nf", ".fi"}, name
    page = texts["share/man/man1/pal.1"]
    assert ".SH pal setup" in page and ".SH pal admin install" in page and "pal publish\n" not in page
    assert "rebalance" in texts["share/man/man5/pal.toml.5"]


def test_completions_are_scripts_of_their_shells(texts: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "pal"
    script.write_text(texts["share/bash-completion/completions/pal"])
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert "_PAL_PROFILE_COMPLETE=bash_complete" in texts["share/bash-completion/completions/pal-profile"]
    assert texts["share/zsh/site-functions/_pal"].startswith("#compdef pal")
