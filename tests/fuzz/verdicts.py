# SPDX-License-Identifier: MIT
"""The same random requests to a slurmctld with the filter and to one without: the verdicts must be the same.

    python tests/fuzz/verdicts.py --seconds 600 --seed 1 [--inputs 10000]

Submitted for real by sbatch, and some by srun and salloc; the verdict is the exit code and Slurm's message.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from odd_lab import OddLab, odd_lab

CHUNK = 60
CLIENTS = 3
INTERACTIVE_SHARE = 0.03


class Request(NamedTuple):
    """One submission: the command and its options."""

    command: str  # sbatch | srun | salloc
    words: tuple[str, ...]


def requests(rng: random.Random, count: int) -> list[Request]:
    """Random submissions, most of which Slurm could take."""
    return [_request(rng) for _ in range(count)]


def _request(rng: random.Random) -> Request:
    def maybe(share: float, *choices: str) -> list[str]:
        return [rng.choice(choices)] if rng.random() < share else []

    command = rng.choice(("srun", "salloc")) if rng.random() < INTERACTIVE_SHARE else "sbatch"
    gpus = rng.choice((1, 1, 1, 2, 2, 3, 4, 4, 8, 9))
    kind = rng.choice(("", "", "", "", "", "h100:", "v100:"))
    forms = (f"--gres=gpu:{kind}{gpus}", f"--gpus-per-node={kind}{gpus}", f"--gpus={kind}{gpus}", "--gres=gpu")
    words = maybe(0.97, *forms)
    if rng.random() < 0.05:
        words = [f"--gpus-per-task={gpus}", "-n", str(rng.choice((1, 1, 2)))]
    words += maybe(0.5, *(f"-p{name}" for name in (
        "main", "few", "few", "rates", "rates", "limits", "limits", "typed", "typed", "alone", "gpu", "closed", "off",
        "main,few", "none", "alike", "alike", "alike",
    )))  # fmt: skip
    words += maybe(0.35, "-N1", "-N1", "-N1", "-N2", "-N2", "-N3", "-N1-2", "-N2-4", "-N9")
    words += maybe(0.2, "-n1", "-n2", "-n4", "-n16", "-n17", "-n33")
    words += maybe(0.15, "--ntasks-per-node=1", "--ntasks-per-node=2", "--ntasks-per-node=16", "--ntasks-per-node=17")
    words += maybe(0.2, "-c1", "-c3", "-c8", "-c9", "-c16", "-c17", "-c32")
    words += maybe(0.1, "--mincpus=4", "--mincpus=12", "--mincpus=20")
    words += maybe(0.1, "--cpus-per-gpu=1", "--cpus-per-gpu=5", "--cpus-per-gpu=16")
    words += maybe(0.25, "--mem=0", "--mem=10G", "--mem=31G", "--mem=40G", "--mem=65000", "--mem=120G", "--mem=200G",
                   "--mem-per-cpu=1G", "--mem-per-cpu=5000", "--mem-per-cpu=40G", "--mem-per-gpu=9G",
                   "--mem-per-gpu=40G")  # fmt: skip
    words += maybe(0.08, "--exclusive", "--exclusive", "--exclusive=user", "--oversubscribe")
    words += maybe(0.3, *(f"--exclude={text}" for text in (_hosts(rng), _hosts(rng), "n[0-5,7]", "n[0-5,7-8]", "n99")))
    words += maybe(0.25, *(f"-C{text}" for text in (
        "a", "b", "ib", "special", "small", "smt", "c", "a&ib", "a|b", "special|smt", "b&ib", "none", "a&b", "[a|b]",
        "(a|b)&ib", "special*1", "a*2",
    )))  # fmt: skip
    rare = [
        "-wn6", "-wn0", "--tmp=50", "--tmp=500", "--tmp=5000", "--cores-per-socket=9", "--sockets-per-node=2",
        "--threads-per-core=2", "--threads-per-core=1", "--hint=nomultithread", "--ntasks-per-core=1",
        "--ntasks-per-socket=1", "--gres-flags=enforce-binding", "-B2:8:2", "--contiguous", "--switches=1",
        "--use-min-nodes", "--spread-job", "-O", "--prefer=a", "--prefer=none", "-Llic:1", "-Llic:9", "-t20", "-t40",
        "-t3-0", "--time-min=5", "--reservation=now", "--reservation=later", "--reservation=none", "-H",
        "--begin=now+1hour", "--core-spec=2", "--no-kill", "--nice=5", "--requeue", "--gpu-bind=single:1",
        "--comment=pal:job=A;from=x", "--comment=mine", "-dsingleton", "--mem-bind=local", "--qos=none", "-Anone",
        "--gpus-per-socket=1", "--ntasks-per-gpu=1",
    ]  # fmt: skip
    words += maybe(0.25, *rare)
    words += maybe(0.05, *rare)
    if command == "sbatch":
        words += maybe(0.05, "--array=1-3", "--array=0")
    return Request(command, tuple(words))


def _hosts(rng: random.Random) -> str:
    return ",".join(f"n{i}" for i in sorted(rng.sample(range(12), rng.choice((1, 2, 4, 7, 9)))))


_NUMBERS = re.compile(r"\b[Jj]ob (?:allocation )?\d+|job=\d+")


def verdict(lab: OddLab, request: Request) -> str:
    """What Slurm answers: the exit code of sbatch and its words, without the job's number."""
    if request.command == "sbatch":
        done = lab.run("sbatch", "-o", "/dev/null", *request.words, "--wrap", "true")
        return _NUMBERS.sub("job #", f"{done.returncode} {done.stdout}{done.stderr}")
    return _interactive(lab, request)


def _interactive(lab: OddLab, request: Request) -> str:
    """The verdict on an srun or salloc, which would wait for its resources: it is told to end once it does."""
    process = subprocess.Popen(
        [request.command, *request.words, "true"], env=lab.env, cwd="/", stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    said = ""
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            said += line
            if "queued and waiting" in line:
                process.send_signal(signal.SIGINT)
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        if process.returncode is None:
            process.kill()
    if "queued and waiting" in said:
        return "waits"
    lines = sorted(line for line in said.splitlines() if "has been revoked" not in line)
    return _NUMBERS.sub("job #", f"{process.returncode} {lines}")


class Outcome(NamedTuple):
    """What one run found."""

    inputs: int
    differences: tuple[tuple[Request, str, str], ...]  # with the filter, without it
    accepted: int
    acts: dict[str, int]  # what the filter did, and why -> how often
    longest_ms: float  # of the filter's own time


def compare(seconds: float, seed: int, most: int, report: bool = False, client: bool = False) -> Outcome:
    """Submit to both labs for so long, or so many. With `client` the filter is that of the clients."""
    rng = random.Random(seed)
    differences: list[tuple[Request, str, str]] = []
    inputs = accepted = 0
    with odd_lab(True, client) as ours, odd_lab(False) as plain, ThreadPoolExecutor(2 * CLIENTS) as pool:
        began_s = time.monotonic()
        while inputs < most and time.monotonic() - began_s < seconds:
            ours.publish(rng)
            chunk = requests(rng, min(CHUNK, most - inputs))
            pairs = [(pool.submit(verdict, ours, one), pool.submit(verdict, plain, one)) for one in chunk]
            for request, (with_filter, without) in zip(chunk, pairs, strict=True):
                found, expected = with_filter.result(), without.result()
                accepted += expected.startswith(("0 ", "waits"))
                if found != expected:
                    differences.append((request, found, expected))
                    if report:
                        print(
                            f"{request.command} {' '.join(request.words)}\n  filter: {found!r}\n  plain:  {expected!r}"
                        )
            inputs += len(chunk)
            if inputs % 600 < CHUNK:
                for lab in (ours, plain):
                    lab.cancel_all()
        acts = Counter(f"{one.act} {one.why}" for one in ours.acts())
        longest_ms = max((one.ms for one in ours.acts()), default=0.0)
        return Outcome(inputs, tuple(differences), accepted, dict(acts), longest_ms)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=sys.maxsize)
    parser.add_argument("--client", action="store_true", help="the filter of sbatch, srun and salloc instead")
    asked = parser.parse_args()
    began_s = time.monotonic()
    found = compare(asked.seconds, asked.seed, asked.inputs, report=True, client=asked.client)
    errors = sum(count for act, count in found.acts.items() if act.startswith("ERROR"))
    violations = len(found.differences) + errors
    said = {
        "fuzzer": "verdicts", "inputs": found.inputs, "violations": violations,
        "seconds": round(time.monotonic() - began_s, 1), "accepted": found.accepted, "acts": found.acts,
        "longest_ms": round(found.longest_ms, 3),
    }  # fmt: skip
    print(json.dumps(said))
    return 1 if violations else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a lab must not stay
    sys.exit(main())
