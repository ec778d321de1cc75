# SPDX-License-Identifier: MIT
"""What all fuzzers share: hostile bytes, the loop over inputs, and the line of JSON at its end.

A fuzzer is a program: `python tests/fuzz/NAME.py [--seconds N | --inputs N] [--seed S] [--first I]`. Input number I
of seed S is always the same, so `--seed S --first I --inputs 1` runs again what a violation names.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

MOST_MIB = 200
"""A fuzzer that holds more memory than this has found something."""
STUCK_S = 20
"""An input that takes more CPU time than this is a violation. CPU time, so that a busy machine changes nothing."""
SHOWN = 20
"""Violations that are written down in full; all are counted."""

TOKENS: tuple[bytes, ...] = (
    b"\n", b"\r", b"\r\n", b"\0", b"\t", b" ", b"=", b":", b";", b",", b"|", b"&", b"!", b"^", b"%", b"#", b"\\", b'"',
    b"'", b"`", b"$", b"(", b")", b"[", b"]", b"[[", b"{", b"}", b"<", b"-", b"--", b".", b"/", b"../", b"*", b"?",
    b"+", b"~", b"@", b"0", b"-1", b"1e999", b"NaN", b"Infinity", b"0x10", b"007", b"4294967294",
    b"99999999999999999999", b"1" + b"0" * 400, "\u00b2".encode(), "\u0663".encode(), "\u2028".encode(),
    "\u202e".encode(), b"\x85", b"\x1b[2J", b"\xff\xfe", b"\xed\xa0\x80", b"(null)", b"None", b"N/A", b"@x';id>>F;'",
    b"@all", b"n[0-8000000]", b"n[1-", b"n[3-1]", b"n[1-4]<9 x>", b"\nJobId=900001 ", b" ArrayJobId=\xc2\xb2",
    b" MinMemoryCPU=.", b" JobState=RUNNING ", b"NodeList=", b"pal:lease=", b"pal:job=A;", b"pal:it=", b"pal:ack=",
    b"pal:ev=", b"#PAL ", b"#SBATCH ", b"--pal-class", b"gres/gpu:",
)  # fmt: skip
"""What has a meaning to somebody on the way: line ends, separators, numbers that are none, words of Slurm and ours."""
REPEATS = (2, 10, 300, 5000, 65_000)


class Part(NamedTuple):
    """One thing that is fuzzed: `make` an input from random numbers; `check` raises where something does not hold."""

    make: Callable[[random.Random], Any]
    check: Callable[[Any], None]
    inputs: int = 1  # that one call of `make` stands for


class StuckError(Exception):
    """The input took too much CPU time."""


def mutate(rng: random.Random, data: bytes, most_changes: int = 6, most_bytes: int = 1 << 20) -> bytes:
    """`data` with some changes: bytes flipped, removed, inserted, doubled, cut off, a token repeated very often.

    What a repeated token would make longer than `most_bytes` is repeated less often.
    """
    for _ in range(rng.randint(0, most_changes)):
        at = rng.randint(0, len(data))
        end = min(len(data), at + rng.choice((1, 1, 2, 5, 40)))
        kind = rng.randrange(10)
        if kind < 4:
            data = data[:at] + rng.choice(TOKENS) + data[at if kind < 2 else end :]
        elif kind == 4:
            data = data[:at] + data[end:]
        elif kind == 5:
            data = data[:at] + bytes([rng.randrange(256)]) + data[min(at + 1, len(data)) :]
        elif kind == 6:
            data = data[:end] + data[at:end] + data[end:]
        elif kind == 7:
            start = rng.randint(0, len(data))
            data = data[:at] + data[start : start + rng.randint(1, 60)] + data[at:]
        elif kind == 8 and rng.random() < 0.3:
            data = data[:at]
        elif kind == 9 and rng.random() < 0.1:
            token = rng.choice(TOKENS)
            data = data[:at] + token * min(rng.choice(REPEATS), most_bytes // len(token)) + data[at:]
    return data


def text(rng: random.Random, seeds: Sequence[str], most_changes: int = 6) -> str:
    """One of `seeds`, mutated, as Python gets such bytes from the system: undecodable ones as surrogates."""
    return os.fsdecode(mutate(rng, os.fsencode(rng.choice(seeds)), most_changes))


def word(rng: random.Random, seeds: Sequence[str], most_changes: int = 3) -> str:
    """As `text`, without NUL: what can stand in an argument or a variable."""
    return text(rng, seeds, most_changes).replace("\0", "")


def memory_mib() -> float:
    """The largest memory that this process has held, or one of the processes that it waited for, MiB.

    Of this one by its own account: what getrusage says of it counts the process that started it, too.
    """
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        own = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def arguments(name: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options that every fuzzer takes."""
    parser = argparse.ArgumentParser(name)
    parser.add_argument("--seconds", type=float, default=10.0, help="stop after so long (%(default)s)")
    parser.add_argument("--inputs", type=int, help="stop after so many inputs instead, however long they take")
    parser.add_argument("--seed", type=int, default=20261122, help="of all random numbers (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input (%(default)s)")
    return parser.parse_args(argv)


def finish(name: str, inputs: int, seconds: float, violations: int, **more: object) -> int:
    """Print the summary, the last line of stdout; the exit code."""
    counts = {"fuzzer": name, "inputs": inputs, "seconds": round(seconds, 1), "violations": violations}
    print(json.dumps({**counts, "memory_mib": round(memory_mib(), 1), **more}), flush=True)
    return int(violations > 0)


def run(name: str, parts: dict[str, Part], argv: Sequence[str] | None = None) -> int:
    """Put inputs through the parts in turn; the exit code. Every violation is shown once for each kind of it."""
    given = arguments(name, argv)
    found = _Violations(name, given.seed)
    names = list(parts)
    signal.signal(signal.SIGVTALRM, _stuck)
    began_s = time.monotonic()
    done, slowest_s, slowest = 0, 0.0, ""
    for number in itertools.count(given.first):
        enough = time.monotonic() - began_s >= given.seconds if given.inputs is None else done >= given.inputs
        if enough:
            break
        part = names[number % len(names)]
        made = parts[part].make(random.Random(f"{name} {given.seed} {number}"))
        at_s = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_S)
        try:
            parts[part].check(made)
        except Exception as error:
            found.add(part, number, made, error)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        taken_s = time.process_time() - at_s
        if taken_s > slowest_s:
            slowest_s, slowest = taken_s, f"{part} {number}"
        done += parts[part].inputs
    if memory_mib() > MOST_MIB:
        found.add("memory", number, "", MemoryError(f"{memory_mib():.0f} MiB were held, {MOST_MIB} are allowed"))
    seconds = time.monotonic() - began_s
    return finish(
        name, done, seconds, found.count, seed=given.seed, slowest_ms=round(1000 * slowest_s, 1), slowest=slowest
    )


def _stuck(number: int, frame: FrameType | None) -> None:
    raise StuckError(f"more than {STUCK_S} s of CPU time")


class _Violations:
    """Counts violations, and shows the first of each kind on stderr and in a file."""

    def __init__(self, name: str, seed: int) -> None:
        self._name, self._seed = name, seed
        self._kinds: set[tuple[str, str, str]] = set()
        self.count = 0

    def add(self, part: str, number: int, made: object, error: Exception) -> None:
        self.count += 1
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
        kind = (part, type(error).__name__, place)
        if kind in self._kinds or len(self._kinds) >= SHOWN:
            return
        self._kinds.add(kind)
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"pal-fuzz-{self._name}-{number}-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as stream:
            stream.write(f"{part}\n{made!r}\n\n{''.join(traceback.format_exception(error))}")
        again = f"--seed {self._seed} --first {number} --inputs 1"
        print(f"{self._name}: {part}: {type(error).__name__} at {place}: {str(error)[:300]!r}", file=sys.stderr)
        print(f"{self._name}: input {number} ({again}) is in {stream.name}: {made!r:.300}", file=sys.stderr, flush=True)
