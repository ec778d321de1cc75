# SPDX-License-Identifier: MIT
"""How much later than by plain sbatch a job starts by palsub, and by the submit filter: the same random requests
to three labs in the same state.

    python tests/bench/twin_starts.py [--requests 2000] [--seed 1] [--json]

The labs have nodes with SMT, weights, GPU types and reservations, partitions with DefMemPerCPU, DefMemPerGPU and
MaxCPUsPerNode (tests/fuzz/odd_lab.py), and are half full: the same jobs hold the same GPUs in each, drawn anew after
every `ANEW` requests. A request is submitted to all three at once; its delay is from the end of the submitting command
to the start of its script, against that of plain sbatch. Where a job starts in one lab only, the others are waited for,
`WAIT_S` at most; where it starts nowhere within `NOWHERE_S`, it is cancelled everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

from odd_lab import NODES, OddLab, odd_lab
from verdicts import Request, requests

from slurm_pal.lab.demo import program
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore

ANEW = 50
WAIT_S, NOWHERE_S, PASS_S = 150.0, 2.5, 3.0
LABS = ("sbatch", "palsub", "filter")


class Found(NamedTuple):
    """One request in one lab."""

    code: int  # of the submitting command
    delay_s: float | None  # from the end of the command to the start of the script; None: it did not start in time
    lease_s: float  # that was promised, 0.0 for none


class Twin:
    """One live lab and how jobs are submitted to it."""

    def __init__(self, name: str, odd: OddLab, folder: Path) -> None:
        self.name, self.odd, self.folder = name, odd, folder
        folder.mkdir()
        self._programs = {"palsub": (program("palsub"), "--pal-watch")}
        odd.env["XDG_STATE_HOME"] = str(folder / "state")

    def submit(self, number: int, request: Request) -> tuple[int, float, str]:
        """Exit code, when the command ended (Unix s), and the job's id."""
        note = self.folder / str(number)
        script = f"date +%s.%N > {note}.part; mv {note}.part {note}"
        argv = (*self._programs.get(self.name, ("sbatch",)), "--parsable", "-o", "/dev/null", *request.words)
        done = self.odd.run(*argv, "--wrap", script)
        return done.returncode, time.time(), done.stdout.strip().partition(";")[0]

    def started_s(self, number: int) -> float | None:
        """When the script of this request began, Unix s."""
        try:
            return float((self.folder / str(number)).read_text())
        except FileNotFoundError:
            return None

    def lease_s(self, job: str) -> float:
        """What the marks on the job promise."""
        found = self.odd.run("scontrol", "show", "job", job).stdout
        seconds = [word.partition(";")[0] for word in found.split("pal:lease=")[1:]]
        return max((float(text) for text in seconds if text.isdigit()), default=0.0)

    def fill(self, rng: random.Random) -> None:
        """Jobs on half of the GPUs, the same for the same numbers; any others are gone."""
        self.odd.cancel_all()
        for names, _, memory_mib, gpus, *_ in NODES:
            for node in _expanded(names):
                used = rng.choice((0, 0, gpus // 2, gpus // 2, gpus - 1, gpus))
                if used and node != "n5":  # which is drained
                    words = (f"-w{node}", f"--gres=gpu:{used}", f"-n{used}", f"--mem={memory_mib * used // (2 * gpus)}")
                    partition = "typed" if node in ("n9", "n10", "n11") else "main"
                    self.odd.run(
                        "sbatch", "-o", "/dev/null", f"-p{partition}", *words, "--wrap", "sleep 3600", SLURM_PAL_OFF="1"
                    )
        time.sleep(2.0)


def _expanded(names: str) -> list[str]:
    first, _, last = names.strip("n[]").partition("-")
    return [f"n{k}" for k in range(int(first), int(last or first) + 1)]


def publish(odd: OddLab, seed: int) -> None:
    """Scores of all GPUs: a tenth are slow."""
    rng = random.Random(seed)
    rows = []
    for names, _, _, gpus, *_ in NODES:
        for node in _expanded(names):
            for k in range(gpus):
                a = rng.uniform(1.1, 1.5) if rng.random() < 0.1 else rng.uniform(0.97, 1.03)
                factors = {"A": a, "B": 1 + (a - 1) / 3, "C": 1.0}
                rows.append(GpuScore(node, k, f"{node}-{k}", "m", factors, {"A": "v0"}, time.time(), 1.0, ()))
    snapshot.publish(odd.config.snapshot_path, rows, cluster="palab", epoch=1, now_s=time.time())


def one(twins: list[Twin], number: int, request: Request, pool: ThreadPoolExecutor) -> dict[str, Found]:
    """Submit one request everywhere and see when it starts."""
    made = dict(zip(LABS, pool.map(lambda twin: twin.submit(number, request), twins), strict=True))
    ends_s = {name: end_s for name, (_, end_s, _) in made.items()}
    taken = [twin for twin in twins if made[twin.name][0] == 0]
    leases = {twin.name: twin.lease_s(made[twin.name][2]) for twin in taken if twin.name != "sbatch"}
    starts: dict[str, float] = {}
    began_s = time.monotonic()
    while len(starts) < len(taken):
        starts |= {t.name: s for t in taken if t.name not in starts and (s := t.started_s(number)) is not None}
        if time.monotonic() - began_s > (WAIT_S if starts else NOWHERE_S):
            break
        time.sleep(0.02)
    for twin in taken:
        if twin.name not in starts:
            twin.odd.run("scancel", made[twin.name][2])
    return {
        name: Found(
            made[name][0], max(0.0, starts[name] - ends_s[name]) if name in starts else None, leases.get(name, 0.0)
        )
        for name in LABS
    }


def late(found: dict[str, Found]) -> bool:
    """Whether one of ours had another verdict, or began later than plain sbatch's by more than a pass and its lease."""
    plain = found["sbatch"]
    ours = [found[name] for name in LABS[1:]]
    return any((one.code == 0) != (plain.code == 0) or beyond(plain, one) for one in ours)


def beyond(plain: Found, ours: Found) -> bool:
    """Whether a job of ours began later than by plain sbatch by more than a scheduling pass and its lease."""
    if plain.delay_s is None or ours.code:
        return False
    waited_s = WAIT_S if ours.delay_s is None else ours.delay_s
    return waited_s - plain.delay_s > PASS_S + ours.lease_s


def plain_request(request: Request) -> bool:
    """Whether the request is a batch job that starts at once if it can: no array, hold, date or dependency."""
    never = ("--array", "-H", "--begin", "-dsingleton", "--reservation=later", "-O", "--oversubscribe")
    return request.command == "sbatch" and not any(word.startswith(never) for word in request.words)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no request after this time")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    rows: list[tuple[Request, dict[str, Found]]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pal")))
        pool = stack.enter_context(ThreadPoolExecutor(len(LABS)))
        twins = [Twin(name, stack.enter_context(odd_lab(name == "filter", live=True)), folder / name) for name in LABS]
        for twin in twins:
            publish(twin.odd, asked.seed)
        publisher = subprocess.Popen(
            (program("pal"), "publish-table", "--every", "1"), env=twins[2].odd.env, cwd="/",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(publisher.wait)
        stack.callback(publisher.terminate)
        began_s = time.monotonic()
        while len(rows) < asked.requests and time.monotonic() - began_s < asked.seconds:
            if len(rows) % ANEW == 0:
                state = rng.getrandbits(32)
                list(pool.map(Twin.fill, twins, [random.Random(state) for _ in twins]))
            request = next(filter(plain_request, requests(rng, 20)))
            found = one(twins, len(rows), request, pool)
            rows.append((request, found))
            if late(found):
                print(f"{len(rows) - 1}, {state}: {' '.join(request.words)}: {found}", file=sys.stderr, flush=True)
            if not asked.json and len(rows) % ANEW == 0:
                print(f"{len(rows)} requests, {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    report(rows, asked.json)
    return 0


def report(rows: list[tuple[Request, dict[str, Found]]], as_json: bool) -> None:
    """Delays over plain sbatch, and the requests that were later or had another verdict."""
    sums = {}
    for name in LABS[1:]:
        pairs = [(request, found["sbatch"], found[name]) for request, found in rows]
        both = [(r, a, b) for r, a, b in pairs if a.delay_s is not None and b.delay_s is not None]
        later = [b.delay_s - a.delay_s for _, a, b in both if a.delay_s is not None and b.delay_s is not None]
        too_late = [(r, b) for r, a, b in pairs if beyond(a, b)]
        verdicts = [(r, a, b) for r, a, b in pairs if (a.code == 0) != (b.code == 0)]
        sums[name] = {
            "pairs_started": len(both),
            "mean_s": round(statistics.fmean(later), 3) if later else None,
            "median_s": round(statistics.median(later), 3) if later else None,
            "most_s": round(max(later), 2) if later else None,
            "later_than_pass": sum(s > PASS_S for s in later),
            "kept_waiting": sum(a.delay_s is not None and b.code == 0 and b.delay_s is None for _, a, b in pairs),
            "beyond_pass_and_lease": [" ".join(r.words) + f" ({b.delay_s}, lease {b.lease_s:g})" for r, b in too_late],
            "only_ours_started": sum(a.delay_s is None and b.delay_s is not None for _, a, b in pairs),
            "verdicts_differ": [" ".join(r.words) + f" ({a.code}, {b.code})" for r, a, b in verdicts],
        }
    started = sum(found["sbatch"].delay_s is not None for _, found in rows)
    refused = sum(found["sbatch"].code != 0 for _, found in rows)
    if as_json:
        print(json.dumps({"schema": "pal.bench.delay/1", "requests": len(rows), "started": started, "refused": refused,
                          "labs": sums}))  # fmt: skip
        return
    print(f"{len(rows)} requests; plain sbatch: {started} started, {refused} refused")
    for name, found in sums.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items() if not isinstance(value, list)))
        for key in ("beyond_pass_and_lease", "verdicts_differ"):
            lines = found[key]
            assert isinstance(lines, list)
            print(f"  {key}: {len(lines)}")
            for line in lines[:40]:
                print(f"    {line}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no lab may stay
    os.umask(0o022)
    sys.exit(main())
