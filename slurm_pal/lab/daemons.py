# SPDX-License-Identifier: MIT
"""Starting a lab's daemons, all slurmds at once, and waiting until every node is idle."""

from __future__ import annotations

import os
import time

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.files import write_atomic
from slurm_pal.base.numbers import digits
from slurm_pal.lab import accounting
from slurm_pal.lab.conf import LabSpec, config_files, node_names, power_programs
from slurm_pal.lab.crew import Crew, ask
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.ports import is_listening
from slurm_pal.lab.power import slurmd_argv
from slurm_pal.lab.processes import write_pids
from slurm_pal.slurm import releases

_MUNGE_WAIT_S = 10.0
_REST_UNCHECKED = {"SLURMRESTD_SECURITY": "disable_user_check"}
"""slurmrestd(8): it may run as SlurmUser or root, whose lab it is. It then hears no other user."""
_POLL_S = 0.05
POWERED_DOWN = "idle~"
NODE_STATES = ("-h", "-a", "-o", "%D %T")  # without the partition in it: each node counts once


def start(spec: LabSpec, programs: dict[str, str], crew: Crew, deadline_s: float) -> None:
    """Write the configuration, start everything and wait until all nodes are idle.

    `deadline_s` is on time.monotonic's scale. Raises PortTaken, or SlurmError if a daemon
    ends or time runs out; in both cases what was started keeps running.
    """
    d = spec.directory
    for name, text in config_files(spec).items():
        write_atomic(d("etc", name), text)
    for name, text in power_programs(spec).items():
        write_atomic(d("etc", name), text, 0o755)
    key = d("etc", "munge.key")
    write_atomic(key, os.urandom(128), 0o400)
    crew.spawn("munged", munged_argv(programs["munged"], d))
    if spec.accounting:
        accounting.make_database(spec, programs, deadline_s)
    _wait_for_munge(d, crew, min(deadline_s, time.monotonic() + _MUNGE_WAIT_S))
    if spec.accounting:
        accounting.start(spec, programs, crew, deadline_s)
    crew.spawn("slurmctld", [programs["slurmctld"], "-D", "-f", d.conf])
    write_pids(d.pids, crew.processes())
    # slurmds and clients that find nobody listening try again only after a second: wait for the port.
    while not is_listening(spec.port) and time.monotonic() < deadline_s:
        crew.check()
        time.sleep(0.01)
    for node in node_names(spec.nodes - spec.cloud):
        crew.spawn(f"slurmd-{node}", slurmd_argv(programs["slurmd"], node, d.conf))
    write_pids(d.pids, crew.processes())
    _wait_for_idle(spec, programs, crew, deadline_s)
    if spec.rest:
        crew.spawn("slurmrestd", slurmrestd_argv(programs["slurmrestd"], spec), _REST_UNCHECKED)
        write_pids(d.pids, crew.processes())
        _wait_for_rest(d, crew, deadline_s)


def slurmrestd_argv(slurmrestd: str, spec: LabSpec) -> list[str]:
    """slurmrestd(8) on a socket. Without slurmdbd its own choice of plug-ins is fatal."""
    plugin = "openapi/slurmctld" if releases.has(spec.version, "one REST plug-in") else "openapi/v0.0.38"
    d = spec.directory
    return [slurmrestd, "-f", d.conf, "-a", "rest_auth/local", "-s", plugin, f"unix:{d.rest_socket}"]


def _wait_for_rest(d: LabDirectory, crew: Crew, deadline_s: float) -> None:
    while not os.path.exists(d.rest_socket):
        crew.check()
        if time.monotonic() > deadline_s:
            raise SlurmError(f"slurmrestd made no socket in time; its log: {crew.log_end('slurmrestd')}")
        time.sleep(0.01)


def munged_argv(munged: str, d: LabDirectory) -> list[str]:
    """munged(8) with all its files in the lab's directory."""
    # --force: the directory may be below one that a group can write; that is the user's choice.
    names = {
        "--key-file": d("etc", "munge.key"),
        "--socket": d.munge_socket,
        "--pid-file": d("run", "munged.pid"),
        "--seed-file": d("run", "munged.seed"),
        "--log-file": d.log("munged"),
    }
    return [munged, "--foreground", "--force", *(word for pair in names.items() for word in pair)]


def _wait_for_munge(d: LabDirectory, crew: Crew, deadline_s: float) -> None:
    while not os.path.exists(d.munge_socket):
        crew.check()
        if time.monotonic() > deadline_s:
            raise SlurmError(f"munged made no socket in {_MUNGE_WAIT_S:g} s; its log: {crew.log_end('munged')}")
        time.sleep(0.01)


def _wait_for_idle(spec: LabSpec, programs: dict[str, str], crew: Crew, deadline_s: float) -> None:
    while True:
        crew.check()
        late = time.monotonic() > deadline_s
        answer = ask(spec.directory, [programs["sinfo"], *NODE_STATES])
        states = node_states(answer.text)
        if states.get("idle", 0) + states.get(POWERED_DOWN, 0) == spec.nodes:
            return
        if late:
            seen = ", ".join(f"{count} {state}" for state, count in states.items()) or answer.complaint
            raise SlurmError(
                f"not all {spec.nodes} nodes became idle in time ({seen}); "
                f"slurmctld's log: {crew.log_end('slurmctld')}; allow more with --wait-s, or use fewer --nodes"
            )
        time.sleep(_POLL_S)


def node_states(text: str) -> dict[str, int]:
    """State -> number of nodes, from what `sinfo NODE_STATES` prints."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        count, _, state = line.partition(" ")
        if (number := digits(count)) is not None:
            counts[state] = counts.get(state, 0) + number
    return counts
