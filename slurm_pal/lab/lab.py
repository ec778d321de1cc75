# SPDX-License-Identifier: MIT
"""A lab: one private, real Slurm (munged, slurmctld, N slurmds, perhaps more) in one directory.

    with Lab.up("/tmp/lab", nodes=8, gpus=4, seed=1) as lab:
        subprocess.run(["sinfo"], env=lab.environ())

Nothing is written outside the directory. Several labs may run side by side, each with
its own ports. slurmctld and slurmds listen on all addresses (Slurm offers no safe way
to bind them only to the loopback) but talk only to holders of the lab's munge key.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from slurm_pal.base.errors import BusyError, PalError, SlurmError, UsageError
from slurm_pal.emulation.gpus import (
    LOCALITY_PENALTY,
    EmuSwitch,
    Registry,
    draw_registry,
    load_registry,
    read_table,
    write_registry,
)
from slurm_pal.emulation.models import DEFAULT_MODEL
from slurm_pal.lab import daemons, filter, partition_file, processes
from slurm_pal.lab.conf import LabSpec, node_names
from slurm_pal.lab.crew import Crew, PortTaken, ask
from slurm_pal.lab.directory import MARKER, LabDirectory
from slurm_pal.lab.ports import free_blocks
from slurm_pal.lab.processes import Process
from slurm_pal.lab.programs import account_name, find_programs, slurm_version
from slurm_pal.slurm import releases
from slurm_pal.slurm.topology import BLOCK, Switch, Topology
from slurm_pal.slurm.topology import of_conf as topology_of

NODES_MAX, GPUS_MAX, PENALTY_MAX = 2000, 64, 100.0
_PORT_TRIES = 5
_QUEUE_WAIT_S = 10.0  # KillWait (2 s), the epilog messages, and some patience
_BROKEN_QUEUE_WAIT_S = 1.5  # the jobs of a dead slurmd never leave the queue
_ORDER = {
    "slurmrestd": 3.0, "slurmd": 3.0, "job": 1.0, "slurmctld": 3.0, "slurmdbd": 5.0, "mariadbd": 20.0, "munged": 3.0,
}  # fmt: skip
"""Kind of process -> how long it may take to end, s. A slurmctld whose slurmds died tries to reach them first;
mariadbd writes its tables."""
_SWEEPS = 10


class LabStatus(NamedTuple):
    """A lab as it is now."""

    directory: str
    state: str  # "up": all daemons live and slurmctld answers; "degraded"; "down"
    nodes: int
    gpus_per_node: int
    seed: int
    slurm: str  # release, like "22.05"
    port: int  # slurmctld's
    daemons: dict[str, int]  # munged, slurmctld, slurmd, what else it was started with -> how many live
    node_states: dict[str, int]
    jobs: dict[str, int]  # state -> number of jobs in the queue


class LabShutdown(NamedTuple):
    """What `down` did."""

    jobs_cancelled: int
    processes_ended: int
    leftovers: tuple[str, ...]  # files in the directory that are not the lab's; they stay
    removed: bool


class Lab:
    """One lab in one directory; `Lab(directory)` stands for it whether it runs or not."""

    def __init__(self, directory: str, crew: Crew | None = None) -> None:
        self.directory = LabDirectory(directory)
        self._crew = crew or Crew(self.directory)
        self.idle_after_s = 0.0  # how long `up` took until all nodes were idle
        self.without_plugin = ""  # why `up` with a submit filter built no SPANK plug-in

    @classmethod
    def up(
        cls,
        directory: str,
        *,
        nodes: int = 8,
        gpus: int = 4,
        seed: int = 1,
        gpu_table: str | None = None,
        model: str = DEFAULT_MODEL,
        cpus: int = 16,
        memory_mib: int = 64000,
        wait_s: float = 60.0,
        submit_filter: bool = False,
        partitions: str | None = None,
        topology: str | None = None,
        locality_penalties: Sequence[float] = (LOCALITY_PENALTY,),
        accounting: bool = False,
        cloud: int = 0,
        rest: bool = False,
        conf_edits: Sequence[tuple[str, str]] = (),
    ) -> Lab:
        """Start a lab of `nodes` nodes with `gpus` GPUs each and wait until all are idle.

        `submit_filter` installs the Lua filter in its slurmctld, and the SPANK plug-in if it
        can be built; otherwise `without_plugin` says why there is none. `partitions` is a file of
        partitions (see lab/partition_file.py); without one all nodes are in the partition gpu.
        `topology` is a topology.conf: switches (tree) or blocks of these nodes. `locality_penalties` are the
        factors by which work across nodes takes longer: on one leaf, below a switch of level 1, ...; the last goes on.
        `accounting` adds MariaDB and slurmdbd, accounts, QOS and fair share (see lab/accounting.py).
        `cloud` nodes, the last ones, are powered down until a job needs them (see lab/power.py).
        `rest` adds slurmrestd on a socket in the directory.
        `conf_edits` are pieces of slurm.conf, each with what stands there instead (see lab/conf.py).

        Raises MissingPackageError, UsageError, DataError (GPU table), BusyError (a lab runs
        there) or SlurmError; then nothing of the lab is left.
        """
        started = time.monotonic()
        _check_size(nodes, gpus, cpus, memory_mib)
        if not 0 <= cloud <= nodes:
            raise UsageError(f"--cloud {cloud} must be in 0..{nodes}, the number of nodes")
        if not 0 < wait_s <= 86400:
            raise UsageError(f"--wait-s {wait_s:g} must be a number of seconds up to a day")
        d = LabDirectory(directory)
        d.check_name()
        programs, user = find_programs(accounting, rest), account_name()
        version = slurm_version(programs["slurmctld"])
        if rest and releases.has(version, "slurmrestd refuses SlurmUser"):
            text = f"slurmrestd of Slurm {releases.text(version)} runs neither as root nor as SlurmUser, whose a lab is"
            raise UsageError(f"--rest: {text}; leave out --rest, or use Slurm 24.11 or older")
        names = node_names(nodes)
        chosen = partition_file.read(partitions, names, version, accounting) if partitions else None
        network, text = _network(topology, names, version) if topology else (Topology(), "")
        _check_penalties(locality_penalties)
        if gpu_table:
            registry = read_table(gpu_table, names, gpus, seed, model)
        else:
            registry = draw_registry(names, gpus, seed, model)
        registry.network = _emulated(network, names, locality_penalties)
        new = d.make()
        lab = cls(directory)
        with d.claimed():
            lab._refuse_remains()
            try:
                spec = LabSpec(
                    d,
                    nodes,
                    gpus,
                    cpus,
                    memory_mib,
                    user,
                    0,
                    version,
                    submit_filter,
                    accounting,
                    chosen,
                    (network.kind, text),
                    tuple(conf_edits),
                    cloud,
                    rest,
                )
                lab._bring_up(spec, registry, programs, started + wait_s)
                if submit_filter:
                    filter.first_table(d)
            except BaseException as error:
                lab._give_up(new, error)
                raise
        lab.idle_after_s = time.monotonic() - started
        return lab

    def _refuse_remains(self) -> None:
        d = self.directory
        if d.is_lab() and self._living():
            raise BusyError(f"a lab runs in {d}: use it (pal lab env), end it (pal lab down) or choose another --dir")
        if d.is_lab():
            raise UsageError(f"{d} holds the remains of a lab: remove them with pal lab down --dir {d}")

    def _bring_up(self, spec: LabSpec, registry: Registry, programs: dict[str, str], deadline_s: float) -> None:
        d, ports = self.directory, spec.nodes + (2 if spec.accounting else 1)
        for count, port in enumerate(free_blocks(ports, d.path)):
            if count == _PORT_TRIES:
                break
            facts = {"nodes": spec.nodes, "gpus": spec.gpus, "seed": registry.seed, "port": port, "uid": os.geteuid()}
            more = {"slurm": releases.text(spec.version), "accounting": spec.accounting}
            more |= {"cloud": spec.cloud, "rest": spec.rest}
            d.write_facts(facts | more)
            d.make_rooms(spec.gpus)
            write_registry(d.registry, registry)
            if spec.submit_filter:
                self.without_plugin = filter.install(d)
            try:
                daemons.start(spec._replace(port=port), programs, self._crew, deadline_s)
                return
            except PortTaken:
                self._end_processes()
                d.empty_rooms()
                self._crew = Crew(d)
        raise SlurmError(f"found no {ports} free ports in a row: use fewer --nodes, or end other labs")

    def _give_up(self, new: bool, error: BaseException) -> None:
        """After a failed start: end what was started and leave the directory as it was."""
        try:
            self._end_processes()
            others = self.directory.remove()
        except PalError as second:
            error.add_note(str(second))
            return
        if not new and not others:
            with contextlib.suppress(OSError):
                os.mkdir(self.directory.path)

    # -- using it ---------------------------------------------------------------------

    def variables(self) -> dict[str, str]:
        """Variables that point Slurm's commands and ours at this lab."""
        return {"SLURM_CONF": self.directory.conf, "SLURM_PAL_CONFIG": self.directory.pal_toml}

    def environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """`base` (default: this process's environment) with the variables of this lab."""
        environment = dict(os.environ if base is None else base)
        for name in ("SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SLURM_CONF_SERVER"):
            environment.pop(name, None)  # of another cluster
        return environment | self.variables()

    def registry(self) -> Registry:
        """The truth about the GPUs. Raises DataError."""
        return load_registry(self.directory.registry)

    def require(self) -> None:
        """Raises UsageError if there is no lab in the directory."""
        if not self.directory.is_lab():
            raise UsageError(f"there is no lab in {self.directory}: pal lab up --dir {self.directory}")

    def status(self) -> LabStatus:
        """Ask the processes and slurmctld. Never raises for a broken lab."""
        d, facts = self.directory, self.directory.facts()
        living = self._living()
        kinds = [process.name.partition("-")[0] for process in living]
        nodes = _number(facts, "nodes")
        awake = nodes - _number(facts, "cloud")  # at least
        wanted = {"munged": 1, "slurmctld": 1, "slurmd": awake}
        if facts.get("accounting") is True:
            wanted |= {"mariadbd": 1, "slurmdbd": 1}
        if facts.get("rest") is True:
            wanted["slurmrestd"] = 1
        counts = {kind: kinds.count(kind) for kind in wanted}
        states: dict[str, int] = {}
        jobs: dict[str, int] = {}
        if counts["slurmctld"] and counts["munged"]:  # without munged each command waits for its time-out
            states = daemons.node_states(ask(d, ["sinfo", *daemons.NODE_STATES]).text)
            for state in ask(d, ["squeue", "-h", "-a", "-r", "-o", "%T"]).text.split():
                jobs[state.lower()] = jobs.get(state.lower(), 0) + 1
        whole = bool(states) and nodes > 0 and counts == wanted | {"slurmd": max(awake, min(nodes, counts["slurmd"]))}
        return LabStatus(
            directory=d.path,
            state="up" if whole else "degraded" if living else "down",
            nodes=nodes,
            gpus_per_node=_number(facts, "gpus"),
            seed=_number(facts, "seed"),
            slurm=str(facts.get("slurm", "")),
            port=_number(facts, "port"),
            daemons=counts,
            node_states=states,
            jobs=jobs,
        )

    # -- ending it --------------------------------------------------------------------

    def down(self, keep: bool = False) -> LabShutdown:
        """Cancel all jobs, end every process of this lab only, remove the directory.

        Works on a lab that crashed, was partly killed, or does not exist (then nothing
        happens). `keep` leaves the files, logs among them. Raises UsageError for a
        directory that is not a lab or is somebody else's, SlurmError if a process
        cannot be ended, DataError if a file cannot be removed.
        """
        d = self.directory
        self._refuse_own_job()
        if not d.exists():
            return LabShutdown(0, self._end_processes(), (), True)
        if not d.is_lab():
            ended = self._end_processes()
            if not ended:
                raise UsageError(f"{d} is not a lab (it has no {MARKER}): nothing done; give the lab's --dir")
            return LabShutdown(0, ended, (), False)
        owner = os.stat(d.path).st_uid
        if os.geteuid() not in (0, owner):
            raise UsageError(f"the lab in {d} belongs to uid {owner}: only that user or root can end it")
        with d.claimed():
            cancelled = self._cancel_jobs()
            ended = self._end_processes()
            others = [] if keep else d.remove()
        return LabShutdown(cancelled, ended, tuple(others), not keep and not others)

    def _refuse_own_job(self) -> None:
        if "SLURMD_NODENAME" in os.environ and os.environ.get("SLURM_CONF") == self.directory.conf:
            raise UsageError("pal lab down in a job of the same lab would end itself: call it outside")

    def _living(self) -> list[Process]:
        """The living daemons: those recorded, and those recognised only by their command lines."""
        self._crew.reap()
        recorded = [process for process in processes.read_pids(self.directory.pids) if processes.alive(process)]
        known = {process.pid for process in recorded}
        found = [process for process in processes.find_daemons(self.directory) if process.pid not in known]
        return recorded + found

    def _cancel_jobs(self) -> int:
        """Cancel everything and wait for the empty queue: a slurmstepd outlives its slurmd."""
        d = self.directory
        living = [process.name.partition("-")[0] for process in self._living()]
        if "slurmctld" not in living or "munged" not in living:
            return 0
        whole = living.count("slurmd") >= _number(d.facts(), "nodes") - _number(d.facts(), "cloud")
        jobs = sorted(set(ask(d, ["squeue", "-h", "-a", "-o", "%A"]).text.split()), key=int)
        for first in range(0, len(jobs), 1000):
            ask(d, ["scancel", "-Q", *jobs[first : first + 1000]], timeout_s=30.0)
        deadline_s = time.monotonic() + (_QUEUE_WAIT_S if whole else _BROKEN_QUEUE_WAIT_S)
        while jobs and time.monotonic() < deadline_s and ask(d, ["squeue", "-h", "-a", "-o", "%A"]).text.strip():
            time.sleep(0.05)
        return len(jobs)

    def _end_processes(self) -> int:
        """slurmds, then job processes they left, and the rest, each before those it needs.

        Raises SlurmError if one cannot be ended.
        """
        ended: set[Process] = set()
        for kind, term_s in _ORDER.items():
            for _ in range(_SWEEPS):  # a dying job may fork again
                if kind == "job":
                    group = processes.find_steps(self.directory)
                else:
                    group = [p for p in self._living() if p.name.partition("-")[0] == kind]
                if not group:
                    break
                self._end(group, term_s)
                ended.update(group)
        return len(ended)

    def _end(self, group: list[Process], term_s: float) -> None:
        try:
            survivors = processes.stop(group, term_s, self._crew.reap)
        except PermissionError:
            raise SlurmError(f"another user owns processes of the lab in {self.directory}: end it as root") from None
        if survivors:
            names = ", ".join(f"{p.name} (pid {p.pid})" for p in survivors[:4])
            raise SlurmError(f"{names} of the lab in {self.directory} did not end: see /proc/{survivors[0].pid}/stack")

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()


def _number(facts: Mapping[str, object], name: str) -> int:
    value = facts.get(name, 0)
    return value if isinstance(value, int) else 0


def _network(path: str, names: Sequence[str], version: tuple[int, int]) -> tuple[Topology, str]:
    """The network and the text of a topology.conf for these nodes. Raises UsageError."""
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        found = topology_of(text, names)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--topology {path} cannot be read: {error}") from None
    except UsageError as error:
        raise UsageError(f"--topology {path}: {error}") from None
    if found.kind == BLOCK and not releases.has(version, "topology of blocks"):
        raise UsageError(
            f"--topology {path}: Slurm {releases.text(version)} has no topology of blocks; use SwitchName="
        )
    return found, text


def _emulated(network: Topology, names: Sequence[str], penalties: Sequence[float]) -> tuple[EmuSwitch, ...]:
    """What the emulated network costs at each of its switches, and above them: between blocks, or all nodes of a lab
    without any."""
    above = 1 + max((switch.level for switch in network.switches), default=-1)
    switches = (*network.switches, Switch("", above, tuple(names)))
    return tuple(EmuSwitch(penalties[min(one.level, len(penalties) - 1)], one.nodes) for one in switches)


def _check_penalties(penalties: Sequence[float]) -> None:
    for penalty in penalties:
        if not 1.0 <= penalty <= PENALTY_MAX:
            raise UsageError(f"--locality-penalty {penalty:g} must be in 1..{PENALTY_MAX:g}")


def _check_size(nodes: int, gpus: int, cpus: int, memory_mib: int) -> None:
    most_of = {"nodes": NODES_MAX, "gpus": GPUS_MAX, "cpus": 1024, "memory-mib": 2**24}
    for (name, most), value in zip(most_of.items(), (nodes, gpus, cpus, memory_mib), strict=True):
        if not 1 <= value <= most:
            raise UsageError(f"--{name} {value} must be in 1..{most}")
