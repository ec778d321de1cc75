# SPDX-License-Identifier: MIT
"""pal-rebalance killed with SIGKILL over and over while it lends nodes on a real Slurm: nothing may be lost.

    python tests/bench/loan_kills.py [--kills 1000] [--nodes 6] [--seed 1] [--numbers 60] [--dir DIR]

A lab with a guests' partition of all nodes and an owner's of all but two. Guests come and go: some make checkpoints
on USR1, some save their state themselves, some start anew. Owners submit in bursts, never more than their nodes hold.
What owners are thought to need, and the headroom, is drawn anew after each kill, so that nodes open and close, and
guests leave, all the time. The daemon is killed, half of the time at a random moment, otherwise just after it has
written its journal or logged a chosen step, and started again; during every second 25 kills a lease guard watches.
Now and then slurmctld reads slurm.conf anew. In the end it runs undisturbed, gets a SIGTERM, and `--withdraw` follows.

Prints one JSON object; `violations` must be 0, which the exit status shows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

sys.path.insert(0, os.path.dirname(__file__))

import rebalance_kills as kills

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.journal import LoanList, Move, open_journal
from slurm_pal.lab.conf import node_names
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient

OWN_NODES = 2  # of the guests' partition alone
INTERVAL_S, GRACE_S = 10.0, 5.0
SLACK_S = 30.0  # for a start beyond both: KillWait, passes of the scheduler, a machine with other work
HOURS = 20  # of the past, all alike
OWNER_LOAD = 0.9  # of their nodes that owners ask for at most, in bursts
GUEST_LOAD = 1.1
UNHELD_S = 20.0  # by then a job that Slurm holds since our list did not fit it waits again
SETTINGS = {
    "LOAN_OWNERS": "owner", "LOAN_GUEST": "guest", "LOAN_INTERVAL_S": f"{INTERVAL_S:g}", "LOAN_GRACE_S": f"{GRACE_S:g}",
    "LOAN_QUANTILE": "0.5", "REBALANCE_MOVES": "false",
}  # fmt: skip
PARTITIONS = """
[slurm]
PreemptType = "preempt/partition_prio"
PreemptMode = "REQUEUE"
[partitions.guest]
nodes = "ALL"
default = true
tier = 1
preempt = "requeue"
[partitions.owner]
nodes = "{theirs}"
tier = 10
preempt = "off"
"""
kills.KINDS.clear()
kills.KINDS.update(
    {
        "checkpoint": kills.Kind(
            ("--pal-class=A", "--pal-checkpoint=USR1"), 4, True, trap="""trap 'save && : > "$SLURM_PAL_ACK"' USR1"""
        ),
        "saving": kills.Kind(("--pal-class=A", "--pal-movable"), 2, True, each="[ $((n % 5)) != 0 ] || save"),
        "plain": kills.Kind((), 3, True, beats=0.4),
        "owner": kills.Kind((), 0, False, beats=0.3),
    }
)
kills.AIMS.clear()
kills.AIMS.update(
    {("loan",): 6, ("reclaim",): 4, ("signalling",): 4, ("requeueing",): 5, ("freeing",): 4, ("reclaimed",): 2,
     (kills.COMMIT,): 10}
)  # fmt: skip
kills.AIM_S = 6.0
kills.HELD_S = UNHELD_S


class Site:
    """The lab and its journal."""

    def __init__(self, lab: Lab, nodes: int, seed: int) -> None:
        self.lab, self.nodes, self.random = lab, nodes, random.Random(seed)
        self.pal = lab.directory("pal")
        self.halved = False
        self.work = os.path.join(lab.directory.path, "work")
        os.mkdir(self.work)
        self.theirs = node_names(nodes)[OWN_NODES:]
        self.path = os.path.join(self.pal, "rebalance.db")
        self.lists: Counter[str] = Counter()  # as they stood after a kill

    def draw(self) -> None:
        """What owners are thought to need; only while no daemon lives."""
        with open_journal(self.path):
            pass
        now, nodes = int(time.time() // 3600), self.random.randint(0, len(self.theirs))
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            rows = [("owner", now - 100 - k, nodes) for k in range(HOURS)]
            connection.execute("DELETE FROM demand")
            connection.executemany("INSERT INTO demand VALUES (?, ?, ?)", rows)
            if self.random.random() < 0.5:  # the next tick gives an order
                connection.execute("UPDATE loan_orders SET at_s = at_s - 3600")

    def journal(self) -> tuple[list[Move], list[LoanList]]:
        if not os.path.exists(self.path):
            return [], []
        with open_journal(self.path, write=False) as journal:
            return journal.reclaims(), journal.loan_lists()

    def listed(self) -> tuple[str, ...]:
        parts = CliClient().overview().partitions
        return next(part.nodes for part in parts if part.name == "guest")

    def check_list(self, findings: kills.Findings) -> None:
        """After a kill: the partition has its own nodes, or a list that the journal knows."""
        _, lists = self.journal()
        try:
            shown = self.listed()
        except SlurmError:
            return
        own = set(shown) == set(node_names(self.nodes))
        self.lists["own" if own else "ours"] += 1
        if not own and not any(one.stands(shown) for one in lists):
            time.sleep(1.5)  # an order of the killed process, or of the guard, may have been on its way
            _, lists = self.journal()
            shown = self.listed()
            if set(shown) != set(node_names(self.nodes)) and not any(one.stands(shown) for one in lists):
                findings.add(f"the partition has {fold(list(shown))}, the journal {lists}")


class Crowd:
    """Guests who keep all nodes busy, and owners who come in bursts."""

    def __init__(self, site: Site, numbers: int, seed: int) -> None:
        self._site, self._numbers, self._random = site, numbers, random.Random(seed + 1)
        self.jobs: dict[int, kills.Job] = {}
        self._number, self._burst_s, self._lock = 0, 0.0, threading.Lock()
        self.refused = 0

    def feed(self, living: frozenset[int]) -> None:
        asked: Counter[bool] = Counter()
        for job_id in living:
            asked[self.jobs[job_id].kind == "owner"] += self.jobs[job_id].gpus
        if asked[False] < GUEST_LOAD * self._site.nodes * kills.GPUS_PER_NODE:
            guests = [name for name in kills.KINDS if name != "owner"]
            self.submit(self._random.choices(guests, [kills.KINDS[name].share for name in guests])[0])
        most = OWNER_LOAD * len(self._site.theirs) * kills.GPUS_PER_NODE
        if time.monotonic() >= self._burst_s:
            while asked[True] + kills.GPUS_PER_NODE <= most:
                asked[True] += self.submit("owner")
            self._burst_s = time.monotonic() + self._random.uniform(8.0, 30.0)

    def submit(self, name: str, node: str = "") -> int:
        kind = kills.KINDS[name]
        with self._lock:
            self._number += 1
            number = self._number
        gpus = kills.GPUS_PER_NODE if name == "owner" else self._random.choice((1, 2, 4))
        numbers = max(3, int(self._numbers * kind.beats * self._random.uniform(0.5, 1.5)))
        file = os.path.join(self._site.work, str(number))
        where = "owner" if name == "owner" else "guest"
        words = ["--parsable", "-o", f"{file}.out", "-N1", f"--gres=gpu:{gpus}", "-p", where]
        if name == "plain" and self._random.random() < 0.15:  # Slurm would hold it while that node is closed
            words.append(f"--nodelist={self._random.choice(self._site.theirs)}")
        text = kills.PAYLOAD.format(file=file, trap=kind.trap, each=kind.each, numbers=numbers, beat=kills.BEAT_S)
        command = [*kills.program("palsub"), *kind.words] if kind.words else ["sbatch"]
        done = subprocess.run([*command, *words], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0 and "configuration is not available" in done.stderr:
            self.refused += 1  # it names a node that is closed
            return 0
        if done.returncode != 0:
            raise SystemExit(f"{command[0]} failed: {done.stderr}")
        job_id = int(done.stdout.split(";")[0])
        self.jobs[job_id] = kills.Job(job_id, name, file, numbers, gpus, (), (), "")
        return gpus


class Watch(kills.Watch):
    """Looks at the queue all the time, and at when owners start."""

    def __init__(self, crowd: Crowd, findings: kills.Findings) -> None:
        super().__init__(crowd, findings)
        self.waits: dict[int, float] = {}  # owners' jobs -> s from submission to start
        self.bad: set[int] = set()  # jobs that Slurm held since the list did not fit

    def _check(self, job: SlurmJob, now_s: float) -> None:
        super()._check(job, now_s)
        if job.reason == "BadConstraints":
            self.bad.add(job.job_id)
        if self._crowd.jobs[job.job_id].kind == "owner" and job.state != "PENDING" and job.start_s:
            self.waits[job.job_id] = job.start_s - job.submit_s


class Daemon(kills.Daemon):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._site = site
        self._env = os.environ | {f"SLURM_PAL_{name}": value for name, value in SETTINGS.items()}
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """With a headroom of its own: guests leave for that, and for what owners wait for."""
        self._env["SLURM_PAL_LOAN_HEADROOM"] = f"{self._site.random.choice((0.0, 0.25, 0.5)):g}"
        super().start()

    def guard(self, wanted: bool) -> None:
        if wanted and self._guard is None:
            with open(self._said, "ab") as said:
                argv = [*kills.program("pal_rebalance"), "--guard"]
                self._guard = subprocess.Popen(argv, env=self._env, stderr=said, stdout=said)
        elif not wanted and self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None

    def withdraw(self) -> str:
        argv = [*kills.program("pal_rebalance"), "--withdraw"]
        done = subprocess.run(argv, env=self._env, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""


class Killer(kills.Killer):
    def _take_target(self, news: object) -> None:
        """Nobody takes a target: there is none."""


def check_reclaims(moves: list[Move], watch: Watch, site: Site, findings: kills.Findings) -> Counter[str]:
    """Each has an outcome, and no guest was requeued by us more than once for each; how many requeues were ours."""
    with contextlib.closing(sqlite3.connect(site.path)) as connection:
        state = connection.execute("PRAGMA integrity_check").fetchone()[0]
    if state != "ok":
        findings.add(f"the journal is damaged: {state}")
    ours: Counter[int] = Counter()
    with open_journal(site.path, write=False) as journal:
        for move in moves:
            if not move.outcome:
                findings.add(f"reclaim {move.move_id} of job {move.job_id} is open in step {move.step}")
            ours[move.job_id] += any(step == "requeueing" for step, _ in journal.steps_of(move.move_id))
    return Counter({"ours": sum(ours.values()), "all": sum(watch.restarts.values())})


def check_waits(watch: Watch, crowd: Crowd, findings: kills.Findings) -> list[float]:
    limit_s = GRACE_S + INTERVAL_S + SLACK_S
    for job_id, wait_s in watch.waits.items():
        if wait_s > limit_s:
            findings.add(f"job {job_id} of an owner waited for {wait_s:.0f} s, not {limit_s:g} at most")
    never = [job_id for job_id, job in crowd.jobs.items() if job.kind == "owner" and job_id not in watch.waits]
    if never:
        findings.add(f"jobs of owners that nobody has seen start: {never}")
    return sorted(watch.waits.values())


def finish(site: Site, daemon: Daemon, crowd: Crowd, watch: Watch, findings: kills.Findings) -> None:
    """The daemon runs in peace and is stopped, and all is withdrawn; waits for all jobs."""
    daemon.start()
    time.sleep(2 * INTERVAL_S)
    if daemon.dead() or daemon.end(signal.SIGTERM) != 0:
        findings.add(f"the daemon did not end well: {daemon.last_words()}")
    if site.listed() != tuple(node_names(site.nodes)):
        findings.add(f"after SIGTERM the partition has {fold(list(site.listed()))}")
    if said := daemon.withdraw():
        findings.add(f"--withdraw: {said.strip()}")
    if site.listed() != tuple(node_names(site.nodes)) or site.journal()[1]:
        findings.add(f"after --withdraw the partition has {fold(list(site.listed()))}")
    until_s = time.monotonic() + kills.PATIENCE_S
    while watch.living:
        if time.monotonic() > until_s:
            findings.add(f"jobs that do not end: {sorted(watch.living)}")
            break
        time.sleep(0.5)
        watch.look()


def play(lab: Lab, args: argparse.Namespace) -> dict[str, object]:
    site, findings = Site(lab, args.nodes, args.seed), kills.Findings()
    crowd, daemon = Crowd(site, args.numbers, args.seed), Daemon(site)
    watch = Watch(crowd, findings)
    killer = Killer(site, daemon, crowd, findings, args.seed)
    rng, began_s = random.Random(args.seed + 3), time.monotonic()
    try:
        with contextlib.ExitStack() as looks:
            looking = looks.enter_context(kills.beside(watch.glance, 0.5))
            with kills.beside(lambda: crowd.feed(watch.living), 0.2) as feeding:
                for count in range(args.kills):
                    if looking or feeding:
                        break
                    daemon.guard(count // 25 % 2 == 1)
                    site.draw()
                    daemon.start()
                    killer.kill()
                    site.check_list(findings)
                    if rng.random() < 0.04:
                        subprocess.run(["scontrol", "reconfigure"], check=False)
                    if rng.random() < 0.03:  # long enough for requeued jobs to start without us
                        time.sleep(rng.uniform(0.0, 8.0))
                    if count % 25 == 24:
                        print(f"{count + 1} kills, {len(crowd.jobs)} jobs", file=sys.stderr, flush=True)
        daemon.guard(False)
        finish(site, daemon, crowd, watch, findings)
    finally:
        daemon.guard(False)
        if not daemon.dead():
            with contextlib.suppress(AssertionError):
                daemon.end(signal.SIGKILL)
    again = sum(kills.check_output(job, findings) for job in crowd.jobs.values())
    moves, _ = site.journal()
    requeues = check_reclaims(moves, watch, site, findings)
    waits = check_waits(watch, crowd, findings)
    with open_journal(site.path, write=False) as journal:
        orders = Counter(order.why for order in journal.loan_orders())
    for job_id, how in watch.ended.items():
        if how != "COMPLETED":
            findings.add(f"job {job_id} ({crowd.jobs[job_id].kind}) ended as {how}")
    return {
        "schema": "pal.bench.loan-kills/1", "kills": args.kills, "aimed": dict(killer.aimed.most_common()),
        "kills_in_step": dict(killer.at.most_common()), "lists_after_kills": dict(site.lists),
        "jobs": len(crowd.jobs), "jobs_by_kind": dict(Counter(job.kind for job in crowd.jobs.values())),
        "orders": dict(orders), "reclaims": dict(Counter(move.outcome for move in moves)),
        "requeues": requeues["all"], "requeues_in_reclaims": requeues["ours"],
        "numbers": sum(job.numbers for job in crowd.jobs.values()), "numbers_again": again,
        "held_by_slurm_for_a_while": len(watch.bad), "refused_by_slurm": crowd.refused,
        "owner_wait_s": {"median": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)], "most": waits[-1]}
        if waits else {}, "wall_s": round(time.monotonic() - began_s),
        "violations": len(findings.lines), "found": findings.lines[:20],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--numbers", type=int, default=60, help="that a guest counts to, on average")
    parser.add_argument("--dir", help="of the lab; it is left with all logs where something went wrong")
    args = parser.parse_args()
    if args.nodes <= OWN_NODES:
        parser.error(f"--nodes {args.nodes} must be above {OWN_NODES}")
    path = args.dir or os.path.join(tempfile.mkdtemp(prefix="pal"), "lab")
    file = f"{path}.toml"
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(PARTITIONS.format(theirs=fold(node_names(args.nodes)[OWN_NODES:])))
    try:
        lab = Lab.up(path, nodes=args.nodes, gpus=kills.GPUS_PER_NODE, seed=args.seed, partitions=file)
    finally:
        os.unlink(file)
    kills.play_in(lab, args, play)


if __name__ == "__main__":
    main()
