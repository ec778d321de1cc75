# SPDX-License-Identifier: MIT
"""Hostile submissions to the filter, with a clock: how long it takes, and how others are slowed.

    python tests/fuzz/filter_clock.py --seconds 600 --seed 1

A third of the time outside Slurm (tests/lua/clock.lua): instructions and bytes, which are bounded, and milliseconds.
Then four clients submit to a slurmctld without the filter, and to one with it, while another runs sinfo. Failures:
a bound exceeded, an error of the filter, a slurmctld that does not answer or was replaced. Times are only reported.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from odd_lab import OddLab, odd_lab

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.config import Config
from slurm_pal.decide.case import Settings
from slurm_pal.filter.source import text_of
from slurm_pal.lab.conf import node_names
from slurm_pal.publisher.standing import standing
from slurm_pal.publisher.table import records
from slurm_pal.slurm.client import Overview
from slurm_pal.store import snapshot
from slurm_pal.store.lua_table import Header, encode
from slurm_pal.store.snapshot import GpuScore

CLOCK = Path(__file__).parents[1] / "lua" / "clock.lua"
MOST = {"instructions": 250_000, "looked": 400_000, "patterned": 16_384}
"""Instructions of Lua; bytes that functions of its string library looked at or made; bytes before one that repeats."""
NODES = 1000
CLIENTS = 4
LONGEST_WORD = 131_000  # bytes of one word of a command line, by execve(2)
MOST_SCRIPT = 4_190_000  # slurm.conf(5), max_script_size


def table(seed: int) -> bytes:
    """A table of NODES nodes with made-up scores, a third of the GPUs in use, and labels of user 0."""
    rng = random.Random(seed)
    names = node_names(NODES)
    features = frozenset({"ib"})
    nodes = tuple(
        Node(name, frozenset({"MIXED"}), ("",) * 8, used, 64, used, 512000, used, features, ("gpu",))
        for name in names
        for used in [rng.choice((0, 0, 4, 8))]
    )
    scores = [
        GpuScore(name, k, f"{name}-{k}", "m", dict.fromkeys("ABC", rng.gauss(1.0, 0.02)), {}, 0.0, 1.0, ())
        for name in names
        for k in range(8)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/snapshot"
        snapshot.publish(path, scores, cluster="fuzz", epoch=1, now_s=0.0)
        known = snapshot.read(path)
    overview = Overview(nodes, (), (Partition("gpu", True, True, names),), {})
    labels = {"label.0": " ".join(f"n{rng.getrandbits(64):016x}=A:0.900" for _ in range(100))}
    body = records(standing(overview, known, Settings()), Config(), 1) | labels
    return encode(Header(1, int(time.time()), 86400.0, "daemon"), body)


def alone(mode: str, seed: int, count: int, seconds: float, code: str = "") -> dict[str, str]:
    """One run of clock.lua, of the pal.lua at the path `code` or of ours; what it prints.

    Raises RuntimeError where the filter fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        lua = Path(folder) / "pal.lua"
        lua.write_bytes(Path(code).read_bytes() if code else text_of("pal.lua").encode())
        (Path(folder) / "pal_table.lua").write_bytes(table(seed))
        words = (str(lua), str(NODES), mode, str(seed), str(count), str(max(1, int(seconds))))
        done = subprocess.run(
            ["lua5.1", str(CLOCK), *words], capture_output=True, text=True, errors="replace", check=False
        )
    if done.returncode:
        raise RuntimeError(f"the filter failed: {done.stderr[-2000:]}")
    return dict(line.split("\t", 1) for line in done.stdout.splitlines())


def over(found: dict[str, str]) -> list[str]:
    """The bounds that were broken, one line each."""
    return [
        f"{found[f'most_{what}']} {what}, {most} are allowed: {found.get(f'over_{what}')}"
        for what, most in MOST.items()
        if float(found[f"most_{what}"]) > most
    ]


PIECES = (
    "a", "a=", "#", "\n", "#\n", " ", " \n", "#PAL a", "#PAL a=b\n", "a=b ", " checkpoint=", "n[1-60000]", "n[1-10000]",
    "n[1-9][1-9][1-9]", "[", "]", ",", "n1,", "0", "%", "a&", "a|b&", "|", ":", "gres:gpu:", "pal:job=A;", "pal:lease=",
    "x\n", "1-", "\\", '"', "\u00ff", "srun ./a.out --with some=words\n",
)  # fmt: skip
HOSTS = ("n1,", "n[0-11],", "n[1-9],", "n[1,", "[", "]", ",", "0", "x,", "a")
"""In lists of nodes, most of which exist: slurmctld 22.05 looks up, and logs, every name of a list. Without any filter
--exclude=n[1-60000] takes it 1.5 s, ten of them some minutes; two ranges of 10,000 in one name end it."""
GPUS = ("gres", "gpus", "gpus-per-task")
"""Of 65,000 bytes in these slurmctld thinks for 0.9 s by itself."""
OPTIONS = (
    "exclude", "constraint", "comment", "job-name", "partition", "gres", "gpus", "gpus-per-task", "dependency", "array",
    "reservation", "prefer", "licenses", "nodelist", "export", "account", "wckey",
)  # fmt: skip
LENGTHS = (10, 1000, 1024, 4096, 4097, 16384, 65536, LONGEST_WORD)


def hostile(rng: random.Random) -> tuple[list[str], str]:
    """(sbatch's options, the script) of one submission."""

    def text(most: int, pieces: tuple[str, ...] = PIECES) -> str:
        piece = rng.choice(pieces) + (rng.choice(pieces) if rng.random() < 0.25 else "")
        wanted = min(most, rng.choice(LENGTHS))
        return (piece * (wanted // len(piece.encode()) + 1)).encode()[:wanted].decode(errors="ignore")

    words = [f"--gres=gpu:{rng.choice((1, 2, 4))}", f"-p{rng.choice(('main', 'few', 'typed', 'gpu'))}"]
    for _ in range(rng.choice((0, 1, 1, 2))):
        option = rng.choice(OPTIONS)
        pieces = HOSTS if option in ("exclude", "nodelist") else PIECES
        words.append(f"--{option}={text(4096 if option in GPUS else LONGEST_WORD - 40, pieces)}")
    script = "#!/bin/sh\n#PAL class=A\n"
    if rng.random() < 0.5:
        kind = rng.choice(PIECES)
        script += rng.choice(("", "#PAL ", "#")) + kind * (
            rng.choice((1000, 16000, 65536, MOST_SCRIPT)) // len(kind.encode())
        )
    return words, script[:MOST_SCRIPT]


class Load:
    """Clients that submit, and one that asks for sinfo, until told to stop."""

    def __init__(self, lab: OddLab, seed: int) -> None:
        self._lab, self._seed, self._stop = lab, seed, threading.Event()
        self.submitted = 0
        self.sinfo_ms: list[float] = []
        self.failed: list[str] = []

    def run(self, seconds: float) -> None:
        threads = [threading.Thread(target=self._client, args=(k,)) for k in range(CLIENTS)]
        threads.append(threading.Thread(target=self._other))
        for thread in threads:
            thread.start()
        self._stop.wait(seconds)
        self._stop.set()
        for thread in threads:
            thread.join()
        self._lab.cancel_all()

    def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        while not self._stop.is_set():
            words, script = hostile(rng)
            try:
                with tempfile.NamedTemporaryFile("w", encoding="utf-8") as stream:
                    stream.write(script)
                    stream.flush()
                    self._lab.run("sbatch", "-Q", "-o", "/dev/null", *words, stream.name, timeout_s=120.0)
            except OSError:  # a word that no command line can hold
                continue
            self.submitted += 1

    def _other(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            done = self._lab.run("sinfo", "-h")
            self.sinfo_ms.append((time.monotonic() - began_s) * 1000)
            if done.returncode or "timed out" in done.stderr:
                self.failed.append(f"sinfo: {done.stderr.strip()}")
            time.sleep(0.02)


def among_others(seconds: float, seed: int) -> tuple[dict[str, object], list[str]]:
    """Half of the time without the filter and half with it: figures, and what went wrong."""
    figures: dict[str, object] = {}
    wrong: list[str] = []
    for filtered in (False, True):
        with odd_lab(filtered) as lab:
            if filtered:
                lab.publish(random.Random(seed))
            before = {p.pid for p in lab.lab._living()}
            idle_ms = [_sinfo_ms(lab) for _ in range(10)]
            load = Load(lab, seed)
            load.run(seconds / 2)
            wrong += load.failed
            if {p.pid for p in lab.lab._living()} != before:
                wrong.append("a daemon has ended")
            name = "sinfo_ms" if filtered else "sinfo_without_filter_ms"
            figures[name] = {"idle": round(median(idle_ms), 1), **_spread(load.sinfo_ms), "asked": len(load.sinfo_ms)}
            acts = lab.acts()
            if filtered:
                wrong += [f"{one.act} {one.why}" for one in acts if one.act == "ERROR"]
                figures["inputs_in_slurmctld"] = len(acts)
                figures["in_slurmctld_ms"] = _spread([one.ms for one in acts])
                figures["less_copy_ms"] = _spread([max(0.0, one.ms - one.copy_ms) for one in acts])
                figures["copy_ms"] = _spread([one.copy_ms for one in acts])
    return figures, wrong


def _spread(values: list[float]) -> dict[str, float]:
    found = sorted(values) or [0.0]
    return {
        "median": round(median(found), 3), "p99": round(found[int(len(found) * 0.99)], 3), "most": round(found[-1], 3),
    }  # fmt: skip


def _sinfo_ms(lab: OddLab) -> float:
    began_s = time.monotonic()
    lab.run("sinfo", "-h")
    return (time.monotonic() - began_s) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=10**9, help="outside Slurm, of each of three runs")
    parser.add_argument("--alone", action="store_true", help="no Slurm: only outside of it")
    parser.add_argument("--attacks", nargs="?", const="", metavar="PAL.LUA", help="only time known attacks, and end")
    asked = parser.parse_args()
    if asked.attacks is not None:
        print(*map(": ".join, alone("attacks", asked.seed, 0, 0.0, asked.attacks).items()), sep="\n")
        return 0
    began_s, share_s = time.monotonic(), asked.seconds / (3 if asked.alone else 9)
    wrong: list[str] = []
    inputs, most = 0, {}
    for mode in ("count", "bytes", "clock"):
        found = alone(mode, asked.seed, asked.inputs, share_s)
        inputs += int(found["inputs"])
        wrong += over(found)
        most |= {what: float(value) for what, value in found.items() if what.startswith("most_") and float(value)}
    said: dict[str, object] = {"fuzzer": "filter_clock"}
    if not asked.alone:
        figures, failed = among_others(asked.seconds * 2 / 3, asked.seed)
        inputs += int(str(figures["inputs_in_slurmctld"]))
        wrong += failed
        said |= figures
    for line in wrong[:20]:
        print(line)
    said |= {
        "inputs": inputs, "violations": len(wrong), "seconds": round(time.monotonic() - began_s, 1),
        "longest_ms": round(most["most_ms"], 3), "most_kib": round(most["most_kib"], 1),
        "most_instructions": most["most_instructions"], "most_bytes": most["most_looked"],
    }  # fmt: skip
    print(json.dumps(said))
    return 1 if wrong else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a lab must not stay
    sys.exit(main())
