# SPDX-License-Identifier: MIT
"""palsub on a real Slurm: what it prints is what sbatch prints, and jobs start where it says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.lab.lab import Lab
from slurm_pal.sensitivity.history import Label, Seen
from slurm_pal.sensitivity.keys import name_key
from slurm_pal.slurm.cli import CliClient
from slurm_pal.store import labels, user_files
from slurm_pal.store.snapshot import GpuScore, publish

from . import queue_of

pytestmark = pytest.mark.real_slurm

PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
LAUNCHER = os.path.join(os.path.dirname(sys.executable), "palsub")
PATIENCE_S = 40.0


class User:
    """Somebody who submits jobs to the lab from an empty directory, with a snapshot of his own making."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home = home
        self.env = lab.environ() | {
            "XDG_STATE_HOME": str(home / "state"),
            "SLURM_PAL_PATHS_SNAPSHOT": str(home / "snapshot"),
            "SLURM_PAL_SUBMIT_LEASE_PASS_S": "1.0",
        }
        self.client = CliClient()

    def scores(self, **by_node: float) -> None:
        """Publish one class-A slowdown for all GPUs of each node."""
        gpus = [
            GpuScore(node, k, f"{node}-{k}", "m", {"A": a, "B": a, "C": 1.0}, {"A": "v0"}, time.time(), 1.0, ())
            for node, a in by_node.items()
            for k in range(4)
        ]
        publish(str(self.home / "snapshot"), gpus, cluster="lab", epoch=1, now_s=time.time())

    def run(self, argv: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        env = self.env | dict(options.pop("env", {}))  # type: ignore[call-overload]
        options.setdefault("stdin", subprocess.DEVNULL) if "input" not in options else None
        return subprocess.run(argv, env=env, cwd=self.home, capture_output=True, timeout=120, **options)  # type: ignore[call-overload,no-any-return]

    def palsub(self, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
        return self.run([*PALSUB, "-o", "/dev/null", *words], **options)

    def submit(self, *words: str, **options: object) -> int:
        done = self.palsub("--parsable", *words, **options)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def until(self, number: int, wanted: Callable[[SlurmJob], bool]) -> SlurmJob:
        return queue_of.until(self.client, number, wanted)

    def started(self, number: int) -> SlurmJob:
        return self.until(number, lambda job: job.state not in ("PENDING", "CONFIGURING"))

    def leases(self) -> list[Path]:
        return [p for p in (self.home / "state").rglob("leases/*/*.json")]

    def has_seen_a_start(self) -> bool:
        """Whether the watcher has noted that a job of a lease runs."""
        return any(json.loads(lease.read_text())["started"] for lease in self.leases())

    def watchers(self) -> list[int]:
        """Watchers of this user's folder, by the name on their command line; the heir that waits beside one is none."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if (
                    b"slurm_pal.submit.watcher" in words
                    and b"heir" not in words
                    and any(str(self.home).encode() in word for word in words)
                ):
                    found.append(int(entry))
        return found


@pytest.fixture
def user(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    somebody = User(lab, tmp_path)
    yield somebody
    for lease in somebody.leases():
        lease.unlink()  # watchers and their heirs then end
    queue_of.emptied(somebody.client)


def test_what_a_real_slurm_says_is_read_without_re(user: User) -> None:
    """The import of `re`, and of what it needs, costs as much as that of 30 modules of ours."""
    user.scores(n0=1.1, n1=1.0)
    job = user.submit("--gres=gpu:2", "--wrap", "sleep 60")
    user.started(job)
    path = [place for place in sys.path if place.endswith("site-packages")]
    look = "print({'re', 'collections', 'enum', 'json'} & {*sys.modules})"
    code = f"import sys; sys.path += {path!r}; from slurm_pal.cli.palsub import main; main(); {look}"
    words = ["--pal-explain", "-o", "out-%j", "--gres=gpu:1", "--wrap", "true"]
    done = user.run([sys.executable, "-I", "-S", "-c", code, *words])
    assert done.stdout.splitlines()[1:] == [b"set()"] and b"decision: " in done.stderr, done.stderr
    user.client.cancel([job])


def test_a_pinned_job_starts_where_it_was_promised_with_its_list_untouched(user: User) -> None:
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    number = user.submit("--pal-watch", "--no-requeue", "--pal-class=A", "--gres=gpu:2", "--wrap", "sleep 30")
    job = user.started(number)
    assert job.state == "RUNNING" and job.gpus == {"n2": (0, 1)} and job.req_nodes == ("n2",)
    (record,) = (user.home / "state").rglob(f"decisions/*/{number}.json")
    made = json.loads(record.read_text())
    assert [(g["node"], g["index"]) for g in made["chosen"]["gpus"]] == [("n2", 0), ("n2", 1)]
    deadline_s = time.monotonic() + PATIENCE_S
    while user.leases() or user.watchers():  # it runs, and cannot be requeued: nothing is left to watch
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_without_a_setting_option_or_daemon_the_watcher_is_there(user: User) -> None:
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    job = user.started(user.submit("--no-requeue", "--pal-class=A", "--gres=gpu:2", "--wrap", "sleep 30"))
    assert job.gpus == {"n2": (0, 1)} and job.req_nodes == ("n2",)
    assert job.comment.startswith("pal:lease=") and job.comment.endswith(
        ";act=nodelist;set=n2;alone=1.300 pal:job=A;from=--pal-class"
    )
    deadline_s = time.monotonic() + PATIENCE_S
    while user.leases() or user.watchers():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_users_own_python_changes_nothing(user: User) -> None:
    """Not even for the watcher, for which the job would wait; the job's own environment stays as it was."""
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    hostile = user.home / "hostile"
    hostile.mkdir()
    for name in ("enum", "json", "re", "os", "encodings"):
        (hostile / f"{name}.py").write_text("raise SystemExit(1)\n")
    env = {"PYTHONHOME": "/nonexistent", "PYTHONPATH": str(hostile), "BASH_FUNC_own%%": "() { echo mine; }"}
    script = user.home / "job.sh"
    script.write_text('#!/bin/bash\n#SBATCH --gres=gpu:2\nown; echo "$PYTHONHOME $PYTHONPATH"; sleep 30\n')
    words = [LAUNCHER, "--parsable", "--pal-watch", "--pal-class=A", "-o", str(user.home / "out"), str(script)]
    done = user.run(words, env=env)
    assert done.returncode == 0 and done.stderr == b""
    job = user.started(int(done.stdout))
    assert job.state == "RUNNING" and job.gpus == {"n2": (0, 1)} and job.req_nodes == ("n2",)
    deadline_s = time.monotonic() + PATIENCE_S
    while not user.has_seen_a_start() or not (user.home / "out").read_text().endswith("hostile\n"):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert (user.home / "out").read_text() == f"mine\n/nonexistent {hostile}\n"


def test_plain_slurms_pick_is_predicted(user: User) -> None:
    user.scores(n0=1.0, n1=1.0, n2=1.0, n3=1.0)
    for words in (["--gres=gpu:3"], ["--gres=gpu:1"], ["--gpus=6"], ["--exclusive", "--pal-class=A"]):
        done = user.palsub("--pal-dry-run", "--pal-json", *words, "--wrap", "sleep 30")
        plain = json.loads(done.stdout)["plain_slurm"]
        number = user.submit("--pal-off", *words, "--wrap", "sleep 30")
        found = {(node, k) for node, gpus in user.started(number).gpus.items() for k in gpus}
        assert {(g["node"], g["index"]) for g in plain["gpus"]} == found


def test_whole_nodes_without_a_word_of_gpus_are_left_to_slurm(user: User) -> None:
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    for words, nodes in (([], ()), (["--pal-class=A"], ("n2",))):
        number = user.submit("--pal-watch", "--exclusive", *words, "--wrap", "sleep 30")
        assert user.started(number).req_nodes == nodes


def test_a_requeued_job_is_free_of_our_list(user: User) -> None:
    """Slurm keeps the list of a job that has run: after a failure of its node the job would wait for that node."""
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    number = user.submit("--pal-class=A", "--gres=gpu:1", "--wrap", "sleep 60")
    assert user.started(number).req_nodes == ("n2",)
    deadline_s = time.monotonic() + PATIENCE_S
    while not user.has_seen_a_start():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    user.run(["scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test"])
    try:
        # Its node is down, so Slurm has requeued it. Do not wait for the look of the next minute: a new watcher looks.
        job = user.until(number, lambda job: job.state == "PENDING")
        assert job.req_nodes == ("n2",)
        for pid in user.watchers():
            os.kill(pid, signal.SIGKILL)
        job = user.until(number, lambda job: job.req_nodes == ())
        assert job.restarts == 1
    finally:
        user.run(["scontrol", "update", "NodeName=n2", "State=RESUME"])
        user.client.cancel([number])


def test_a_job_is_not_spread_to_avoid_a_slightly_slow_gpu(user: User) -> None:
    """n0 is free and a little slow, n1 and n2 have two GPUs each: one node at 1.06 comes before two at 1.7."""
    user.scores(n0=1.06, n1=1.0, n2=1.0, n3=1.0)
    held = [
        user.submit("--pal-off", "-w", node, f"--gres=gpu:{gpus}", "--wrap", "sleep 60")
        for node, gpus in (("n1", 2), ("n2", 2), ("n3", 4))
    ]
    assert all(user.started(number).state == "RUNNING" for number in held)
    number = user.submit("--pal-watch", "--pal-class=A", "--gpus=4", "-t600", "--wrap", "sleep 30")
    job = user.started(number)
    assert job.state == "RUNNING" and job.gpus == {"n0": (0, 1, 2, 3)} and not job.exc_nodes


def test_only_a_measured_class_c_is_sent_to_slow_gpus(user: User) -> None:
    user.scores(n0=1.0, n1=1.0, n2=1.0, n3=1.4)
    words = ("--pal-watch", "--pal-class=C", "-J", "train", "--gres=gpu:1", "--wrap", "sleep 30")
    stated = user.started(user.submit(*words))
    assert stated.state == "RUNNING" and "n3" not in stated.gpus
    seen = tuple(Seen(i, "C", 1.0, time.time()) for i in range(3))
    folder = user_files.site_folder(str(user.home / "snapshot"))
    labels.write(labels.path_of(folder, os.geteuid()), {name_key("train"): Label("C", 3, seen)})
    measured = user.started(user.submit(*words))
    assert measured.state == "RUNNING" and list(measured.gpus) == ["n3"]


@pytest.fixture
def thief(user: User) -> None:
    """An sbatch in PATH that lets another job take node n2 just before ours is submitted."""
    real = subprocess.run(["which", "sbatch"], env=user.env, capture_output=True, check=True).stdout.decode().strip()
    bin_dir = user.home / "bin"
    bin_dir.mkdir()
    (bin_dir / "sbatch").write_text(
        "#!/bin/sh\n"
        f"j=$({real} --parsable -o /dev/null -w n2 --gres=gpu:4 --wrap 'sleep 100')\n"
        'while [ "$(squeue -h -j $j -o %t)" = PD ]; do sleep 0.1; done\n'
        f'exec {real} "$@"\n'
    )
    (bin_dir / "sbatch").chmod(0o755)
    user.env["PATH"] = f"{bin_dir}:{user.env['PATH']}"


@pytest.mark.usefixtures("thief")
def test_a_job_whose_gpus_were_taken_is_let_go_when_waiting_no_longer_pays(user: User) -> None:
    user.scores(n0=1.15, n1=1.1, n2=0.9, n3=1.1)
    number = user.submit("--pal-watch", "--gres=gpu:1", "-t1", "--wrap", "sleep 20")  # pays (1.1 - 0.9) x 30 s
    job = user.until(number, lambda job: job.state == "PENDING" and job.reason == "Resources")
    assert job.req_nodes == ("n2",)
    job = user.started(number)
    assert job.req_nodes == () and job.gpus and "n2" not in job.gpus
    assert job.start_s - job.submit_s >= 5, "the lease ended before waiting had ceased to pay"


@pytest.mark.usefixtures("thief")
def test_the_users_own_lists_and_node_count_survive(user: User) -> None:
    user.scores(n0=1.0, n1=1.15, n2=0.9, n3=1.0)
    words = ["--pal-watch", "--gres=gpu:4", "-N2", "-w", "n1", "-x", "n3", "-t1", "--wrap", "sleep 20"]
    job = user.started(user.submit(*words))
    assert job.req_nodes == ("n1",) and job.exc_nodes == ("n3",) and len(job.gpus) == 2 and "n1" in job.gpus
    assert not user.leases()  # beside nodes of his own none are named
    queue_of.emptied(user.client)  # the thief's job would hold n2 for 100 s, and its next one wait for that
    number = user.submit("--pal-watch", "--gres=gpu:1", "-x", "n3", "-t1", "--wrap", "sleep 20")
    assert user.started(number).exc_nodes == ("n3",)


def test_sensitive_jobs_wait_for_better_gpus_only_as_long_as_that_pays(user: User) -> None:
    user.scores(n0=1.5, n1=1.0, n2=1.5, n3=1.5)
    user.started(user.submit("--pal-off", "-w", "n1", "-t", "30", "--gres=gpu:4", "--wrap", "sleep 100"))
    number = user.submit("--pal-watch", "--gres=gpu:1", "--wrap", "sleep 20", env={"SLURM_PAL_SUBMIT_LEASE_MAX_S": "3"})
    job = user.until(number, lambda job: job.state == "PENDING" and job.reason == "Resources")
    assert set(job.exc_nodes) == {"n0", "n2", "n3"}
    job = user.started(number)
    assert job.exc_nodes == () and job.gpus and "n1" not in job.gpus


def test_without_a_clearer_no_job_gets_a_node_list(user: User) -> None:
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    done = user.palsub("--pal-explain", "--gres=gpu:1", "--wrap", "true", env={"SLURM_PAL_SUBMIT_WATCH": "never"})
    assert b"neither a daemon nor --pal-watch to take a node list back" in done.stderr
    job = user.client.job(int(done.stdout.split()[-1]))
    assert job is not None and job.req_nodes == ()
    assert not user.leases() and not user.watchers()


def test_a_class_feature_is_preferred_softly(user: User) -> None:
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    features = {"n0": "pal_A_v2", "n1": "pal_A_v1", "n2": "pal_A_v0", "n3": "pal_A_v1"}
    try:
        for node, name in features.items():
            words = [f"NodeName={node}", f"AvailableFeatures={name}", f"ActiveFeatures={name}"]
            assert user.run(["scontrol", "update", *words]).returncode == 0
        number = user.submit("--gres=gpu:4", "--wrap", "sleep 30")
        assert set(user.started(number).gpus) == {"n2"}
        other = user.submit("--gres=gpu:4", "-a", "1-2", "--wrap", "sleep 30")
        assert user.started(other).req_nodes == ()
    finally:
        for node in features:
            user.run(["scontrol", "update", f"NodeName={node}", "AvailableFeatures=", "ActiveFeatures="])


SCRIPT = '#!/bin/sh\n#SBATCH --gres=gpu:1 -J "a b" # c\n#PAL class=A\necho "$SLURM_JOB_NAME|$#|$1|$2|$SLURM_NTASKS"\n'


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["--wrap", "true"], None),
        (["--parsable", "--gres=gpu:1", "--wrap", "true"], None),
        (["-Q", "--gres=gpu:1", "--wrap", "true"], None),
        (["job.sh", "--pal-off", "-N9"], None),
        (["--gres=gpu:2"], SCRIPT),
        ([], SCRIPT.replace("\n", "\r\n")),
        ([], "no script"),
        ([], ""),
        ([], "#!/bin/sh\n\0"),
        (["--gres=gpu:9", "job.sh"], None),
        (["--gres=gpu:1", "-w", "nosuch", "job.sh"], None),
        (["--gres=gpu:1", "-p", "nosuch", "job.sh"], None),
        (["--gres=gpu:1", "-N99", "job.sh"], None),
        (["--gres=gpu:1", "-C", "nosuch", "job.sh"], None),
        (["--bogus", "job.sh"], None),
        (["--no", "job.sh"], None),
        (["-Z"], None),
        (["-n"], None),
        (["nosuch.sh"], None),
        (["--wait", "--gres=gpu:1", "--wrap", "exit 5"], None),
        (["--test-only", "--gres=gpu:1", "job.sh"], None),
        (["--hold", "--gres=gpu:1", "job.sh"], None),
        (["--usage"], None),
        (["--version"], None),
    ],
)
@pytest.mark.parametrize("watch", [False, True], ids=["default", "watch"])
def test_streams_and_code_are_sbatchs_own(words: list[str], script: str | None, watch: bool, user: User) -> None:
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    (user.home / "job.sh").write_text(SCRIPT)
    options = {} if script is None else {"input": script.encode()}
    env = {"SLURM_PAL_SUBMIT_WATCH": "yes"} if watch else {}
    seen = []
    for argv in (["sbatch", *words], [*PALSUB, *words]):
        done = user.run(argv, env=env, **options)
        texts = [re.sub(rb"\b\d+\b", b"N", t) for t in (done.stdout, done.stderr)]
        texts[1] = re.sub(rb"start at \S+ (a )?using N processors on nodes \S+", b"start", texts[1])
        seen.append((done.returncode, *texts))
    assert seen[1] == seen[0]


def test_the_job_gets_its_words_and_variables_as_from_sbatch(user: User) -> None:
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    (user.home / "job.sh").write_text(SCRIPT)
    outputs = []
    for argv in (["sbatch"], [*PALSUB, "--pal-watch"]):
        done = user.run([*argv, "--parsable", "-o", "%j.txt", "job.sh", "--pal-off", "a  'b"])
        number = int(done.stdout)
        user.until(number, lambda job: job.state == "COMPLETED")
        outputs.append((user.home / f"{number}.txt").read_text())
    assert outputs == ["a b|2|--pal-off|a  'b|\n"] * 2


def test_a_heredoc_is_a_script(user: User) -> None:
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    text = '"$@" --parsable -o /dev/null --pal-watch <<"END"\n' + SCRIPT + "END\n"
    done = user.run(["bash", "-c", text, "bash", *PALSUB])
    assert user.started(int(done.stdout)).nodes == ("n2",)


def test_one_watcher_serves_several_jobs(user: User) -> None:
    user.scores(n0=1.3, n1=1.0, n2=0.9, n3=1.1)
    user.started(user.submit("--pal-off", "--gres=gpu:4", "-w", "n0", "--wrap", "sleep 100"))
    env = {"SLURM_PAL_SUBMIT_LEASE_PASS_S": "30"}
    for _ in range(3):
        user.submit("--pal-watch", "--gres=gpu:1", "-t60", "--wrap", "sleep 60", env=env)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(user.watchers()) != 1:
        assert time.monotonic() < deadline_s, user.watchers()
        time.sleep(0.1)
    pid = user.watchers()[0]
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in ("0", "1", "2")]
    assert links == [os.devnull] * 3 and os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) != os.getsid(0)


def test_no_snapshot_is_one_line_and_plain_sbatch(user: User) -> None:
    done = user.palsub("--gres=gpu:1", "--wrap", "true")
    assert done.returncode == 0 and done.stdout.startswith(b"Submitted batch job ")
    assert done.stderr.count(b"\n") == 1 and done.stderr.startswith(b"palsub: submitted as plain sbatch: ")


def test_nodes_that_slurm_does_not_know_do_no_harm(user: User) -> None:
    user.scores(gone=0.5, n1=0.9, n0=1.3)
    number = user.submit("--pal-watch", "--gres=gpu:1", "--wrap", "sleep 30")
    assert set(user.started(number).gpus) == {"n1"}


@pytest.mark.parametrize("daemon", ["slurmctld", "munged"])
def test_a_dead_daemon_is_sbatchs_to_tell(daemon: str, lab: Lab, user: User) -> None:
    """A configuration that leads nowhere: a port and a socket at which nobody listens."""
    user.scores(n0=1.0)
    text = Path(lab.directory.conf).read_text()
    wrong = {
        "slurmctld": (r"(?m)^SlurmctldPort=.*$", "SlurmctldPort=1"),
        "munged": (r"(?m)^AuthInfo=socket=[^,\n]*", f"AuthInfo=socket={user.home}/nobody"),
    }[daemon]
    changed, count = re.subn(*wrong, text)
    assert count == 1
    (user.home / "slurm.conf").write_text(changed)
    words = ["-o", "/dev/null", "--gres=gpu:1", "--wrap", "true"]
    env = user.env | {"SLURM_PAL_SUBMIT_SLURM_TIMEOUT_S": "3", "SLURM_CONF": str(user.home / "slurm.conf")}
    both = [
        subprocess.Popen(
            [*argv, *words],
            env=env,
            cwd=user.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for argv in (["sbatch"], PALSUB)
    ]
    alone, ours = ((*child.communicate(timeout=120), child.returncode) for child in both)
    first, _, rest = ours[1].partition(b"\n")
    assert first.startswith(b"palsub: submitted as plain sbatch: Slurm does not answer")
    if daemon == "slurmctld":  # seen at once, and not after the three seconds
        assert b"cannot reach it" in first
    assert (ours[0], rest, ours[2]) == (alone[0], alone[1], alone[2])
    assert alone[2] == 1
