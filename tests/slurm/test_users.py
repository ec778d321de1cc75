# SPDX-License-Identifier: MIT
"""Two ordinary users and the site on a real Slurm: nobody sees, moves or slows the jobs of somebody else through us."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.lease_marks import ending
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.states import EXACTLY_IDLE
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore

from ..doubles.start_code import start_code
from . import queue_of
from .open_python import USERS, OpenPython

pytestmark = [
    pytest.mark.real_slurm,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="needs root to become other users; jobs of a lab's own user run there"
    ),
]

PATIENCE_S = 40.0
NODES, GPUS = 4, 4
LOOP = "#!/bin/sh\nsleep 200\n"
SETTINGS = """[paths]
state_dir = "{}"

[submit]
watch = "never"

[rebalance]
minimum_s = 0
end_guard_s = 0
lost_work_s = 0
move_cost_s = 1
moves_per_tick = 8
"""


class User(NamedTuple):
    """An account (or root), its environment, the Python it runs, and what it may do."""

    name: str
    uid: int
    gid: int
    env: dict[str, str]
    python: str

    def run(self, argv: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(argv), input=stdin, capture_output=True, text=True, check=False, cwd="/", env=self.env,
            user=self.uid, group=self.gid, extra_groups=[],
        )  # fmt: skip

    def program(self, name: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """One of our programs, e.g. "palsub"."""
        return self.run(self.argv(name, *words), stdin)

    def argv(self, name: str, *words: str) -> list[str]:
        return [self.python, "-P", "-c", start_code(name), *words]

    def tick(self, *words: str) -> dict[str, Any]:
        """pal-rebalance --json, with --mine for an ordinary user."""
        done = self.program("pal_rebalance", "--json", *(["--mine"] if self.uid else []), *words)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def submit(self, *words: str, script: str = LOOP) -> int:
        """A movable job by palsub."""
        done = self.program(
            "palsub", "--pal-class", "A", "--pal-movable", "--parsable", "-o/dev/null", *words, stdin=script
        )
        assert done.returncode == 0 and done.stdout.strip().isdigit(), done.stderr
        return int(done.stdout)

    def plainly(self, *words: str, script: str = LOOP) -> int:
        """A job by sbatch."""
        done = self.run(["sbatch", "--parsable", "-o/dev/null", *words], script)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def says(self, job_id: int, comment: str) -> int:
        """Write a comment on a job; scontrol's exit code."""
        return self.run(["scontrol", "update", f"JobId={job_id}", f"Comment={comment}"]).returncode


class Site:
    """The lab, open to others, with scores of the test's own."""

    def __init__(self, lab: Lab, path: str, python: OpenPython) -> None:
        self.state_dir, self.client = os.path.join(path, "state"), CliClient()
        os.mkdir(self.state_dir, 0o755)
        config = os.path.join(path, "pal.toml")
        Path(config).write_text(SETTINGS.format(self.state_dir))
        shared = lab.variables() | {"SLURM_PAL_CONFIG": config, "PATH": "/usr/bin:/bin"} | python.env
        self.root = User("root", 0, 0, shared | {"HOME": os.path.join(path, "root")}, python.program)
        self.x, self.y = (self._user(name, shared, os.path.join(path, name), python.program) for name in USERS)

    def _user(self, name: str, shared: dict[str, str], home: str, python: str) -> User:
        uid, gid = pwd.getpwnam(name)[2:4]
        os.mkdir(home, 0o755)  # open to all: the modes of our own files are to keep others out
        os.chown(home, uid, gid)
        return User(name, uid, gid, shared | {"HOME": home, "XDG_STATE_HOME": os.path.join(home, "state")}, python)

    def scores(self, *slow: str) -> None:
        """Publish scores: these nodes are slow for all classes."""
        factors = {f"n{i}": 1.6 if f"n{i}" in slow else 1.0 for i in range(NODES)}
        gpus = [
            GpuScore(name, k, f"{name}-{k}", "m", dict.fromkeys("ABC", factor), {}, time.time(), 1.0, ())
            for name, factor in factors.items()
            for k in range(GPUS)
        ]  # fmt: skip
        snapshot.publish(os.path.join(self.state_dir, "snapshot"), gpus, cluster="lab", epoch=3, now_s=time.time())

    def job(self, number: int) -> SlurmJob:
        return self.client.jobs_of([number])[number]

    def until(self, number: int, wanted: Callable[[SlurmJob], bool]) -> SlurmJob:
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted(job := self.job(number)):
            assert time.monotonic() < deadline_s, job
            time.sleep(queue_of.LOOK_S)
        return job

    def until_idle(self) -> None:
        """Jobs of a test before may still hold GPUs, and the first ones of this are to get them in order."""
        deadline_s = time.monotonic() + PATIENCE_S
        while any(node.states != EXACTLY_IDLE for node in self.client.nodes()):
            assert time.monotonic() < deadline_s
            time.sleep(queue_of.LOOK_S)

    def running(self, *numbers: int) -> list[SlurmJob]:
        return [self.until(number, lambda job: job.state == "RUNNING") for number in numbers]


@pytest.fixture
def site(lab: Lab, python: OpenPython, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    parent = os.path.dirname(lab.directory.path)
    mode = os.stat(parent).st_mode & 0o777
    path = tempfile.mkdtemp(prefix="palu")
    for place in (parent, path):
        os.chmod(place, 0o711)  # the lab itself is open to all, its socket of munge included
    try:
        made = Site(lab, path, python)
        made.until_idle()
        yield made
        queue_of.emptied(made.client)
    finally:
        os.chmod(parent, mode)
        shutil.rmtree(path)


def pair(site: Site) -> tuple[int, int]:
    """A job of X on n0 and one of Y on n1, which have become slow since."""
    site.scores("n2", "n3")
    mine = site.x.submit("--gres=gpu:4")
    site.running(mine)
    other = site.y.submit("--gres=gpu:4")
    nodes = [job.nodes for job in site.running(mine, other)]
    assert nodes == [("n0",), ("n1",)]
    site.scores("n0", "n1")
    return mine, other


def files_of(user: User) -> list[Path]:
    return [path for path in Path(user.env["HOME"]).rglob("*") if path.is_file()]


def test_each_moves_and_sees_only_his_own(site: Site) -> None:
    x, y = site.x, site.y
    mine, other = pair(site)
    done = x.program("pal_rebalance", "--act")
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "may steer only their own jobs: pal-rebalance --mine" in done.stderr
    for words in ((), ("--act",)):
        told = x.tick(*words)
        assert [move["job_id"] for move in told["moves"]] == [mine] and told["staying"] == [] and told["retarget"] == []
        assert y.name not in json.dumps(told) and told["foreign"] == 1
    gone, stays = site.running(mine, other)
    assert gone.restarts == 1 and gone.nodes[0] in ("n2", "n3") and "AdminComment" not in gone.raw
    assert (stays.restarts, stays.nodes, stays.req_nodes) == (0, ("n1",), ())

    (log,) = [path for path in files_of(x) if path.name == "rebalance.log"]
    jobs = {json.loads(line)["job_id"] for line in log.read_text().splitlines()}
    assert jobs == {mine} and f'"{y.name}"' not in log.read_text()
    assert {path.name for path in files_of(x)} >= {"journal.db", "journal.db.lock", "rebalance.log", f"{mine}.json"}
    for path in files_of(x):
        assert y.run(["cat", str(path)]).returncode != 0, path
        assert y.run(["flock", "-n", str(path), "true"]).returncode not in (0, 1), path  # not even a lock

    assert mine in moved(x) and other not in moved(x) and moved(y).isdisjoint((mine, other))
    assert {event["what"] for event in explained(x, mine)["story"]} >= {"submitted", "move"}
    seen = explained(y, mine)
    assert seen["decision"] is None and seen["story"] == []
    assert [move["job_id"] for move in y.tick("--act")["moves"]] == [other]
    assert other in moved(y) and mine not in moved(y)


def moved(user: User) -> set[int]:
    """The jobs in `pal moves`, those of earlier tests among them."""
    done = user.program("pal", "moves", "--json")
    assert done.returncode == 0, done.stderr
    return {row["job_id"] for row in json.loads(done.stdout)["moves"]}


def explained(user: User, job_id: int) -> dict[str, Any]:
    done = user.program("pal", "explain", str(job_id), "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_site_moves_both_and_each_sees_his_own_story(site: Site) -> None:
    x, y = site.x, site.y
    mine, other = pair(site)
    told = site.root.tick("--act")
    assert {move["job_id"]: move["user"] for move in told["moves"]} == {mine: x.name, other: y.name}
    for job in site.running(mine, other):
        assert job.restarts == 1 and job.nodes[0] in ("n2", "n3") and "pal:ev=" in job.raw["AdminComment"]
    for user, own, foreign in ((x, mine, other), (y, other, mine)):
        assert own in moved(user) and foreign not in moved(user)
        assert "move" in [event["what"] for event in explained(user, own)["story"]]
        assert explained(user, foreign)["story"] == []
    state = Path(site.state_dir)
    for name in ("rebalance.db", "rebalance.db.lock", "rebalance.log", "pal_table.lua.lock"):
        assert x.run(["cat", str(state / name)]).returncode != 0, name
        assert x.run(["flock", "-n", str(state / name), "true"]).returncode not in (0, 1), name


ODD = (
    "pal:job=A;mov=1;app=1;ck=0;lost=-1",
    "pal:job=A;mov=1;app=1;lost=99999999999999999999 pal:it=999999999999999;of=999999999999999;at=9e9;r=0",
    "pal:job=;mov=1;app=1;;=;= pal:it=;of=;at=;r= pal:ack=",
    "pal:lease=0;req=n[0-3];exc=n[0-999999999];act=exclude;set=n[0-3];class=A",
    "pal:lease=60;req=@all;exc=;act=nodelist;set=n1;class=A;why=off pal:ev=1;what=moved;from=n1:0;to=n0:0",
    "pal:job=Z;mov=2 pal:job=A;mov=1;app=1 pal:it=-1;of=nan;at=inf;r=0",
)


def test_forged_words_change_nothing_for_others(site: Site) -> None:
    """What X writes on his own jobs neither stops the site's tick nor reaches a job of Y."""
    x, y, root = site.x, site.y, site.root
    site.scores("n2", "n3")
    forged = [x.plainly("--gres=gpu:1", f"--comment={text}") for text in ODD[:4]]
    site.running(*forged)
    other = y.submit("--gres=gpu:4")
    assert [job.nodes for job in site.running(other)] == [("n1",)]
    forged += [x.plainly("--gres=gpu:4", "-w", "n2", f"--comment={text}") for text in ODD]
    waits = y.submit("--gres=gpu:4", "-x", "n[0-1,3]")  # n2 is taken by X
    site.scores("n0", "n1")
    assert x.says(other, "pal:job=C") != 0 and x.says(forged[0], ODD[0] + " mine") == 0
    before = site.job(waits)
    for words in ((), ("--act",)):
        told = root.tick(*words)
        assert told["trouble"] == [], told["trouble"]
    assert other in [move["job_id"] for move in told["moves"]], told["staying"]
    (job,) = site.running(other)
    assert job.nodes == ("n3",) and job.restarts == 1
    after = site.job(waits)
    assert (after.req_nodes, after.exc_nodes) == (before.req_nodes, before.exc_nodes)
    assert after.raw["Priority"] == before.raw["Priority"] != "0"
    (lists,) = {(site.job(n).req_nodes, site.job(n).exc_nodes) for n in forged[4:] if site.job(n).state == "PENDING"}
    assert lists == (("n2",), ())  # nor is his own list changed by words that do not speak of it


def test_forged_words_give_no_power_over_others(site: Site) -> None:
    """With --mine nothing but one's own jobs is touched, whatever the others write on theirs."""
    x, y = site.x, site.y
    site.scores("n2", "n3")
    texts = (
        "pal:job=A;mov=1;app=1;lost=1",
        "pal:job=A;mov=1;app=1 pal:it=1;of=9;at=1;r=0",
        f"pal:lease=0;class=A user={x.name}",
    )
    running = [y.plainly("--gres=gpu:1", f"--comment={text}") for text in texts]
    pending = [y.plainly("-w", "n0", "-N1", "--gres=gpu:4", f"--comment={text}") for text in texts]
    site.running(*running)
    site.scores("n0")
    before = {n: (job.req_nodes, job.exc_nodes, job.comment) for n in running + pending for job in [site.job(n)]}
    told = x.tick("--act")
    assert (told["orders"], told["foreign"], told["moves"], told["retarget"]) == (0, 6, [], []) and not told["trouble"]
    assert before == {n: (job.req_nodes, job.exc_nodes, job.comment) for n in before for job in [site.job(n)]}
    assert all(site.job(n).restarts == 0 for n in before)


CLOSED = {"groups": "AllowGroups=daemon", "accounts": "AllowAccounts=nobody", "administrators": "RootOnly=YES"}


def test_a_mark_about_partitions_opens_none(site: Site) -> None:
    """The daemon puts back what a user says is their own list; Slurm lets nobody start where they may not."""
    made = {"held": "Nodes=n0 State=DOWN"} | {name: f"Nodes=n[0-3] State=UP {words}" for name, words in CLOSED.items()}
    try:
        for name, words in made.items():
            assert site.root.run(["scontrol", "create", f"PartitionName={name}", *words.split()]).returncode == 0
        own = ",".join(made)
        words = ("-p", "held", "--gres=gpu:1")
        number = site.x.plainly(*words, f"--comment=pal:part=0;own={own};set=held", script="#!/bin/sh\n")
        update = ending(site.until(number, lambda job: job.reason == "PartitionDown"), time.time() + 60.0, 0.0)
        assert update is not None and update.fields == {"Partition": own}
        try:
            queue_of.updated(site.client, number, **update.fields)
        except SlurmError as error:  # 24.11 does not even put it back
            assert "Requested partition configuration not available" in str(error)
        else:
            assert set(site.job(number).partition.split(",")) == set(made)
        time.sleep(5.0)  # a pass each second
        job = site.job(number)
        if job.state != "PENDING":  # without accounting 24.11 lets everybody into some
            assert site.x.run(["sbatch", "-p", job.partition, "-o", "/dev/null", "--wrap", "true"]).returncode == 0
        site.client.cancel([number])
        site.until(number, lambda job: job.state in ("CANCELLED", "COMPLETED"))
    finally:
        for name in made:
            site.root.run(["scontrol", "delete", f"PartitionName={name}"])


def tell_pace(site: Site, user: User, rates: dict[int, int]) -> dict[str, Any]:
    """Two looks of the site at jobs that say they make so many iterations a minute; what the last one found."""
    for look in range(2):
        at_s = time.time() - 600 + 60 * look
        for number, rate in rates.items():
            assert user.says(number, f"pal:job=A;mov=1;app=1 pal:it={rate * look};at={at_s:.0f};r=0") == 0
        told = site.root.tick()
    return told


def accuse(site: Site, user: User, times: int) -> dict[str, Any]:
    """Jobs that all go at one pace, and then so many of their name that say they are slow on the first GPU of n0."""
    elsewhere = [user.plainly("-J", "work", "--gres=gpu:1", "-x", "n0") for _ in range(times + 1)]
    tell_pace(site, user, {job.job_id: 1300 for job in site.running(*elsewhere)})
    for _ in range(times):
        number = user.plainly("-J", "work", "--gres=gpu:1", "-w", "n0")
        (job,) = site.running(number)
        assert job.gpus == {"n0": (0,)}
        told = tell_pace(site, user, {number: 1000})
        site.client.cancel([number])
        site.until(number, lambda job: job.state == "CANCELLED")
    return told


def test_one_user_cannot_make_a_gpu_slow_nor_two_make_others_wait(site: Site) -> None:
    """Whatever X says of a GPU, it is believed only when another user says so, too, and then for free GPUs only."""
    site.scores()
    assert accuse(site, site.x, 3)["slow_since_sweep"] == []
    assert [(gpu["node"], gpu["index"]) for gpu in accuse(site, site.y, 1)["slow_since_sweep"]] == [("n0", 0)]
    # Nor do two accounts: who runs there stays, and who finds only that GPU free is kept off no node.
    queue_of.emptied(site.client)
    site.until_idle()
    stays = site.root.submit("--gres=gpu:4")
    full = [site.root.plainly("--gres=gpu:4", "-w", f"n{k}") for k in (1, 2)]
    assert site.running(stays, *full)[0].nodes == ("n0",)
    waits = site.root.submit("--gres=gpu:4", "-x", "n3", "--time=1000")
    told = site.root.tick()
    assert [(gpu["node"], gpu["index"]) for gpu in told["slow_since_sweep"]] == [("n0", 0)]
    assert told["moves"] == []
    assert [wish for wish in told["retarget"] if wish["job_id"] == waits and wish["action"] == "exclude"] == []


def test_moves_of_one_user_leave_room_for_others(site: Site) -> None:
    """Two moves of one user are under way at most, and X, with all to gain, does not come before Y twice."""
    x, y = site.x, site.y
    site.scores("n2", "n3")
    mine = [x.submit("--gres=gpu:1", "--time=10000") for _ in range(6)]
    site.running(*mine)
    other = y.submit("--gres=gpu:2", "--time=30")
    site.running(other)
    for number in mine:
        assert x.says(number, "pal:job=A;mov=1;app=1;lost=0") == 0
    site.scores("n0", "n1")
    told = site.root.tick()
    users = [move["user"] for move in told["moves"]]
    assert sorted(users) == sorted([x.name, x.name, y.name])
    assert sum(f"moves of jobs of {x.name} are under way" in one["why"] for one in told["staying"]) == 4


def test_an_owner_in_the_middle_of_the_sites_moves(site: Site) -> None:
    """X cancels, holds, holds and releases, and edits jobs that are being moved; Y's is moved as if nothing were."""
    x, y, root = site.x, site.y, site.root
    site.scores("n2", "n3")
    slow_end = "#!/bin/sh\ntrap 'sleep 1; exit 0' TERM\nwhile :; do sleep 0.1; done\n"
    cancelled, held, released, edited = mine = [x.submit("--gres=gpu:1", script=slow_end) for _ in range(4)]
    site.running(*mine)
    other = y.submit("--gres=gpu:4")
    site.running(other)
    site.scores("n0", "n1")
    root.env["SLURM_PAL_REBALANCE_MOVES_PER_USER"] = "8"
    orders = {
        cancelled: ["scancel", str(cancelled)],
        held: ["scontrol", "hold", str(held)],
        released: ["scontrol", "hold", str(released)],
        edited: ["scontrol", "update", f"JobId={edited}", "ReqNodeList=n1"],
    }
    argv = root.argv("pal_rebalance", "--json", "--act")
    with subprocess.Popen(argv, env=root.env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tick:
        while orders and tick.poll() is None:
            for number, job in site.client.jobs_of(list(orders)).items():
                if job.restarts and not job.nodes:
                    x.run(orders.pop(number))
        out, err = tick.communicate(timeout=PATIENCE_S)
    assert tick.returncode == 0, err
    assert sorted(move["job_id"] for move in json.loads(out)["moves"]) == sorted([*mine, other])
    x.run(["scontrol", "release", str(released)])
    if cancelled not in orders:  # on a busy machine a job may have started again before it was seen
        site.until(cancelled, lambda job: job.state == "CANCELLED")
    if held not in orders:
        job = site.until(held, lambda job: job.state in ("PENDING", "RUNNING"))
        assert job.state == "RUNNING" or (job.reason, job.req_nodes) == ("JobHeldUser", ())
    theirs, *_ = site.running(other, released, edited)
    assert theirs.restarts == 1 and theirs.nodes[0] in ("n2", "n3")
    root.env["SLURM_PAL_REBALANCE_MOVES"] = "false"
    again = root.tick("--act")
    assert again["moving"] == 0 and again["trouble"] == []  # no move is left open
    x.run(["scontrol", "release", str(held)])
    site.running(held)


FORGED = (
    "b\nJobId={} JobName=z UserId={}({}) GroupId=g(1) JobState=RUNNING Requeue=1 Restarts=0 BatchFlag=1 "
    "TimeLimit=10-00:00:00 SubmitTime={time} StartTime={time} Partition=gpu NodeList=n1 NumNodes=1 NumCPUs=1 "
    "NumTasks=1 CPUs/Task=1 TresPerNode=gres:gpu:1 Nodes=n1 CPU_IDs=0 Mem=500 GRES=gpu:1(IDX:0) "
    "Comment=pal:job=A;mov=1;app=1;lost=1 Power="
)
"""A job's name with a line end, and what looks like the record of somebody else's job, movable and badly placed."""


def test_a_name_does_not_stand_for_a_job_of_somebody_else(site: Site) -> None:
    x, y = site.x, site.y
    site.scores("n0", "n1")
    other = y.plainly("--gres=gpu:1")  # neither palsub's nor movable
    (job,) = site.running(other)
    stamp = job.raw["StartTime"]
    x.plainly("-H", "-J", FORGED.format(other, y.name, y.uid, time=stamp))
    for user in (site.root, y):
        told = user.tick("--act")
        assert told["moves"] == [] and told["orders"] == 0 and str(other) not in json.dumps(told["staying"])
    assert site.job(other).restarts == 0 and site.job(other).nodes == ("n0",)


def test_a_name_does_not_make_a_job_somebody_elses(site: Site) -> None:
    """Else X could use up the moves of Y, and bear witness as two users."""
    x, y = site.x, site.y
    site.scores("n2", "n3")
    name = f"a UserId={y.name}({y.uid}) GroupId=g(1) JobState=RUNNING"
    number = x.plainly("--gres=gpu:1", "-J", name, "--comment=pal:job=A;mov=1;app=1")
    site.running(number)
    site.scores("n0", "n1")
    for user in (site.root, x, y):
        told = user.tick()["moves"]
        assert all((move["job_id"], move["user"]) == (number, x.name) for move in told) and (user is not y or not told)
        assert site.job(number).user in ("", x.name)
    assert number not in moved(y)


def test_jobs_that_are_put_aside_take_no_gpus_from_others(site: Site) -> None:
    x, y = site.x, site.y
    site.scores("n2", "n3")
    other = y.submit("--gres=gpu:4")
    site.running(other)
    waits = x.plainly("-n1", "--begin=now+30days")
    for words in (["-H"], ["--begin=now+30days"], [f"--dependency=afterok:{waits}"]):
        for name in ("n1", "n2", "n3"):
            x.plainly("-N1", "-w", name, "--gres=gpu:4", *words)
    site.scores("n0", "n1")
    assert [move["job_id"] for move in site.root.tick()["moves"]] == [other]


def test_a_job_that_waits_for_a_busy_node_takes_no_free_ones_from_others(site: Site) -> None:
    """X holds a GPU of n1, and has jobs in the queue that need all of it, and n2 and n3 as well."""
    x, y = site.x, site.y
    site.scores("n2", "n3")
    other = y.submit("--gres=gpu:4")
    holds = x.plainly("--gres=gpu:1", "-w", "n1")
    site.running(other, holds)
    ghosts = [x.plainly("-N3", "-w", "n[1-3]", "--gres=gpu:4", "--exclusive"), x.plainly("-N3", "-w", "n[1-3]", "-c2")]
    ghosts.append(x.plainly("-N3", "-w", "n[1-3]", "--gres=gpu:4", "--nice=1000"))
    site.until(ghosts[-1], lambda job: job.reason not in ("", "None"))
    site.scores("n0", "n1")
    queued = {site.job(number).state for number in (ghosts[0], ghosts[2])}
    assert queued == {"PENDING"}
    told = site.root.tick()
    assert other in [move["job_id"] for move in told["moves"]], told["staying"]


def test_a_huge_total_wins_nothing_from_another_user(site: Site) -> None:
    """X's job says it has a hundred million steps to go. Y's, as good a one, says nothing and gets the only place."""
    x, y = site.x, site.y
    site.scores("n2", "n3")
    mine = x.submit("--gres=gpu:4")
    site.running(mine)
    time.sleep(1.1)  # Slurm tells starts in whole seconds: of two equal claims the one that has more to go comes first
    other = y.submit("--gres=gpu:4")
    site.running(other, x.plainly("--gres=gpu:4", "-w", "n2"))
    site.scores("n0", "n1")
    for look in range(2):
        at_s = time.time() - 600 + 60 * look
        word = f"pal:job=A;mov=1;app=1;lost=0 pal:it={100 * look};of=100000000;at={at_s:.0f};r=0"
        assert x.says(mine, word) == 0
        told = site.root.tick()
    assert [move["job_id"] for move in told["moves"]] == [other]


def test_checkpoints_that_never_come_hold_up_nobody_for_long(site: Site) -> None:
    """Jobs of X say that they make checkpoints and do not: an hour long no more of X's are asked for any."""
    x, root = site.x, site.root
    site.scores("n2", "n3")
    deaf = "#!/bin/sh\ntrap '' USR1\nwhile :; do sleep 0.1; done\n"
    mine = [x.plainly("--gres=gpu:1", "--comment=pal:job=A;mov=1;app=1;ck=1;lost=0", script=deaf) for _ in range(3)]
    site.running(*mine)
    site.scores("n0")
    root.env["SLURM_PAL_REBALANCE_ACK_LIMIT_S"] = "1"
    first = root.tick("--act")
    assert len(first["moves"]) == 2
    again = root.tick("--act")
    assert again["moves"] == []
    assert any("no checkpoint came for 2 moves" in one["why"] for one in again["staying"]), again["staying"]
    assert all(site.job(number).restarts == 0 for number in mine)
