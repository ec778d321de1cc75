# SPDX-License-Identifier: MIT
"""A great many submissions through the filter: slurmctld must survive, and refuse nothing because of us.

    python tests/bench/filter_soak.py [--count 100000] [--clients 4] [--seed 1] [--json]

A lab of 8 nodes, all but one drained, so that jobs are taken and few run, while the filter's
table calls all nodes free: it pins nearly every job. Clients submit a seeded
mixture of sbatch, arrays, heterogeneous jobs, srun, salloc, requests that Slurm refuses, and updates.
Each answer is compared with Slurm's own without a filter. The table gets a new epoch each second.
Exit code 1 when slurmctld was replaced, or an answer differed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from filter_cost import refreshed, table

from slurm_pal.lab.lab import Lab

NODES, GPUS = 8, 4
TABLE_GPUS = 48  # so many per node in the table, so that it is not soon empty
YES, NO, EITHER = "yes", "no", "either"
GIVE_UP_S = 0.4  # srun and salloc of a job that does not start are interrupted after this
CLEAR_EVERY_S = 2.0
LOST = re.compile("slurm_msg_sendto|slurm_receive_msg|Socket timed out")

KINDS: dict[str, tuple[float, str, tuple[str, ...]]] = {
    "gres": (20, YES, ("sbatch", "--gres=gpu:{g}")),
    "gpus": (6, YES, ("sbatch", "--gpus={g}", "-n{g}")),
    "class": (6, YES, ("sbatch", "--gres=gpu:{g}", "--pal-class={c}", "--pal-explain")),
    "app": (3, YES, ("sbatch", "--gres=gpu:1", "--pal-app={c}x")),
    "two nodes": (5, YES, ("sbatch", "-N2", "--gpus-per-node={g}")),
    "range": (3, YES, ("sbatch", "-N1-3", "--gpus-per-node=1")),
    "exclusive": (4, YES, ("sbatch", "-N1", "--exclusive", "--mem=0", "--gres=gpu:{g}", "-t", "60")),
    "per task": (3, YES, ("sbatch", "--gpus-per-task=1", "-n2", "--mem-per-gpu=1G", "--cpus-per-gpu=2")),
    "own exclusion": (4, YES, ("sbatch", "-x", "{n}", "--gres=gpu:4", "-t", "600")),
    "own list": (3, YES, ("sbatch", "-w", "{n}", "--gres=gpu:1")),
    "comment": (2, YES, ("sbatch", "--comment=words and words", "--gres=gpu:1")),
    "no gpu": (2, YES, ("sbatch", "-n1")),
    "held": (2, YES, ("sbatch", "-H", "--gres=gpu:1")),
    "array": (5, YES, ("sbatch", "--array=0-{g}", "--gres=gpu:1")),
    "hetjob": (4, YES, ("sbatch", "--gres=gpu:1", ":", "--gres=gpu:2")),
    "srun": (1, EITHER, ("srun", "--gpus={g}", "-t", "1", "true")),
    "salloc": (1, EITHER, ("salloc", "--gres=gpu:{g}", "-t", "1", "true")),
    "bad class": (2, NO, ("sbatch", "--pal-class=Z", "--gres=gpu:1")),
    "bad feature": (6, NO, ("sbatch", "-C", "nosuch", "--gres=gpu:{g}")),
    "bad feature, array": (3, NO, ("sbatch", "-C", "nosuch", "--array=0-3", "--gres=gpu:1")),
    "bad node": (3, NO, ("sbatch", "-w", "nosuchnode", "--gres=gpu:1")),
    "bad exclusion": (3, NO, ("sbatch", "-x", "nosuchnode", "--gres=gpu:1")),
    "bad partition": (2, NO, ("sbatch", "-p", "nosuch", "--gres=gpu:1")),
    "bad dependency": (3, NO, ("sbatch", "-d", "nosuch:1", "--gres=gpu:1")),
    "bad licence": (3, NO, ("sbatch", "-L", "nosuch:1", "--gres=gpu:1")),
    "bad reservation": (2, NO, ("sbatch", "--reservation=nosuch", "--gres=gpu:1")),
    "too many gpus": (2, NO, ("sbatch", "--gres=gpu:999")),
    "too much memory": (2, NO, ("sbatch", "--mem=99999999", "--gres=gpu:1")),
    "bad array": (2, NO, ("sbatch", "--array=0-99999999", "--gres=gpu:1")),
    "bad hetjob": (4, NO, ("sbatch", "--gres=gpu:1", ":", "-C", "nosuch", "--gres=gpu:1")),
    "bad srun": (1, NO, ("srun", "-C", "nosuch", "--gpus=1", "true")),
    "update lists": (4, EITHER, ("scontrol", "update", "JobId={j}", "ReqNodeList=", "ExcNodeList=")),
    "update list": (2, EITHER, ("scontrol", "update", "JobId={j}", "ReqNodeList={n}")),
    "update feature": (2, EITHER, ("scontrol", "update", "JobId={j}", "Features=nosuch")),
    "hold": (1, EITHER, ("scontrol", "hold", "{j}")),
    "release": (2, EITHER, ("scontrol", "release", "{j}")),
    "requeue": (1, EITHER, ("scontrol", "requeue", "{j}")),
    "reconfigure": (0.05, YES, ("scontrol", "reconfigure")),
}


class Soak:
    """The clients, what they were told, and the housekeeping beside them."""

    def __init__(self, lab: Lab, count: int) -> None:
        self.env, self.left, self.lock = lab.environ(), count, threading.Lock()
        self.answers: collections.Counter[tuple[str, str]] = collections.Counter()
        self.odd: list[str] = []
        self.lost = 0  # the connection broke, as it does under load without a filter too
        self.jobs = ["1"]
        self.acts: dict[str, str] = {}  # job -> what the filter did, of those seen before they were cancelled

    def client(self, seed: int) -> None:
        rng = random.Random(seed)
        names, weights = list(KINDS), [weight for weight, _, _ in KINDS.values()]
        while self._takes():
            kind = rng.choices(names, weights)[0]
            words = {"g": rng.randint(1, 4), "n": f"n{rng.randrange(NODES)}", "c": rng.choice("ABC")}
            argv = [word.format(j=rng.choice(self.jobs[-50:]), **words) for word in KINDS[kind][2]]
            self._note(kind, *self.run([*argv, *self._rest(argv[0])]))

    def _takes(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0

    @staticmethod
    def _rest(program: str) -> list[str]:
        return ["-o", "/dev/null", "--wrap", "true"] if program == "sbatch" else []

    def run(self, argv: list[str]) -> tuple[bool, str]:
        """Whether a command succeeded, and what it said. srun and salloc get SIGTERM when they wait."""
        if ":" in argv:  # the script belongs to the last component, its output to the first
            argv = ["sbatch", "-o", "/dev/null", *argv[1:-4], "--wrap", "true"]
        patience_s = GIVE_UP_S if argv[0] in ("srun", "salloc") else 120.0
        with subprocess.Popen(
            argv, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                said, _ = process.communicate(timeout=patience_s)
            except subprocess.TimeoutExpired:
                process.terminate()
                said, _ = process.communicate()
        return process.returncode == 0, said

    def _note(self, kind: str, taken: bool, said: str) -> None:
        wanted = KINDS[kind][1]
        number = re.search(r"Submitted batch job (\d+)", said)
        with self.lock:
            self.answers[kind, YES if taken else NO] += 1
            if number:
                self.jobs.append(number[1])
            if LOST.search(said):
                self.lost += 1
            elif wanted not in (EITHER, YES if taken else NO) and len(self.odd) < 50:
                self.odd.append(f"{kind}: {said.strip()[:300]}")


def keep_house(soak: Soak, lab: Lab, text: bytes, done: threading.Event) -> None:
    """A new epoch each second, and an empty queue now and then."""
    rounds = 0
    while not done.wait(CLEAR_EVERY_S / 2):
        rounds += 1
        temporary = Path(lab.directory.table + ".new")
        temporary.write_bytes(refreshed(text))
        temporary.replace(lab.directory.table)
        if rounds % 2 == 0:
            _, shown = soak.run(["scontrol", "-o", "show", "job"])
            soak.acts |= dict(re.findall(r"JobId=(\d+) .*AdminComment=\S*act=(\w+)", shown))
            soak.run(["scancel", "-Q", "-u", str(os.geteuid())])


def resident_mib(pid: int) -> float:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def prepare(lab: Lab, soak: Soak) -> int:
    """Short memory for ended jobs, all nodes but one drained; the pid of slurmctld."""
    conf = Path(lab.directory.conf)
    conf.write_text(re.sub("MinJobAge=.*", "MinJobAge=2", conf.read_text()))
    for argv in (
        ["scontrol", "reconfigure"],
        ["scontrol", "update", f"NodeName=n[0-{NODES - 2}]", "State=DRAIN", "Reason=soak"],
    ):
        taken, said = soak.run(argv)
        if not taken:
            sys.exit(said)
    return next(process.pid for process in lab._living() if process.name == "slurmctld")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="pal") as root,
        Lab.up(os.path.join(root, "lab"), nodes=NODES, gpus=GPUS, submit_filter=True) as lab,
    ):
        soak, done = Soak(lab, args.count), threading.Event()
        pid = prepare(lab, soak)
        before_mib, started_s = resident_mib(pid), time.monotonic()
        house = threading.Thread(target=keep_house, args=(soak, lab, table(NODES, TABLE_GPUS), done))
        clients = [threading.Thread(target=soak.client, args=(args.seed + i,)) for i in range(args.clients)]
        for thread in (house, *clients):
            thread.start()
        for thread in clients:
            thread.join()
        took_s = time.monotonic() - started_s
        done.set()
        house.join()
        same = any(process.pid == pid for process in lab._living())
        after_mib = resident_mib(pid) if same else 0.0
        log = Path(lab.directory.log("slurmctld")).read_text(errors="replace")
    answers = soak.answers
    result = {
        "requests": sum(answers.values()),
        "accepted": sum(n for (_, answer), n in answers.items() if answer == YES),
        "refused": sum(n for (_, answer), n in answers.items() if answer == NO),
        "seconds": round(took_s), "slurmctld_same": same, "slurmctld_mib": [round(before_mib), round(after_mib)],
        "acts": dict(collections.Counter(soak.acts.values())),
        "lost": soak.lost,
        "filter_errors": len(re.findall("slurm-pal: ", log)), "other_answers": len(soak.odd), "odd": soak.odd[:10],
        "by_kind": {kind: [answers[kind, YES], answers[kind, NO]] for kind in KINDS},
    }  # fmt: skip
    print(json.dumps(result) if args.json else "\n".join(f"{key}: {value}" for key, value in result.items()))
    sys.exit(not same or bool(soak.odd))


if __name__ == "__main__":
    main()
