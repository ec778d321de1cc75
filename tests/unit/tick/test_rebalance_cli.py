# SPDX-License-Identifier: MIT
"""pal-rebalance as its user meets it, on a fake Slurm: options, roles, exit codes, a daemon's life and its end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from slurm_pal.base.config import load
from slurm_pal.base.errors import BusyError, ConfigError, DataError, Exit, PalError, SlurmError, UsageError
from slurm_pal.base.files import locked
from slurm_pal.cli import pal_rebalance as program
from slurm_pal.journal import paths
from slurm_pal.journal.journal import Journal, open_journal
from slurm_pal.pending.retarget import Wish, WishAction
from slurm_pal.slurm import fake
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.fake import FakeJob, FakeNode, FakeSlurm
from slurm_pal.store import heartbeat, snapshot
from slurm_pal.store.lua_table import read_header
from slurm_pal.store.snapshot import GpuScore

MOVABLE = "pal:job=A;from=x;mov=1;app=1"
PATIENCE_S = 120.0
PAL = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()"]
PUBLISH = [*PAL, "publish-table", "--every", "0.5"]
DAEMON = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()"]


def nodes() -> list[FakeNode]:
    return [FakeNode("n0"), FakeNode("n1")]


class Site:
    """State folders and settings of the test's own, scores that make n0 slow, and a fake Slurm."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.slurm = folder, FakeSlurm(nodes())
        self.slurm_user = f"SlurmUser               = me({os.geteuid()})"
        self.toml("")
        (folder / "state").mkdir(mode=0o755)
        for name, value in self.variables().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.setattr(program, "subprocess_runner", lambda timeout_s: self._run)
        monkeypatch.setattr(program, "FILTER_LOOKS_S", 0.0)
        monkeypatch.setattr(program, "LOOK_S", 0.02)
        monkeypatch.setattr(program, "guard_beside", lambda path: contextlib.nullcontext(lambda word: None))
        gpus = [
            GpuScore(name, k, f"{name}-{k}", "m", {"A": a}, {"A": "v0"}, time.time() - 60, 0.9, ())
            for name, a in (("n0", 1.5), ("n1", 1.0)) for k in range(4)
        ]  # fmt: skip
        snapshot.publish(load().snapshot_path, gpus, cluster="c", epoch=1, now_s=time.time())

    def variables(self) -> dict[str, str]:
        return {
            "SLURM_PAL_CONFIG": str(self.folder / "pal.toml"), "SLURM_CONF": str(self.folder / "slurm.conf"),
            "HOME": str(self.folder),
        }  # fmt: skip

    def toml(self, text: str) -> None:
        head = f'[paths]\nstate_dir = "{self.folder}/state"\n[submit]\nlease_pass_s = 0.1\n'
        (self.folder / "pal.toml").write_text(f"{head}[rebalance]\nminimum_s = 0\n{text}")

    def _run(self, argv: Sequence[str], stdin: str) -> Completed:
        done = self.slurm(argv, stdin)
        return done._replace(stdout=done.stdout.replace("SlurmUser               = root(0)", self.slurm_user))

    def submit(self, *words: str) -> int:
        return int(self.slurm(["sbatch", "--parsable", *words], "#!/bin/sh\n").stdout)

    def job(self, number: int) -> FakeJob:
        return self.slurm.jobs[number]

    def waiting(self) -> int:
        self.submit("-w", "n0", "--gres=gpu:4")
        self.submit("-w", "n1", "--gres=gpu:4")
        return self.submit("--gres=gpu:1", "--comment=pal:job=A")

    def journal(self, write: bool = True) -> Journal:
        return open_journal(paths.journal_path(load(), False), write)

    def orders(self) -> list[list[str]]:
        return [call for call in self.slurm.calls if call[0] == "scancel" or call[1:2] in (["update"], ["requeue"])]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def run(*words: str) -> Result:
    result = CliRunner().invoke(program.pal_rebalance, words)
    if result.exception is not None and not isinstance(result.exception, PalError | SystemExit):
        raise result.exception
    return result


def said(result: Result, kind: type[PalError], code: Exit) -> str:
    """The one line of an error."""
    error = result.exception
    assert isinstance(error, kind) and error.exit_code == code, result.output
    assert "\n" not in str(error) and result.stdout == ""
    return str(error)


# -- once ------------------------------------------------------------------------------------


def test_advice_is_a_table_and_changes_nothing_in_slurm(site: Site) -> None:
    moves, theirs = site.submit("--gres=gpu:1", f"--comment={MOVABLE}"), site.submit("--gres=gpu:1")
    for words in ([], ["--once"], ["--json"]):
        result = run(*words)
        assert result.exit_code == 0 and result.stderr == "", result.output
    body = json.loads(result.stdout)
    assert body["schema"] == "pal.rebalance/1" and not body["acted"] and body["trouble"] == []
    assert [move["job_id"] for move in body["moves"]] == [moves] and body["foreign"] == 1
    assert "n0:0 -> n1:0" in run().stdout and site.orders() == []
    assert list(site.job(theirs).placed) == ["n0"] and not os.path.exists(load().snapshot_path + ".heartbeat")


@pytest.mark.parametrize("how", ["option", "setting"])
def test_act_moves_and_sees_it_through(site: Site, how: str) -> None:
    site.toml('mode = "act"\n' if how == "setting" else "")
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    result = run(*(["--act"] if how == "option" else []))
    assert result.exit_code == 0 and result.stderr == "", result.output
    job = site.job(number)
    assert (job.state, job.placed, job.restarts) == ("RUNNING", {"n1": [0]}, 1)
    with site.journal(write=False) as journal:
        assert [move.outcome for move in journal.moves()] == ["moved"] and journal.open_moves() == []


def test_act_keeps_a_waiting_job_off_slow_gpus(site: Site) -> None:
    number = site.waiting()
    result = run("--once", "--act", "--json")
    (wish,) = json.loads(result.stdout)["retarget"]
    assert (wish["job_id"], wish["action"], wish["fields"]) == (number, "exclude", {"ExcNodeList": "n0"})
    assert site.job(number).exc == "n0"


def test_one_tick_leaves_no_node_list_behind(site: Site) -> None:
    """Slurm is held up, so that the job does not start on the GPUs that were named for it."""
    number = site.waiting()
    site.job(number).reason = "Resources"
    site.slurm.schedule = lambda: None  # type: ignore[method-assign]
    for other in (1, 2):
        site.job(other).state = "COMPLETED"
    result = run("--once", "--act")
    updates = [order[3:] for order in site.orders()]
    assert [line[0] for line in updates] == ["ReqNodeList=n1", "ReqNodeList="], result.output
    assert site.job(number).req == ""
    with site.journal(write=False) as journal:
        assert journal.leases() == {}


def test_slurm_that_goes_away_during_a_move_is_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "RETRY_S", 0.0)
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    site.slurm.completing = 2
    monkeypatch.setattr(program, "subprocess_runner", lambda timeout_s: Flaky(site, number))
    result = run("--act")
    assert result.exit_code == 0 and site.job(number).placed == {"n1": [0]}
    assert result.stderr.count("Unable to contact slurm controller") == 1, "told once"


class Flaky:
    """slurmctld is away for five questions, once the job has been requeued."""

    def __init__(self, site: Site, number: int) -> None:
        self.site, self.number, self.left = site, number, 5

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        down = self.site.job(self.number).restarts > 0 and self.left > 0
        self.left -= down
        self.site.slurm.down = down
        return self.site._run(argv, stdin)


def test_without_scores_it_says_so(site: Site) -> None:
    os.unlink(load().snapshot_path)
    result = run()
    assert result.exit_code == 0 and "nothing was decided" in result.stdout and "pal-profile" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_slurm_that_does_not_answer(site: Site) -> None:
    site.slurm.down = True
    assert "Unable to contact slurm controller" in said(run(), SlurmError, Exit.SLURM)


# -- who, and beside whom --------------------------------------------------------------------


def test_an_ordinary_user_is_sent_to_mine(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "role_of", functools.partial(program.role_of, uid=64998))
    assert "--mine" in said(run(), UsageError, Exit.USAGE)


def test_mine_is_for_ones_own_jobs_and_keeps_its_journal_at_home(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", pwd.getpwuid(os.geteuid()).pw_name)
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    site.toml("features = true\nweights = true\n")
    table = load().table_path
    result = run("--mine", "--act")
    assert result.exit_code == 0 and site.job(number).placed == {"n1": [0]}, result.output
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["pal-rebalance"] * 2
    assert "only SlurmUser" in result.stderr
    assert not os.path.exists(table) and list((site.folder / "state").glob("rebalance*")) == []
    (journal,) = (site.folder / ".local").rglob("journal.db")
    assert journal.stat().st_mode & 0o777 == 0o600 and site.slurm.nodes["n0"].features == ""


def test_a_second_one_that_acts_is_refused_and_advice_is_given_beside_it(site: Site) -> None:
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    with site.journal(), locked(load().table_path + ".lock", "a publisher"):
        for words in (["--act"], ["--daemon"], ["--daemon", "--act"], ["--withdraw"]):
            assert f"(pid {os.getpid()})" in said(run(*words), BusyError, Exit.BUSY)
        body = json.loads(run("--json").stdout)
    assert [move["job_id"] for move in body["moves"]] == [number] and body["trouble"] == [] and site.orders() == []


def test_a_daemon_that_acts_does_not_go_beside_a_publisher(site: Site) -> None:
    with locked(load().table_path + ".lock", "a publisher"):
        assert "a publisher is already at work" in said(run("--daemon", "--act"), BusyError, Exit.BUSY)
        assert run("--act").exit_code == 0
    assert not os.path.exists(load().table_path)


def test_a_damaged_journal(site: Site) -> None:
    Path(paths.journal_path(load(), False)).write_bytes(b"no database" * 500)
    assert "is damaged" in said(run(), DataError, Exit.DATA)


def test_no_folder_for_the_table(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PAL_PATHS_TABLE", str(site.folder / "none" / "pal_table.lua"))
    result = run()
    assert result.exit_code == 0 and "nothing is published" in result.stderr and "mkdir" in result.stderr
    assert "mkdir" in said(run("--daemon", "--act"), DataError, Exit.DATA)


# -- what makes no sense ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["--every", "5"], "--every goes with --daemon"),
        (["--once", "--act", "--every", "5"], "--every goes with --daemon"),
        (["--daemon", "--once"], "--daemon does not go with"),
        (["--daemon", "--withdraw"], "--daemon does not go with"),
        (["--withdraw", "--json"], "it has no plan"),
        (["--daemon", "--every", "0"], "--every 0 must be above 0"),
        (["--daemon", "--every", "-3"], "--every -3 must be above 0"),
        (["--daemon", "--every", "nan"], "--every nan must be above 0"),
        (["--daemon", "--every", "inf"], "--every inf must be above 0"),
        (["--daemon", "--every", "1e9"], "below"),
    ],
)
def test_a_command_line_that_makes_no_sense(site: Site, words: list[str], about: str) -> None:
    assert about in said(run(*words), UsageError, Exit.USAGE)
    assert site.slurm.calls == []


@pytest.mark.parametrize("words", [["--every", "soon", "--daemon"], ["--acts"], ["now"]])
def test_what_click_refuses(site: Site, words: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == 2 and site.slurm.calls == []


@pytest.mark.parametrize("line", ['mode = "on"', "interval_s = 0", "movess = true"])
def test_a_setting_that_makes_no_sense(site: Site, line: str) -> None:
    site.toml(line + "\n")
    assert "rebalance." in said(run(), ConfigError, Exit.CONFIG)


# -- withdraw --------------------------------------------------------------------------------


def test_withdraw(site: Site) -> None:
    site.toml("features = true\n")
    number = site.waiting()
    assert run("--act").exit_code == 0 and site.job(number).exc == "n0" and site.slurm.nodes["n0"].features
    result = run("--withdraw")
    assert result.exit_code == 0 and "taken back" in result.stdout, result.output
    assert site.job(number).exc == "" and site.slurm.nodes["n0"].features == ""


def test_withdraw_ends_a_move_that_a_killed_one_left(site: Site) -> None:
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    site.slurm.completing = 10**6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "_see_through", lambda *_: None)
        assert run("--act").exit_code == 0
    with site.journal() as journal:
        assert len(journal.open_moves()) == 1
    site.slurm.completing = 0
    result = run("--withdraw")
    assert result.exit_code == 0, result.output
    assert site.job(number).state == "RUNNING" and "1 running job keeps a list of ours" in result.stdout
    with site.journal() as journal:
        assert journal.open_moves() == [] and len(journal.moves()) == 1


def test_withdraw_says_what_it_could_not_do(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "LAST_S", 0.0)
    number = site.waiting()
    assert run("--act").exit_code == 0
    real = site.slurm._update
    monkeypatch.setattr(site.slurm, "_update", lambda pairs: Completed(1, "", "slurm_update error: Access denied\n"))
    assert f"job {number} stays as it is" in said(run("--withdraw"), PalError, Exit.FAILED)
    monkeypatch.setattr(site.slurm, "_update", real)
    assert run("--withdraw").exit_code == 0 and site.job(number).exc == ""


def test_a_daemon_that_only_advises_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_sleep", lambda *_: True)
    site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    result = run("--daemon")
    assert result.exit_code == 0 and "advice only" in result.stderr and len(result.stderr.splitlines()) == 1
    result = run("--daemon", "--json")
    assert result.stderr == "" and len(json.loads(result.stdout)["moves"]) == 1 and site.orders() == []


# -- the daemon ------------------------------------------------------------------------------


class Daemon:
    """A daemon in a process of its own, on a fake Slurm that is a file."""

    def __init__(self, site: Site, *words: str) -> None:
        self.site, self.state = site, str(site.folder / "slurm.json")
        shims = site.folder / "bin"
        shims.mkdir()
        fake.write_shims(str(shims), self.state, nodes())
        self.env = os.environ | site.variables() | {"PATH": f"{shims}:{os.environ['PATH']}"}
        self.words = words

    def slurm(self, *argv: str, stdin: str = "") -> str:
        return subprocess.run(argv, env=self.env, input=stdin, text=True, capture_output=True, check=True).stdout

    def submit(self, *words: str) -> int:
        return int(self.slurm("sbatch", "--parsable", *words, stdin="#!/bin/sh\n"))

    def change(self, change: Callable[[FakeSlurm], None]) -> None:
        """Something happens in Slurm."""
        import fcntl

        with open(self.state + ".lock", "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            slurm = fake.load(self.state)
            change(slurm)
            fake._save(slurm, self.state)

    def job(self, number: int) -> FakeJob:
        return fake.load(self.state).jobs[number]

    def start(self) -> subprocess.Popen[str]:
        argv = [*DAEMON, "--daemon", "--act", "--every", "0.5", *self.words]
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def started(daemon: Daemon) -> Iterator[subprocess.Popen[str]]:
    process = daemon.start()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(wanted: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.skipif(os.geteuid() != 0, reason="the fake Slurm's SlurmUser is root")
def test_a_daemon_acts_survives_an_absent_slurmctld_and_ends_cleanly(site: Site) -> None:
    daemon = Daemon(site)
    moves = daemon.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    daemon.submit("-w", "n1", "--gres=gpu:1", "-t1")
    waits = daemon.submit("--gres=gpu:4", "--comment=pal:job=A")
    with started(daemon) as process:
        until(lambda: daemon.job(moves).placed.keys() == {"n1"} and daemon.job(waits).exc == "n0")
        assert read_header(load().table_path).clears == "daemon"
        assert heartbeat.fresh(load().snapshot_path, time.time(), 40.0)
        daemon.change(lambda slurm: setattr(slurm, "down", True))
        time.sleep(2.5)
        daemon.change(lambda slurm: setattr(slurm, "down", False))
        daemon.change(lambda slurm: setattr(slurm.jobs[waits], "exc", "n[0-1]"))

        def left_alone() -> bool:
            with site.journal(write=False) as journal:
                return waits in journal.left_alone()

        until(left_alone)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and out == ""
    told = [line for line in err.splitlines() if "Unable to contact slurm controller" in line]
    assert 1 <= len(told) == len(set(told)) <= 2, err  # two where it went between the two questions of a tick
    assert read_header(load().table_path).clears == "" and not os.path.exists(load().snapshot_path + ".heartbeat")
    assert daemon.job(waits).exc == "n[0-1]", "somebody else's list"
    with site.journal() as journal:
        assert journal.open_moves() == [] and journal.leases().keys() == {moves}
    events = [json.loads(line)["what"] for line in (site.folder / "state" / "rebalance.log").read_text().splitlines()]
    assert {"exclude", "move", "moved"} <= set(events)


@pytest.mark.skipif(os.geteuid() != 0, reason="the fake Slurm's SlurmUser is root")
def test_a_daemon_takes_its_lists_back_and_tells_json(site: Site) -> None:
    daemon = Daemon(site, "--json")
    for name in ("n0", "n1"):
        daemon.submit("-w", name, "--gres=gpu:4")
    waits = daemon.submit("--gres=gpu:1", "--comment=pal:job=A")
    with started(daemon) as process:
        until(lambda: daemon.job(waits).exc == "n0")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and daemon.job(waits).exc == ""
    assert {json.loads(line)["schema"] for line in out.splitlines()} == {"pal.rebalance/1"}


def test_what_systemctl_status_shows_counts_only_what_should_be_done() -> None:
    wishes = [
        Wish(1, WishAction.NONE, {}, None, False, "left to Slurm"),
        Wish(2, WishAction.EXCLUDE, {"ExcNodeList": "n1"}, None, False, "too slow"),
    ]
    seen = SimpleNamespace(decided=SimpleNamespace(wishes=wishes), orders=3, moving=0)
    assert program._status(seen) == "last tick: 1 wishes, 3 orders, 0 moves under way"


# -- what nobody foresaw, and kill -9 ------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="the fake Slurm's SlurmUser is root")
@pytest.mark.parametrize("command", [[*DAEMON, "--daemon", "--act", "--every", "0.5"], PUBLISH])
def test_a_daemon_outlives_what_nobody_foresaw_and_says_that_it_lives(site: Site, command: list[str]) -> None:
    """Every fifth command of Slurm raises; a datagram socket stands in for systemd."""
    daemon = Daemon(site)
    waits = daemon.submit("-w", "n0", "--gres=gpu:4")
    (site.folder / "sitecustomize.py").write_text(SABOTAGE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(site.folder / "notify"))
        manager.settimeout(PATIENCE_S)
        env = daemon.env | {"NOTIFY_SOCKET": str(site.folder / "notify"), "PYTHONPATH": str(site.folder)}
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            heard = [manager.recv(4096).decode()]
            while sum(word == "WATCHDOG=1" for word in heard) < 20:
                heard.append(manager.recv(4096).decode())
            process.send_signal(signal.SIGTERM)
            while not heard[-1].startswith("STOPPING=1"):
                heard.append(manager.recv(4096).decode())
            _, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.communicate()
    assert heard[0] == "READY=1" or "READY=1" in heard
    assert any(word.startswith("STATUS=last ") for word in heard), "what systemctl status shows"
    assert process.returncode == 0 and "ZeroDivisionError" in err, err
    assert err.count("ZeroDivisionError") <= 4, "a line for each kind, and not for each tick"
    assert daemon.job(waits).state == "RUNNING"


@pytest.mark.skipif(os.geteuid() != 0, reason="the fake Slurm's SlurmUser is root")
def test_ticks_that_fail_by_faults_of_ours_one_after_the_other_end_the_process(site: Site) -> None:
    daemon = Daemon(site)
    (site.folder / "sitecustomize.py").write_text(SABOTAGE.replace("% 5 == 0", "> 12"))
    process = subprocess.run(
        [*DAEMON, "--daemon", "--act", "--every", "0.1"], env=daemon.env | {"PYTHONPATH": str(site.folder)},
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert process.returncode == 1 and f"{program.MOST_FAILED} ticks in a row" in process.stderr


def kept_off(site: Site) -> tuple[Daemon, int]:
    """A full cluster without moves, and a job that the next tick keeps off the slow n0."""
    site.toml("moves = false\n")
    daemon = Daemon(site)
    for name in ("n1", "n0"):
        daemon.submit("-w", name, "--gres=gpu:4")
    return daemon, daemon.submit("--gres=gpu:1", "--comment=pal:job=A")


@pytest.mark.skipif(os.geteuid() != 0, reason="the fake Slurm's SlurmUser is root")
def test_one_tick_that_is_killed_leaves_nobody_pinned(site: Site) -> None:
    daemon, waits = kept_off(site)
    env = daemon.env | {"SLURM_PAL_SUBMIT_LEASE_PASS_S": "60"}
    (site.folder / "sitecustomize.py").write_text(STUCK)
    process = subprocess.Popen(
        [*DAEMON, "--once", "--act"], env=env | {"PYTHONPATH": str(site.folder)}, stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: daemon.job(waits).exc == "n0" or process.poll() is not None)
        assert process.poll() is None
        process.kill()
        process.wait()
        until(lambda: daemon.job(waits).exc == "")
        until(lambda: not about(str(site.folder / "state")))
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="the fake Slurm's SlurmUser is root")
def test_what_one_tick_leaves_has_somebody_who_ends_it_and_doctor_sees_that(site: Site) -> None:
    daemon, waits = kept_off(site)
    doctor = [*PUBLISH[:-3], "doctor"]

    def run(argv: list[str]) -> str:
        done = subprocess.run(argv, env=daemon.env, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        return done.stdout

    run([*DAEMON, "--once", "--act"])
    assert daemon.job(waits).exc == "n0" and len(about(str(site.folder / "state"))) == 1
    assert f"1 pending job has a list of ours: {waits}" in run(doctor)
    assert "a live process takes them back" in run(doctor)
    run([*DAEMON, "--withdraw"])
    until(lambda: not about(str(site.folder / "state")))
    assert daemon.job(waits).exc == ""
    assert "no pending job has a list of ours" in run(doctor)


def about(path: str) -> list[str]:
    """Processes with this path in their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as stream:
            words = stream.read().decode(errors="replace")
            found += [words] if path in words else []
    return found


SABOTAGE = """
import slurm_pal.slurm.cli as cli
real, calls = cli.subprocess_runner, []
def runner(timeout_s=30.0, environ=None):
    run = real(timeout_s, environ)
    def sabotaged(argv, stdin):
        calls.append(argv)
        if len(calls) > 6 and len(calls) % 5 == 0:
            raise ZeroDivisionError("nobody foresaw this")
        return run(argv, stdin)
    return sabotaged
cli.subprocess_runner = runner
"""
STUCK = """
import time
import slurm_pal.slurm.cli as cli
real = cli.subprocess_runner
def runner(timeout_s=30.0, environ=None):
    run = real(timeout_s, environ)
    def stuck(argv, stdin):
        done = run(argv, stdin)
        if any("ExcNodeList=n" in word for word in argv):
            time.sleep(600)
        return done
    return stuck
cli.subprocess_runner = runner
"""
