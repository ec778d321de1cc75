# SPDX-License-Identifier: MIT
"""A lab with accounting: real accounts, QOS and fair share, a history to simulate, operators, and slurmdbd away."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.journal.journal import open_journal
from slurm_pal.lab import accounting, ports, processes
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient
from slurm_pal.tick.role import COMMENT, FEATURES, OTHERS, OWN, PLACES, WAIT, WEIGHTS, role_of

from . import queue_of
from .conftest import short_directory, skip_without_slurm
from .open_python import OpenPython
from .test_lab import PAL_LAB, USER, assert_nothing_left, kill, run, wait_until
from .test_users import Site, User, files_of, moved, pair

pytestmark = pytest.mark.real_slurm
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

PAL = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()"]
PARTITIONS = """[slurm]
PreemptType = "preempt/qos"
PreemptParameters = "youngest_first"

[partitions.gpu]
nodes = "ALL"

[partitions.owner]
nodes = "n[2-3]"
tier = 10
allow_qos = "owner"

[partitions.waits]
nodes = "ALL"
state = "down"
"""


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """4 nodes x 4 GPUs with accounting, whose QOS owner preempts jobs of the QOS guest."""
    skip_without_slurm(accounting=True)
    path = tmp_path_factory.mktemp("centre") / "partitions.toml"
    path.write_text(PARTITIONS)
    with short_directory() as place, Lab.up(place, nodes=4, gpus=4, accounting=True, partitions=str(path)) as lab:
        yield lab


@pytest.fixture
def client(centre: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliClient]:
    for name, value in centre.variables().items():
        monkeypatch.setenv(name, value)
    made = CliClient()
    yield made
    queue_of.emptied(made)


def sbatch(lab: Lab, *words: str, wrap: str = "sleep 1000") -> int:
    return int(run(lab, "sbatch", "--parsable", "-o/dev/null", *words, "--wrap", wrap))


def rows(text: str) -> list[list[str]]:
    return [line.split("|") for line in text.splitlines()]


def pid_of(lab: Lab, name: str) -> int:
    (found,) = [process.pid for process in processes.find_daemons(lab.directory) if process.name == name]
    return found


# -- what runs, and who can reach it ---------------------------------------------------------


def test_all_of_it_runs(centre: Lab) -> None:
    now = centre.status()
    assert (now.state, now.node_states) == ("up", {"idle": 4})
    assert now.daemons == {"munged": 1, "slurmctld": 1, "slurmd": 4, "mariadbd": 1, "slurmdbd": 1}


def listening(pid: int) -> list[str]:
    """The TCP sockets of a process that listen, as /proc shows them."""
    held = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in held:
                found.append(words[1])
    return found


def test_the_database_has_no_port_and_is_the_users_alone(centre: Lab) -> None:
    d = centre.directory
    assert listening(pid_of(centre, "mariadbd")) == []
    assert len(listening(pid_of(centre, "slurmdbd"))) == 1
    assert stat.S_IMODE(os.stat(d("sql")).st_mode) == stat.S_IMODE(os.stat(d.sql_data).st_mode) == 0o700
    conf = os.stat(d("etc", "slurmdbd.conf"))
    assert stat.S_IMODE(conf.st_mode) == 0o600 and conf.st_uid == os.geteuid()
    assert "Pass" not in Path(d("etc", "slurmdbd.conf")).read_text()


def test_accounts_qos_shares_and_priorities(centre: Lab, client: CliClient) -> None:
    user = pwd.getpwuid(os.geteuid()).pw_name
    shares = rows(run(centre, "sacctmgr", "-n", "-P", "show", "assoc", "format=cluster,account,user,share,qos"))
    assert ["palab", "owner", "", "3", "guest,normal,owner"] in shares
    assert {account for _, account, who, *_ in shares if who == user} >= {"guest", "owner"}
    qos = rows(run(centre, "sacctmgr", "-n", "-P", "show", "qos", "format=name,priority,preempt,preemptmode"))
    assert sorted(qos) == [
        ["guest", "0", "", "requeue"],
        ["normal", "0", "", "cluster"],
        ["owner", "100", "guest", "cluster"],
    ]
    fair = rows(run(centre, "sshare", "-n", "-P", "-a", "-o", "account,rawshares,normshares"))
    assert [row[1] for row in fair if row[0].strip() == "owner"][:1] == ["3"]
    waits = [sbatch(centre, "--begin=now+1hour"), sbatch(centre, "-N5", "-n5", "-H")]
    free = sbatch(centre, "-N4", "--exclusive", "--qos=owner", "-p", "gpu")
    queue_of.until(client, free, lambda job: job.state == "RUNNING")
    more = sbatch(centre, "-N4", "--exclusive", "--qos=owner", "-A", "owner")
    factors = rows(run(centre, "sprio", "-h", "-j", str(more), "-o", "%i|%F|%Q"))
    ((number, fairshare, of_qos),) = [[word.strip() for word in row] for row in factors]
    assert int(number) == more and int(of_qos) == 10000 and int(fairshare) > 0
    assert all(queue_of.until(client, n, lambda job: True).state == "PENDING" for n in waits)


def test_a_job_of_the_owners_qos_preempts_a_guest(centre: Lab, client: CliClient) -> None:
    guests = [sbatch(centre, "--gres=gpu:4", "--qos=guest") for _ in range(4)]
    for number in guests:
        queue_of.until(client, number, lambda job: job.state == "RUNNING")
    owner = sbatch(centre, "--gres=gpu:4", "--qos=owner", "-p", "owner", "-A", "owner", "--comment=ours")
    (node,) = queue_of.until(client, owner, lambda job: job.state == "RUNNING").nodes
    assert node in ("n2", "n3")
    assert [job.restarts for job in client.jobs_of(guests).values()].count(1) == 1
    client.cancel([owner, *guests])
    told = ["sacct", "-n", "-P", "-X", "-D", "-o", "state,account,qos,partition,nodelist,alloctres,comment"]
    # Partition and nodes of a start are told one after the other, and both perhaps after the end.
    wait_until(lambda: f"|owner|owner|owner|{node}|" in run(centre, *told, "-j", str(owner)))
    ((state, _, _, _, nodes, tres, comment),) = rows(run(centre, *told, "-j", str(owner)))
    assert state.startswith("CANCELLED") and (nodes, comment) == (node, "ours")
    assert "gres/gpu=4" in tres.split(",")
    states = {row[0] for row in rows(run(centre, *told, "-j", ",".join(map(str, guests))))}
    assert "PREEMPTED" in states


def test_what_jobs_have_cost(centre: Lab, client: CliClient, tmp_path: Path) -> None:
    job = sbatch(centre, "--gres=gpu:2", "-A", "owner", "--qos=owner", "-p", "owner", wrap="sleep 2")
    wait_until(lambda: job in ended(centre))
    (tmp_path / "pal.toml").write_text("[prices]\nowner = 3600\n")
    env = centre.environ() | {"SLURM_PAL_CONFIG": str(tmp_path / "pal.toml"), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [*PAL, "costs", "--since", "1d", "--json"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = {(row["account"], row["partition"]): row for row in json.loads(done.stdout)["rows"]}
    held = told["owner", "owner"]
    assert held["cost"] == pytest.approx(3600 * held["gpu_h"]) and held["gpu_h"] >= 4 / 3600
    assert all(row["cost"] is None for (_, partition), row in told.items() if partition != "owner")
    # The site's report has the same money; without a price it says what is missing.
    argv = [*PAL, "report", "--json"]
    shown = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    (one,) = [one for one in json.loads(shown.stdout)["money"]["accounts"] if one["account"] == "owner"]
    assert held in one["partitions"] and one["cost"] == pytest.approx(held["cost"])
    (tmp_path / "pal.toml").write_text("")
    shown = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert shown.returncode == 0 and "no price is known" in json.loads(shown.stdout)["money"]["missing"]


# -- a history that was made here ------------------------------------------------------------


def ended(lab: Lab) -> dict[int, int]:
    """Job -> its GPU time, s. A job comes into the window that pal simulate asks for a second or two after its end."""
    window = ("-a", "-S", "now-1days", "-E", "now")
    told = rows(run(lab, "sacct", "-n", "-P", "-X", *window, "-o", "jobidraw,state,elapsedraw,alloctres"))
    return {
        int(number): int(elapsed_s) * int(tres.partition("gres/gpu=")[2].partition(",")[0] or 0)
        for number, state, elapsed_s, tres in told
        if state not in ("RUNNING", "PENDING") and tres
    }


def test_a_site_is_simulated_from_the_history_made_here(centre: Lab, client: CliClient) -> None:
    made = [sbatch(centre, f"--gres=gpu:{gpus}", "-J", "resnet50", wrap="sleep 1") for gpus in (1, 2, 4, 1)]
    made.append(sbatch(centre, "-A", "owner", "--qos=owner", "-p", "owner", "-N2", "--gres=gpu:4", wrap="sleep 1"))
    others = [sbatch(centre, "--gres=gpu:1", wrap="exit 3"), sbatch(centre, wrap="sleep 1")]
    wait_until(lambda: {*made, *others} <= ended(centre).keys())
    argv = [*PAL, "simulate", "--site", "--days", "1", "--seeds", "1", "--jobs", "1", "--no-causes"]
    argv += ["--profile", "drawn"]
    done = subprocess.run([*argv, "--json"], env=centre.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    with_gpus = {number: gpu_s for number, gpu_s in ended(centre).items() if gpu_s}
    assert set(made) <= with_gpus.keys() and told["trace"]["bad_rows"] == 0
    assert len(made) <= told["trace"]["jobs"] <= len(with_gpus)
    least_s, most_s = sum(with_gpus[number] for number in made), sum(with_gpus.values())
    assert 1 + 2 + 4 + 1 + 8 <= least_s <= told["site"]["gpu_hours"] * 3600 + 1e-6 <= most_s + 1e-3
    assert told["policies"]["slurm"]["avg_jct_s"] > 0
    assert not any("accounts are alike" in line for line in told["caveats"])  # shares and QOS were read
    text = subprocess.run(argv, env=centre.environ(), capture_output=True, text=True, check=False)
    assert len(text.stdout.splitlines()) == 5 and "on 16 GPUs: 4 nodes x 4." in text.stdout
    assert "queue multifactor" in text.stdout


# -- operators -------------------------------------------------------------------------------


@pytest.fixture
def site(centre: Lab, client: CliClient, python: OpenPython) -> Iterator[Site]:
    """x is a Slurm operator, y an ordinary user."""
    parent = os.path.dirname(centre.directory.path)
    path = tempfile.mkdtemp(prefix="palu")
    try:
        for place in (parent, path):
            os.chmod(place, 0o711)
        made = Site(centre, path, python)
        made.until_idle()
        level(centre, made.x, "operator")
        yield made
    finally:
        level(centre, made.x, "none")
        os.chmod(parent, 0o700)
        shutil.rmtree(path)


def level(lab: Lab, user: User, wanted: str) -> None:
    """Make somebody known to slurmdbd, and give them this administration level."""
    shown = run(lab, "sacctmgr", "-n", "-P", "show", "user", user.name, "format=adminlevel").strip()
    if not shown:
        run(lab, "sacctmgr", "-i", "-Q", "add", "user", user.name, "account=guest", f"adminlevel={wanted}")
    elif shown.lower() != wanted:
        run(lab, "sacctmgr", "-i", "-Q", "modify", "user", user.name, "set", f"adminlevel={wanted}")


@as_root
def test_an_operator_steers_the_jobs_of_all(centre: Lab, site: Site) -> None:
    x, y = site.x, site.y
    refused = y.program("pal_rebalance")
    assert refused.returncode == Exit.USAGE and "neither SlurmUser (root), root nor a Slurm operator" in refused.stderr
    mine, other = pair(site)
    x.env["SLURM_PAL_REBALANCE_FEATURES"] = "true"
    done = x.program("pal_rebalance", "--act", "--json")
    assert done.returncode == 0, done.stderr
    assert {move["job_id"]: move["user"] for move in json.loads(done.stdout)["moves"]} == {mine: x.name, other: y.name}
    assert done.stderr == (
        "pal-rebalance: class features are not published: only SlurmUser (root) and root may change nodes\n"
    )
    for job in site.running(mine, other):
        assert job.restarts == 1 and job.nodes[0] in ("n2", "n3") and "AdminComment" not in job.raw
    assert {mine, other} <= moved(x)
    assert not os.path.exists(os.path.join(site.state_dir, "rebalance.db"))  # the operator's journal is their own


@as_root
def test_what_an_operator_may_agrees_with_slurm(centre: Lab, site: Site) -> None:
    x, y = site.x, site.y
    running, waits = y.plainly("--gres=gpu:1"), y.plainly("-H", "--gres=gpu:1")
    site.running(running)
    orders = {
        OTHERS: ["update", f"JobId={waits}", "ReqNodeList=n1"],
        COMMENT: ["update", f"JobId={running}", "AdminComment=pal:ev=1"],
        FEATURES: ["update", "NodeName=n0", "AvailableFeatures=pal_A_v1"],
        WEIGHTS: ["update", "NodeName=n0", "Weight=11"],
        PLACES: ["update", f"JobId={waits}", "Nice=-100"],
        WAIT: ["create", "reservation", "ReservationName=pal_wait_1", "StartTime=now+60", "Duration=1", "Nodes=n0",
               f"Users={x.name}", "Flags=IGNORE_JOBS"],
    }  # fmt: skip

    def done_by(user: User) -> set[str]:
        return {what for what, words in orders.items() if user.run(["scontrol", *words]).returncode == 0}

    assert done_by(y) - {OTHERS} == set()  # the jobs are their own
    assert done_by(x) == role_of(site.client, {}, False, uid=x.uid).may - {OWN}
    assert x.run(["scontrol", "delete", "ReservationName=pal_wait_1"]).returncode == 0
    assert x.run(["scontrol", "requeue", str(running)]).returncode == 0
    level(centre, x, "administrator")  # Slurm lets them do all of it, a tick of theirs does what an operator's does
    try:
        assert done_by(x) == orders.keys()
    finally:
        run(centre, "scontrol", "update", "NodeName=n0", "Weight=1", "AvailableFeatures=", "ActiveFeatures=")
        run(centre, "scontrol", "delete", "ReservationName=pal_wait_1")
    assert role_of(site.client, {}, False, uid=x.uid).name == "operator"
    mine = x.plainly("-H", "--gres=gpu:1")
    assert y.run(["scontrol", "update", f"JobId={mine}", "ReqNodeList=n1"]).returncode != 0


# -- slurmdbd away -----------------------------------------------------------------------------


@contextlib.contextmanager
def without_slurmdbd(lab: Lab) -> Iterator[None]:
    kill(lab, ["slurmdbd"])
    try:
        yield
    finally:
        conf = Path(lab.directory("etc", "slurmdbd.conf")).read_text()
        port = int(conf.partition("DbdPort=")[2].split()[0])
        lab._crew.spawn("slurmdbd", ["slurmdbd", "-D"], {"MYSQL_UNIX_PORT": lab.directory.sql_socket})
        wait_until(lambda: ports.is_listening(port))


@as_root
def test_a_tick_goes_on_without_slurmdbd(centre: Lab, site: Site) -> None:
    x, root = site.x, site.root
    mine, other = pair(site)
    with without_slurmdbd(centre):
        now = centre.status()
        assert (now.state, now.daemons["slurmdbd"], now.daemons["mariadbd"]) == ("degraded", 0, 1)
        refused = x.program("pal_rebalance", "--act")
        assert (refused.returncode, refused.stdout) == (Exit.SLURM, "") and len(refused.stderr.splitlines()) == 1
        assert f"slurmdbd does not answer, which knows whether {x.name} is a Slurm operator" in refused.stderr
        assert "pal-rebalance --mine" in refused.stderr
        assert [move["job_id"] for move in x.tick()["moves"]] == [mine]  # --mine
        told = root.tick("--act")
        assert {move["job_id"] for move in told["moves"]} == {mine, other} and told["trouble"] == []
        assert all(job.restarts == 1 for job in site.running(mine, other))
        later = x.submit("--gres=gpu:1")
        site.running(later)
    assert role_of(site.client, {}, False, uid=x.uid).name == "operator"


@as_root
def test_an_operators_daemon_goes_on_without_slurmdbd(centre: Lab, site: Site) -> None:
    x, y = site.x, site.y
    site.scores("n2", "n3")
    number = y.submit("--gres=gpu:4")
    site.running(number)
    daemon = subprocess.Popen(
        x.argv("pal_rebalance", "--daemon", "--act", "--every=1"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, cwd="/", env=x.env, user=x.uid, group=x.gid, extra_groups=[],
    )  # fmt: skip
    try:
        wait_until(lambda: any(path.name == "journal.db" for path in files_of(x)))  # its role is known by then
        with without_slurmdbd(centre):
            site.scores("n0", "n1")
            job = site.until(number, lambda job: job.state == "RUNNING" and job.restarts == 1)
            assert job.nodes[0] in ("n2", "n3")
            daemon.terminate()
            said = daemon.communicate(timeout=60)[1]
            assert {line.split()[0] for line in said.splitlines()} == {"move", "step", "moved"}
            assert daemon.returncode == 0
    finally:
        daemon.kill()
        daemon.wait()


# -- labs of a test's own ------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[str]:
    skip_without_slurm(accounting=True)
    with short_directory() as path:
        yield path


def test_after_kills_and_without_a_pid_file_the_database_ends_cleanly(place: str) -> None:
    running = Lab.up(place, nodes=1, gpus=1, accounting=True)
    kill(running, ["slurmctld", "slurmdbd"])
    os.unlink(running.directory.pids)
    assert Lab(place).status().state == "degraded"
    assert not Lab(place).down(keep=True).removed
    assert "Shutdown complete" in Path(running.directory("log", "mariadbd.out")).read_text()
    assert running.status().daemons == {"munged": 0, "slurmctld": 0, "slurmd": 0, "mariadbd": 0, "slurmdbd": 0}
    assert Lab(place).down().removed
    assert_nothing_left(place)


def test_an_up_that_is_interrupted_at_the_database_leaves_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        assert {process.name for process in processes.find_daemons(Lab(place).directory)} == {"munged", "mariadbd"}
        raise KeyboardInterrupt

    monkeypatch.setattr(accounting, "slurmdbd_conf_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Lab.up(place, nodes=1, accounting=True)
    assert_nothing_left(place)


@as_root
def test_an_ordinary_user_has_accounting_too_and_no_traces_of_a_killed_database(place: str, python: OpenPython) -> None:
    uid, gid = pwd.getpwnam(USER)[2:4]
    os.chown(os.path.dirname(place), uid, gid)

    def as_user(*argv: str) -> str:
        environment = {"PATH": "/usr/bin:/bin", "SLURM_CONF": f"{place}/etc/slurm.conf"} | python.env
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, user=uid, group=gid, extra_groups=[], env=environment,
            cwd="/",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    pal_lab = [python.program, *PAL_LAB[1:]]
    assert "sshare -a" in as_user(*pal_lab, "up", "--dir", place, "--nodes", "1", "--accounting")
    try:
        assoc = as_user("sacctmgr", "-n", "-P", "show", "assoc", "format=account,user")
        assert f"guest|{USER}" in assoc.splitlines()
        as_user("srun", "-Q", "--gres=gpu:1", "true")
        wait_until(lambda: "COMPLETED|guest" in as_user("sacct", "-n", "-P", "-X", "-o", "state,account"))
        os.kill(pid_of(Lab(place), "mariadbd"), signal.SIGKILL)
    finally:
        as_user(*pal_lab, "down", "--dir", place)
    assert_nothing_left(place)


# -- loans ---------------------------------------------------------------------------------------


class Lender:
    """Ticks that lend the nodes of owner to jobs of gpu, in a place of their own."""

    def __init__(self, lab: Lab, state: Path) -> None:
        self.path = state / "rebalance.db"
        loan = {"OWNERS": "owner", "GUEST": "gpu", "WAITS": "waits", "HEADROOM": "0", "INTERVAL_S": "3600"}
        paths = {"STATE_DIR": state, "SNAPSHOT": state / "snapshot", "TABLE": state / "table", "GPUS": state / "gpus"}
        self.env = lab.environ() | {f"SLURM_PAL_LOAN_{name}": text for name, text in loan.items()}
        self.env |= {f"SLURM_PAL_PATHS_{name}": str(path) for name, path in paths.items()}

    def run(self, *words: str) -> tuple[str, list[str]]:
        """What it prints, and what it complains about, but for the scores that nobody has measured here."""
        argv = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()", *words]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, [line for line in done.stderr.splitlines() if "no snapshot" not in line]

    def tick(self) -> tuple[dict[str, object], list[str]]:
        shown, said = self.run("--act", "--json")
        return json.loads(shown)["loans"], said

    def known_hours(self) -> int:
        with open_journal(str(self.path), write=False) as journal:
            return len(journal.demand("owner", 0))


def test_what_owners_have_needed_is_read_from_the_database(centre: Lab, client: CliClient, tmp_path: Path) -> None:
    lender = Lender(centre, tmp_path)
    number = sbatch(centre, "-p", "owner", "--qos=owner", "-A", "root", "-N2", "--gres=gpu:1", wrap="true")
    queue_of.until(client, number, lambda job: job.state == "COMPLETED")
    try:
        with without_slurmdbd(centre):
            loans, said = lender.tick()
            assert loans["open"] == ["n2", "n3"] and loans["changed"] is False and len(said) == 1
            assert "the owners' past demand is not known yet: sacct failed: " in said[0]
        assert lender.known_hours() == 1
        os.unlink(lender.path)
        wait_until(lambda: str(number) in run(centre, "sacct", "-a", "-X", "-n", "-o", "JobID", "-S", "now-1hour"))
        assert lender.tick()[1] == []
        with open_journal(str(lender.path), write=False) as journal:
            assert max(journal.demand("owner", 0).values()) == 2.0  # all that owners have
    finally:
        lender.run("--withdraw")


def test_guests_whose_qos_none_may_preempt_are_named(centre: Lab, client: CliClient, tmp_path: Path) -> None:
    lender = Lender(centre, tmp_path)
    number = sbatch(centre, "-p", "gpu", "-w", "n3", "--gres=gpu:1")
    queue_of.until(client, number, lambda job: job.state == "RUNNING")
    try:
        said = lender.tick()[1]
        (line,) = [line for line in said if "QOS" in line]
        assert f"of guests may be preempted by none, so owners may wait for job {number}: sacctmgr modify qos" in line
    finally:
        lender.run("--withdraw")
