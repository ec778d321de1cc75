# SPDX-License-Identifier: MIT
"""What a sweep costs the machine that runs it, by the number of nodes: planning, looks at the queue, its loop.

    python tests/bench/sweep_planning.py [--nodes 500 5000]

Nodes of 8 GPUs, half of them idle; a queue of one running job for each other node, and as many that
wait, for GPUs of another type: all the time the sweep watches for whom its jobs should leave. Slurm's
answers are texts prepared beforehand: only our process is timed,
without Slurm's commands. plan, look, load (of the plan, as --resume does) and poll: the median of
five calls. loop: all that a sweep does in 150 s, 16 nodes at once, as a share of these 150 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

from slurm_pal.base.config import Config
from slurm_pal.profiling.sweep import prepare, sweep_state
from slurm_pal.profiling.sweep.gate import Gate
from slurm_pal.profiling.sweep.plan import SweepRequest
from slurm_pal.profiling.sweep.prepare import MeasureOptions
from slurm_pal.profiling.sweep.spending import Spending
from slurm_pal.profiling.sweep.sweep import Sweep, SweepListeners
from slurm_pal.profiling.sweep.urgency import CHANGED, Urgency
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Completed
from slurm_pal.store.ingest import spool_directories

GPUS, NOW_S = 8, 1_800_000_000.0
NAME = "pal-profile:20270115-080000-00000"
LOOP_S = 150.0  # later, jobs of 110 s would be asked after


class Cluster:
    """Slurm's answers about `nodes` nodes; jobs of the sweep run for ever."""

    def __init__(self, nodes: int) -> None:
        self.nodes = [f"n{i}" for i in range(nodes)]
        self.submitted = 0
        self._queues: dict[object, str] = {}
        self._shown = {
            "node": "".join(map(_node, range(nodes))),
            "partition": f"PartitionName=gpu Default=YES MaxTime=UNLIMITED Nodes=n[0-{nodes - 1}] State=UP\n",
            "config": "ClusterName = bench\n",
            "reservation": "No reservations in the system\n",
            "job": "".join(_job(i, f"n{i}") for i in range(1, nodes, 2)) + "".join(_job(i) for i in range(0, nodes, 2)),
        }

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        if argv[0] == "sbatch":
            self.submitted += 1
            return Completed(0, f"{10**6 + self.submitted}\n", "")
        if argv[0] == "squeue":
            return Completed(0, self._queue(argv[argv.index("-O") + 1], "--me" in argv), "")
        if argv[:2] == ["scontrol", "show"]:
            return Completed(0, self._shown[argv[2]], "")
        asked = [line.split()[1] for line in stdin.splitlines() if line.startswith("show")]
        words = (line.split()[2] + "\n" for line in stdin.splitlines() if line.startswith("show hostnames"))
        return Completed(0, "".join(next(words) if kind == "hostnames" else self._shown[kind] for kind in asked), "")

    def _queue(self, form: str, mine: bool) -> str:
        """squeue's answer in this form (slurm/told.py), from a text that was made at the first call."""
        fields = [field.partition(":")[::2] for field in form.split(",")]
        key = (tuple(name for name, _ in fields), mine, self.submitted)
        if key not in self._queues:
            rows = [(10**6 + 1 + i, f"n{2 * i}", NAME, os.geteuid()) for i in range(self.submitted)]
            if not mine:
                rows += [(i + 1, f"n{i}" * (i % 2), f"train{i}", 1000 + i % 50) for i in range(len(self.nodes))]
            self._queues = {key: "".join(_row(key[0], *row) for row in rows)}
        return self._queues[key].replace("\0", fields[0][1]).replace("\1", fields[-1][1])


def _node(i: int) -> str:
    busy = i % 2
    return (
        f"NodeName=n{i} Arch=x86_64 CoresPerSocket=64 CPUAlloc={128 * busy} CPUEfctv=128 CPUTot=128 CPULoad=1.00 "
        f"AvailableFeatures=a100,ib ActiveFeatures=a100,ib Gres=gpu:a100:{GPUS} GresDrain=N/A "
        f"GresUsed=gpu:a100:{GPUS * busy} NodeAddr=n{i} NodeHostName=n{i} Version=22.05.8 RealMemory=1000000 "
        f"AllocMem=0 State={'ALLOCATED' if busy else 'IDLE'} Weight=1 Partitions=gpu,long Owner=N/A\n"
    )


def _row(fields: Sequence[str], job_id: int, node: str, name: str, uid: int) -> str:
    state, reason = ("RUNNING", "None") if node else ("PENDING", "Resources")
    known = {"jobid": job_id, "userid": uid, "nodelist": node, "name": name, "state": state, "reason": reason}
    return "\0".join(str(known.get(field, "(null)")) for field in fields) + "\1\n"


def _job(i: int, node: str = "") -> str:
    layout = f"  Nodes={node} CPU_IDs=0-127 Mem=0 GRES=gpu:a100:{GPUS}(IDX:0-{GPUS - 1})" if node else ""
    return (
        f"JobId={i + 1} JobName=train{i} UserId=user{i % 50}({1000 + i % 50}) GroupId=users(100) Priority=1000 "
        f"JobState={'RUNNING' if node else 'PENDING'} Reason={'None' if node else 'Resources'} Requeue=1 Restarts=0 "
        f"BatchFlag=1 TimeLimit=1-00:00:00 SubmitTime=2027-01-14T08:00:00 Partition=gpu ReqNodeList=(null) "
        f"ExcNodeList=(null) NodeList={node or '(null)'} NumNodes=1 NumCPUs=128{layout} Features=(null) "
        f"Licenses=(null) Command=x WorkDir=/ TresPerNode=gres:gpu:{'a100' if node else 'h100'}:{GPUS}\n"
    )


def timed(action: Callable[[], object], times: int = 5) -> tuple[float, float]:
    """Median seconds of one call: wall, CPU."""
    found = []
    for _ in range(times):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        action()
        found.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
    return statistics.median(wall for wall, _ in found), statistics.median(cpu for _, cpu in found)


def loop(client: CliClient, directory: sweep_state.SweepDirectory, spool: str) -> tuple[Sweep, tuple[float, float]]:
    """A sweep that was at work for `LOOP_S` of a clock of its own, and what these seconds took, s: wall, CPU."""
    stop, clock_s, began_s = threading.Event(), [0.0], time.process_time()

    def clock() -> float:
        """What a look takes counts: the sweep looks less often for it."""
        return clock_s[0] + time.process_time() - began_s

    def sleep(seconds: float) -> None:
        clock_s[0] += max(seconds, 0.001)
        if clock_s[0] >= LOOP_S:
            stop.set()

    def now() -> float:
        return NOW_S + clock_s[0]

    sweep = Sweep(
        client,
        directory,
        spool_directories(spool),
        SweepListeners(lambda node, state: None),
        stop,
        now,
        clock,
        sleep,
    )
    return sweep, timed(sweep.run, 1)


def one(nodes: int, place: str) -> dict[str, tuple[float, float]]:
    """What -> seconds of wall and CPU time."""
    client, config = CliClient(Cluster(nodes)), Config()
    config.set("paths", "state_dir", place, "bench")
    config.set("profile", "backend", "driver", "bench")
    newest = {f"n{i}": NOW_S - 86400.0 * (i % 30) for i in range(nodes)}
    urgent = {f"n{i}": Urgency(CHANGED, "GPU 0 step") for i in range(0, nodes, 50)}

    def survey() -> prepare.SweepSurvey:
        return prepare.survey(client, config, SweepRequest(), MeasureOptions(), newest, urgent, NOW_S, {})

    found = survey()
    terms = prepare.terms(client, config, found, MeasureOptions(), "20270115-080000-00000", NOW_S)
    directory = sweep_state.create(place, terms)
    gate = Gate(client, terms, Spending(0.0), lambda: NOW_S, time.monotonic)
    costs = {
        "plan": timed(survey),
        "look": timed(lambda: gate.look(terms.chosen)),
        "load": timed(lambda: sweep_state.load(place)),
    }
    sweep, costs["loop"] = loop(client, directory, config.spool_dir)
    return costs | {"poll": timed(sweep._poll)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[500, 5000])
    print("nodes  what  wall_ms    cpu_ms cpu_us/node  share")
    for nodes in parser.parse_args().nodes:
        with tempfile.TemporaryDirectory() as place:
            for what, (wall_s, cpu_s) in one(nodes, place).items():
                share = f"{100 * cpu_s / LOOP_S:5.1f} %" if what == "loop" else ""
                print(
                    f"{nodes:5}  {what:4}  {1e3 * wall_s:7.1f}  {1e3 * cpu_s:8.1f}  {1e6 * cpu_s / nodes:11.2f}{share}"
                )


if __name__ == "__main__":
    main()
