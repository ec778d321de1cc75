# SPDX-License-Identifier: MIT
"""Fuzzes the SPANK plug-in: spank/tests/fuzz.c with the address and undefined-behaviour sanitizers.

The program has its own random numbers. Inputs come in rounds, round I of seed S with the seed S + I; `--first` counts
rounds, and a violation prints the command line that runs its round again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from common import arguments, finish

SPANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "spank")
ROUND = 50_000
"""Inputs of one run of the program."""


def main(given_words: list[str] | None = None) -> int:
    given = arguments("plugin", given_words)
    with tempfile.TemporaryDirectory() as build:
        program = os.path.join(build, "tests", "sanitized")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        argv = ["make", "--silent", "-C", SPANK, f"BUILD={build}", program]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"plugin: the plug-in cannot be built: {done.stderr[-500:]}", file=sys.stderr)
            return finish("plugin", 0, 0.0, 1, seed=given.seed)
        began_s, inputs, violations, number = time.monotonic(), 0, 0, given.first
        while time.monotonic() - began_s < given.seconds if given.inputs is None else inputs < given.inputs:
            size = ROUND if given.inputs is None else min(ROUND, given.inputs - inputs)
            violations += _round(program, size, given.seed + number)
            inputs, number = inputs + size, number + 1
        return finish("plugin", inputs, time.monotonic() - began_s, violations, seed=given.seed)


def _round(program: str, size: int, seed: int) -> int:
    """Run so many inputs; 1 where something did not hold, shown on stderr."""
    done = subprocess.run(
        [program, str(size), str(seed)], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode == 0:
        return 0
    print(f"plugin: {size} inputs of seed {seed} ended with {done.returncode}; the first lines:", file=sys.stderr)
    print("\n".join(done.stderr.splitlines()[:30]), file=sys.stderr)
    print(
        f"plugin: again: make -C spank build/tests/sanitized && spank/build/tests/sanitized {size} {seed}",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
