# SPDX-License-Identifier: MIT
"""What slurmctld of a lab runs to wake its cloud nodes and to power them down: their slurmds start and end.

    ResumeProgram=DIR/etc/resume    ->  python -m slurm_pal.lab.power resume DIR n[2-3]

No node is woken while a lab starts or ends: `down` would miss a slurmd that starts after it has looked.
"""

from __future__ import annotations

import os
import shlex
import sys
import time

from slurm_pal.base import hostlist
from slurm_pal.base.errors import PalError, SlurmError
from slurm_pal.base.numbers import digits
from slurm_pal.lab import processes
from slurm_pal.lab.crew import Crew
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.programs import find_programs

RESUME, SUSPEND = "resume", "suspend"
_TERM_S = 3.0


def program_text(directory: LabDirectory, verb: str) -> str:
    """The program that slurmctld starts, with a host list as its argument."""
    words = shlex.join([sys.executable, "-P", "-m", "slurm_pal.lab.power", verb, directory.path])
    return f'#!/bin/sh\nexec {words} "$@"\n'


def slurmd_argv(slurmd: str, node: str, conf: str) -> list[str]:
    """slurmd(8) of one node, in the foreground."""
    return [slurmd, "-D", "-N", node, "-f", conf]


def resume(directory: LabDirectory, nodes: list[str]) -> None:
    """Start the slurmds of these nodes, in the next second. Raises PalError.

    slurmctld waits for a boot that is not before its order, in whole seconds, and slurmd may place its boot up to a
    second too early: one that starts within the order's second is sometimes waited for in vain.
    """
    time.sleep(1.0 - time.time() % 1.0)
    slurmd = find_programs()["slurmd"]
    with directory.claimed():
        if not directory.is_lab():
            raise SlurmError(f"there is no lab in {directory} any more")
        crew = Crew(directory)
        for node in nodes:
            # -b: else the boot would be this machine's.
            crew.spawn(f"slurmd-{node}", [*slurmd_argv(slurmd, node, directory.conf), "-b"])


def suspend(directory: LabDirectory, nodes: list[str], ordered_ticks: int | None = None) -> None:
    """End the slurmds of these nodes, as their pid files name them. Raises SlurmError.

    Not those that were started after the order (`ordered_ticks`: clock ticks after boot; None: now). Slurm waits for
    SuspendTimeout only, and may have the node woken again before this program runs: the slurmd of that boot has
    taken the place of the old one.
    """
    ours = {
        process.pid: process
        for process in processes.find_daemons(directory)
        if process.name == "slurmd" and (ordered_ticks is None or process.start < ordered_ticks)
    }
    ending = [ours[pid] for node in nodes if (pid := _pid(directory, node)) in ours]
    if left := processes.stop(ending, _TERM_S, lambda: None):
        raise SlurmError(f"slurmd with pid {left[0].pid} did not end")


def _pid(directory: LabDirectory, node: str) -> int | None:
    try:
        with open(directory("run", f"slurmd-{node}.pid"), encoding="ascii") as stream:
            return digits(stream.read().strip())
    except (OSError, UnicodeDecodeError):
        return None


def main(argv: list[str]) -> int:
    verb, path, nodes = argv
    try:
        names = list(hostlist.expand(nodes))
        if verb == SUSPEND:  # slurmctld has started this process with the order
            suspend(LabDirectory(path), names, processes.start_ticks(os.getpid()))
        else:
            resume(LabDirectory(path), names)
    except (PalError, OSError) as error:
        print(f"{verb} {nodes}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
