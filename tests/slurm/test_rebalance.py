# SPDX-License-Identifier: MIT
"""pal-rebalance on a real Slurm: jobs move to better GPUs, wait where that pays, and are never left pinned."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.lab import processes
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import find_programs
from slurm_pal.pending.retarget import LEAST_INTERVALS
from slurm_pal.slurm.cli import CliClient
from slurm_pal.store import snapshot
from slurm_pal.store.lua_table import read_header
from slurm_pal.store.snapshot import GpuScore

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm

PATIENCE_S = 60.0
SLOW = 2.0  # time factor of the GPUs of n0; those of the others are 1.0
REBALANCE = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()"]
PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
PAL = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()"]
STUBBORN = "#!/bin/bash\ntrap '' TERM\nuntil [ -e end ]; do sleep 0.1; done\n"
"""SIGTERM does not end it: its requeue takes as long as KillWait."""


class Site:
    """The lab, scores of its GPUs, and folders of the test's own."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home, self.client = home, CliClient()
        self.state = home / "state"
        self.state.mkdir()
        self.snapshot = str(self.state / "snapshot")
        rebalance = {"MINIMUM_S": 0, "MOVE_COST_S": 5, "LOST_WORK_S": 5, "METRICS": self.state / "pal.prom"}
        self.user = lab.environ() | {
            "XDG_STATE_HOME": str(home / "xdg"), "SLURM_PAL_PATHS_SNAPSHOT": str(home / "none"), "TMPDIR": str(home),
        }  # fmt: skip
        self.env = (
            self.user
            | {f"SLURM_PAL_REBALANCE_{name}": str(value) for name, value in rebalance.items()}
            | {"SLURM_PAL_PATHS_STATE_DIR": str(self.state), "SLURM_PAL_PATHS_SNAPSHOT": self.snapshot}
            | {"SLURM_PAL_PATHS_TABLE": str(self.state / "table"), "SLURM_PAL_PATHS_GPUS": str(self.state / "gpus")}
            | {"SLURM_PAL_SUBMIT_EXPECTED_RUN_SHARE": "0.25"}
        )
        gpus = [
            GpuScore(gpu.node, gpu.index, gpu.uuid, gpu.model, {c: gpu.true_slowdown(c) for c in "ABC"},
                     {c: "v1" if gpu.true_slowdown(c) > 1.1 else "v0" for c in "ABC"}, time.time(), 1.0, ())
            for gpu in lab.registry().gpus
        ]  # fmt: skip
        levels = {"A": [1.0, SLOW], "B": [1.0], "C": [1.0]}
        snapshot.publish(self.snapshot, gpus, cluster="lab", epoch=3, now_s=time.time(), centroids=levels)

    # -- jobs

    def palsub(self, *words: str, script: str = "") -> int:
        """As a user who has no scores, so that Slurm itself chooses the first place."""
        argv = [*PALSUB, "--parsable", "-o", str(self.home / "out-%j"), "--open-mode=append", "-t", "60", "--pal-class"]
        done = subprocess.run(
            [*argv, "A", *words], input=script or "#!/bin/sh\nsleep 300\n", env=self.user, cwd=self.home,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def sbatch(self, *words: str) -> int:
        return self.client.submit(["-o", "/dev/null", *words], "#!/bin/sh\nsleep 300\n")

    def fill(self, *names: str) -> dict[str, int]:
        """Jobs that nobody may touch, on all GPUs of these nodes."""
        made = {name: self.sbatch("-w", name, "--gres=gpu:2") for name in names}
        for number in made.values():
            self.running(number)
        return made

    def until(self, number: int, wanted: Callable[[SlurmJob], bool]) -> SlurmJob:
        return queue_of.until(self.client, number, wanted, lambda: self.ticks()[-1:])

    def running(self, number: int, restarts: int = 0) -> SlurmJob:
        return self.until(number, lambda job: job.state == "RUNNING" and job.restarts == restarts)

    # -- ticks

    def run(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    @contextlib.contextmanager
    def daemon(self, *, tells: bool = True, **settings: object) -> Iterator[subprocess.Popen[str]]:
        """A daemon that acts; where it tells its ticks, as JSON lines in `ticks`."""
        env = self.env | {f"SLURM_PAL_REBALANCE_{name.upper()}": str(value) for name, value in settings.items()}
        with open(self.home / "ticks", "w") as ticks, open(self.home / "said", "w") as said:
            argv = [*REBALANCE, "--daemon", "--act", "--every=1", *(["--json"] if tells else [])]
            process = subprocess.Popen(argv, env=env, stdout=ticks, stderr=said, text=True)
            try:
                self.wait(lambda: os.path.exists(self.snapshot + ".heartbeat") or process.poll() is not None)
                assert process.poll() is None, self.said()
                yield process
            finally:
                process.kill()
                process.wait()

    def ticks(self) -> list[dict[str, object]]:
        path = self.home / "ticks"
        return [json.loads(line) for line in path.read_text().splitlines() if line[-1:] == "}"] if path.exists() else []

    def said(self) -> str:
        return (self.home / "said").read_text()

    def wait(self, wanted: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < deadline_s, self.said() if (self.home / "said").exists() else ""
            time.sleep(0.2)

    def moves(self) -> list[Move]:
        path = self.state / "rebalance.db"
        if not path.exists():
            return []
        with open_journal(str(path), write=False) as journal:
            return journal.moves()

    def at_step(self, *steps: str) -> Move:
        """The only move, once it has come to one of these steps."""
        self.wait(lambda: any(move.step in steps or move.outcome for move in self.moves()))
        (move,) = self.moves()
        assert move.step in steps and not move.outcome, move
        return move

    def ended(self) -> Move:
        """The only move, once it is over."""
        self.wait(lambda: any(move.outcome for move in self.moves()))
        return self.moves()[0]


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 0


@pytest.fixture(scope="module")
def started() -> Iterator[Lab]:
    """4 nodes with 2 GPUs each, of which those of n0 are slow for class A."""
    skip_without_slurm()
    with short_directory() as path:
        table = Path(path).parent / "gpus.csv"
        rows = [f"n{i},{k},{SLOW if i == 0 else 1.0},1.0,1.0" for i in range(4) for k in range(2)]
        table.write_text("\n".join(["node,index,A,B,C", *rows, ""]))
        with Lab.up(path, nodes=4, gpus=2, gpu_table=str(table)) as lab:
            yield lab


@pytest.fixture
def site(started: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in started.variables().items():
        monkeypatch.setenv(name, value)
    made = Site(started, tmp_path)
    yield made
    (tmp_path / "end").touch()
    client = made.client
    queue_of.emptied(client)
    for node in client.nodes():
        if node.states & {"DRAIN", "DOWN"}:
            client.update_nodes([node.name], State="RESUME")
    made.wait(lambda: all("IDLE" in node.states and "DRAIN" not in node.states for node in client.nodes()))


def work(site: Site, seconds: float) -> str:
    words = ["lab", "work", "--class", "A", "--seconds", f"{seconds:g}", "--checkpoint", str(site.home / "state.txt")]
    return "#!/bin/bash\nexec " + " ".join(f"'{word}'" for word in [*PAL, *words, "--json"]) + "\n"


def listens(site: Site) -> bool:
    """Whether the `work` of this site handles SIGUSR1 by now; Python takes its time to start on a busy machine."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"{site.home}/state.txt" in (status.parent / "cmdline").read_text(errors="replace").split("\0"):
                (caught,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigCgt"))
                return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


def test_a_job_moves_to_better_gpus_and_goes_on_where_it_was(site: Site) -> None:
    full = site.fill("n1", "n2", "n3")
    moved = site.palsub("--gres=gpu:1", "--pal-checkpoint", "USR1", script=work(site, 8))
    site.running(moved)
    site.wait(lambda: listens(site))
    stays = site.palsub("--gres=gpu:1", "--comment=pal:job=A")
    assert site.running(stays).nodes == ("n0",)
    with site.daemon(features=True, weights=True) as daemon:
        site.wait(lambda: bool(site.ticks()))
        nodes = {node.name: node for node in site.client.nodes()}
        assert nodes["n0"].weight == nodes["n1"].weight + 10
        assert "pal_A_v1" in nodes["n0"].features and "pal_A_v0" in nodes["n1"].features
        site.client.cancel([full["n2"]])
        site.until(full["n2"], lambda job: job.state == "CANCELLED")
        freed_s = time.time()
        job = site.running(moved, restarts=1)
        assert (job.nodes, job.job_id) == (("n2",), moved)
        move = site.ended()
        assert (move.outcome, move.source, move.target_gpus) == ("moved", "n0:0", "n2:0")
        assert sum(freed_s < float(str(tick["at_s"])) <= move.made_s for tick in site.ticks()) <= 2
        assert site.client.job(stays).nodes == ("n0",)  # type: ignore[union-attr]
        body = json.loads(site.run(*PAL, "moves", "--json"))
        assert [(row["job_id"], row["outcome"]) for row in body["moves"]] == [(moved, "moved")]
        body = json.loads(site.run(*PAL, "explain", str(moved), "--json"))
        assert [event["outcome"] for event in body["story"] if event["what"] == "move"] == ["moved"]
        families = {f.name: f for f in text_string_to_metric_families((site.state / "pal.prom").read_text())}
        assert len(families["pal_gpu_slowdown"].samples) == 24 and families["pal_tick_seconds"].samples[0].value > 0
        assert all(int(str(tick["queries"])) <= 4 for tick in site.ticks())
        stop(daemon)
    assert site.said().count("error") == 0
    assert read_header(str(site.state / "table")).clears == "" and not os.path.exists(site.snapshot + ".heartbeat")
    assert "taken back" in site.run(*REBALANCE, "--withdraw")
    left = {(node.weight, frozenset(f for f in node.features if "pal_" in f)) for node in site.client.nodes()}
    assert left == {(nodes["n1"].weight, frozenset())}
    site.until(moved, lambda job: job.state == "COMPLETED")
    (record,) = [json.loads(line) for line in (site.home / f"out-{moved}").read_text().splitlines() if "{" in line]
    assert record["resumed"] > 0 and record["gpus"] == {"n2": [0]}


def test_only_jobs_that_keep_their_output_are_moved_and_no_array(site: Site) -> None:
    """Slurm starts a requeued job with an empty output file, unless it was submitted with --open-mode=append."""
    full = site.fill("n1", "n2", "n3")
    script = "#!/bin/bash\n#PAL movable\necho run ${SLURM_RESTART_COUNT:-0}\nsleep 300\n"
    submit = subprocess.run(
        [*PALSUB, "--parsable", "-t", "60", "--pal-class", "A", "--gres=gpu:1", "-D", str(site.home)], input=script,
        env=site.user, cwd=site.home, capture_output=True, text=True, check=True,
    )  # fmt: skip
    kept = int(submit.stdout)
    assert submit.stderr.count("\n") == 1 and "snapshot" in submit.stderr  # by default nothing else becomes different
    site.running(kept)
    words = ["-t60", "-wn0", "--gres=gpu:1", "--comment=pal:job=A;from=x;mov=1", f"-o{site.home}/%j"]
    plain = site.client.submit(words, script.replace("#PAL movable", ""))
    site.running(plain)
    partition = site.client.job(kept).partition  # type: ignore[union-attr]
    with site.daemon(movable_partitions=partition) as daemon:
        site.client.cancel(full.values())
        assert site.running(kept, restarts=1).nodes != ("n0",)
        site.wait(lambda: "run 1" in (site.home / f"slurm-{kept}.out").read_text())
        site.client.cancel([kept])
        array = site.client.submit(
            ["-a7", "-t60", "-wn0", "--gres=gpu:1", "--comment=pal:job=A;app=1", "-o/dev/null"], script
        )
        site.running(array)
        site.wait(lambda: any("array" in str(tick["staying"]) for tick in site.ticks()))
        assert all(job.restarts == 0 and job.nodes == ("n0",) for job in map(site.client.job, (plain, array)) if job)
        stop(daemon)
    assert "Not moved while it runs: a move would empty its output" in site.run(*PAL, "explain", str(plain))
    lines = (site.home / f"slurm-{kept}.out").read_text().splitlines()
    assert [line for line in lines if line.startswith("run")] == ["run 0", "run 1"]
    assert (site.home / str(plain)).read_text() == "run 0\n"


def test_a_waiting_job_is_kept_off_slow_gpus_while_that_pays(site: Site) -> None:
    full = site.fill("n0", "n1", "n2", "n3")
    for job_id in full.values():  # jobs that end soon are worth a wait
        site.run("scontrol", "update", f"JobId={job_id}", "TimeLimit=1")
    number = site.palsub("--gres=gpu:1", "-x", "n3", "--pal-movable=5", "-t", "1")
    foreign = site.sbatch("--gres=gpu:1", "-x", "n3", "--nice=100")
    with site.daemon() as daemon:
        assert set(site.until(number, lambda job: len(job.exc_nodes) > 1).exc_nodes) == {"n0", "n3"}
        site.client.cancel([full["n0"]])
        assert site.running(foreign).exc_nodes == ("n3",)
        job = site.running(number)
        assert (job.exc_nodes, job.nodes) == (("n3",), ("n0",))
        body = json.loads(site.run(*PAL, "explain", str(number), "--json"))
        assert [event["what"] for event in body["story"] if event["what"] in ("exclude", "clear")] == [
            "exclude",
            "clear",
        ]
        assert job.start_s - site.client.job(foreign).start_s >= LEAST_INTERVALS  # type: ignore[union-attr]
        stop(daemon)


def test_a_daemon_that_ends_takes_its_lists_back(site: Site) -> None:
    site.fill("n0", "n1", "n2", "n3")
    number = site.palsub("--gres=gpu:1", "-x", "n3", "--pal-movable=5")
    with site.daemon() as daemon:
        site.until(number, lambda job: len(job.exc_nodes) > 1)
        stop(daemon)
    job = site.client.job(number)
    assert job is not None and job.exc_nodes == ("n3",) and job.state == "PENDING"


def test_a_full_disk_keeps_no_job_waiting(site: Site) -> None:
    full = site.fill("n0", "n1", "n2", "n3")
    number = site.palsub("--gres=gpu:1", "--pal-movable=5", "-t", "1")
    with site.daemon(tells=False) as daemon:
        site.until(number, lambda job: job.exc_nodes == ("n0",))
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        late = site.palsub("--gres=gpu:1", "--pal-movable=5")
        site.client.cancel([full["n0"]])
        assert site.running(number).exc_nodes == () and site.running(late).exc_nodes == ()
        stop(daemon)


def test_once_from_cron_finishes_its_moves_and_leaves_no_list(site: Site) -> None:
    site.fill("n2", "n3")
    filler = site.fill("n1")
    numbers = [site.palsub("--gres=gpu:1", "--pal-movable=5") for _ in range(2)]
    for number in numbers:
        assert site.running(number).nodes == ("n0",)
    waits = site.palsub("-x", "n1", "--gres=gpu:2", "--pal-movable=5")
    site.client.cancel([filler["n1"]])
    site.until(filler["n1"], lambda job: job.state == "CANCELLED")
    hook, settings, told = site.home / "hook", site.home / "pal.toml", site.home / "told"
    hook.write_text(f"#!/bin/sh\ncat >> {told}\n")
    hook.chmod(0o755)
    settings.write_text(f'{Path(site.env["SLURM_PAL_CONFIG"]).read_text()}\n[hooks]\non_move = "{hook}"\n')
    site.env["SLURM_PAL_CONFIG"] = str(settings)
    said = site.run(*REBALANCE, "--once", "--act")
    assert said.startswith("Done") and not os.path.exists(site.snapshot + ".heartbeat")
    moved = [move.job_id for move in site.moves() if move.outcome == "moved"]
    assert moved, said
    assert all(move.outcome for move in site.moves())
    events = [json.loads(line) for line in told.read_text().splitlines()]
    assert {(event["job_id"], event["what"]) for event in events} >= {
        (number, what) for number in moved for what in ("move", "moved")
    }
    for number in moved:
        assert site.running(number, restarts=1).nodes == ("n1",)
    for job in site.client.jobs():
        assert job.state != "PENDING" or job.req_nodes == ()
    assert site.until(waits, lambda job: job.state == "PENDING").exc_nodes == ("n0", "n1")


def restart(lab: Lab, site: Site) -> None:
    """slurmctld goes and comes again, as in an update."""
    (before,) = [process for process in processes.find_daemons(lab.directory) if process.name == "slurmctld"]
    os.kill(before.pid, signal.SIGTERM)
    site.wait(lambda: not processes.alive(before))
    time.sleep(1.5)
    lab._crew.spawn("slurmctld", [find_programs()["slurmctld"], "-D", "-f", lab.directory.conf])


def test_slurmctld_restarted_in_the_middle_of_a_move(started: Lab, site: Site) -> None:
    full = site.fill("n1", "n2", "n3")
    number = site.palsub("--gres=gpu:1", "--pal-movable=5", script=STUBBORN)
    site.running(number)
    with site.daemon() as daemon:
        site.client.cancel([full["n2"]])
        site.at_step("requeueing", "targeting")
        restart(started, site)
        site.wait(lambda: any(move.outcome for move in site.moves()))
        job = site.running(number, restarts=1)
        move = site.ended()
        assert move.outcome in ("moved", "elsewhere") and (job.nodes == ("n2",)) == (move.outcome == "moved")
        assert job.req_nodes == (("n2",) if move.outcome == "moved" else ())
        assert daemon.poll() is None
        stop(daemon)


def test_the_target_goes_down_after_the_requeue(site: Site) -> None:
    full = site.fill("n1", "n2", "n3")
    number = site.palsub("--gres=gpu:1", "--pal-movable=5", script=STUBBORN)
    site.running(number)
    with site.daemon() as daemon:
        site.client.cancel([full["n2"]])
        site.at_step("requeueing")
        site.client.update_nodes(["n2"], State="DOWN", Reason="test")
        job = site.running(number, restarts=1)
        assert job.nodes == ("n0",) and job.req_nodes == () and site.ended().outcome == "elsewhere"
        stop(daemon)


def test_the_target_is_drained_while_the_job_saves(site: Site) -> None:
    full = site.fill("n1", "n2", "n3")
    saves = f"touch {site.home}/saves; until [ -e {site.home}/saved ]; do sleep 0.1; done"
    number = site.palsub("--gres=gpu:1", "--pal-checkpoint", saves)
    site.running(number)
    time.sleep(1)  # until the trap stands
    with site.daemon() as daemon:
        site.client.cancel([full["n2"]])
        site.wait((site.home / "saves").exists)
        site.client.update_nodes(["n2"], State="DRAIN", Reason="test")
        (site.home / "saved").touch()
        move = site.ended()
        assert (move.outcome, move.detail) == ("abandoned", "n2 takes no jobs now")
        job = site.client.job(number)
        assert job is not None and (job.state, job.restarts, job.nodes) == ("RUNNING", 0, ("n0",))
        stop(daemon)


def test_the_node_of_a_job_fails_after_its_move_began(site: Site) -> None:
    full = site.fill("n1", "n2", "n3")
    saves = f"touch {site.home}/saves; sleep 100"
    number = site.palsub("--gres=gpu:1", "--requeue", "--pal-checkpoint", saves)
    site.running(number)
    time.sleep(1)
    with site.daemon() as daemon:
        site.client.cancel([full["n2"]])
        site.wait((site.home / "saves").exists)
        site.client.update_nodes(["n0"], State="DOWN", Reason="test")
        assert site.ended().outcome == "abandoned"
        assert site.running(number, restarts=1).req_nodes == ()
        stop(daemon)
