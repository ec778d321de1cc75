# SPDX-License-Identifier: MIT
"""The configuration files of a lab, as texts: pure functions of a `LabSpec`.

Only keys that 22.05 knows and later releases still read: one key that a release does
not know makes every client command fail. Keys at Slurm's default are left out for the
same reason. Sources: slurm.conf(5), gres.conf(5), cgroup.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base import hostlist
from slurm_pal.base.errors import UsageError
from slurm_pal.lab import accounting, power
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.partition_file import PartitionFile
from slurm_pal.slurm import releases

SCHEDULER = (
    "sched_interval=1,sched_min_interval=50000,bf_interval=1,bf_continue,batch_sched_delay=0,ignore_prefer_validation"
)
"""React within about a second (sched_min_interval is in microseconds). ignore_prefer_validation:
a feature that vanished from the nodes must not make `--prefer` fail."""

ONE_PARTITION = PartitionFile({}, {"gpu": "Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"})
SLURMD_TIMEOUT_S = 30  # a killed node is DOWN after this, not after Slurm's five minutes
RESUME_TIMEOUT_S = 60  # a cloud node that has not answered by then is DOWN; it answers in a second or two
SUSPEND_TIME_S = 10  # so long a cloud node idles before it is powered down


class LabSpec(NamedTuple):
    """What a lab is made of."""

    directory: LabDirectory
    nodes: int
    gpus: int  # per node
    cpus: int  # per node
    memory_mib: int  # per node
    user: str
    port: int  # slurmctld's; the slurmds have the ports after it, then slurmdbd
    version: tuple[int, int]  # of Slurm, like (22, 5)
    submit_filter: bool = False  # job_submit.lua is in etc/
    accounting: bool = False  # with slurmdbd, whose port is the last one
    partitions: PartitionFile | None = None  # None: one partition, gpu, of all nodes
    topology: tuple[str, str] = ("", "")  # plug-in and the text of topology.conf; ("", ""): all nodes alike
    conf_edits: tuple[tuple[str, str], ...] = ()  # pieces of slurm.conf or cgroup.conf, and what stands there instead
    cloud: int = 0  # so many of the nodes, the last ones, are powered down until a job needs them
    rest: bool = False  # with slurmrestd on a socket in its directory


def node_names(nodes: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(nodes))


def _node_line(spec: LabSpec, first: int, count: int, state: str) -> str:
    last, port = first + count - 1, spec.port + 1 + first
    names, ports = f"n[{first}-{last}]", f"[{port}-{port + count - 1}]"
    if count == 1:
        names, ports = f"n{first}", f"{port}"
    return (
        f"NodeName={names} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports} CPUs={spec.cpus} Sockets=1 "
        f"CoresPerSocket={spec.cpus} ThreadsPerCore=1 RealMemory={spec.memory_mib} Gres=gpu:{spec.gpus} State={state}\n"
    )


def _power_saving(spec: LabSpec) -> dict[str, str]:
    """Keys of slurm.conf by which slurmctld wakes the cloud nodes, and powers them down when they have idled."""
    if not spec.cloud:
        return {}
    d, own = spec.directory, node_names(spec.nodes)[: -spec.cloud]
    found = {
        "ResumeProgram": d("etc", power.RESUME),
        "SuspendProgram": d("etc", power.SUSPEND),
        "ResumeTimeout": str(RESUME_TIMEOUT_S),
        "SuspendTimeout": "5",
        "SuspendTime": str(SUSPEND_TIME_S),
        # No limit to how many nodes change in a minute.
        "ResumeRate": "0",
        "SuspendRate": "0",
        # Slurm hides cloud nodes that are powered down, unless told not to.
        "PrivateData": "cloud",
        "SlurmctldParameters": ",power_save_interval=1,power_save_min_interval=0",
    }
    return found | ({"SuspendExcNodes": hostlist.fold(list(own))} if own else {})


def slurm_conf_text(spec: LabSpec) -> str:
    """slurm.conf(5) for slurmctld, all slurmds and the clients."""
    d, own_nodes = spec.directory, spec.nodes - spec.cloud
    plugins = "JobSubmitPlugins=lua\n" if spec.submit_filter else ""
    text = f"""# Written by pal lab up; removed by pal lab down.
ClusterName=palab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={spec.port}
SlurmdPort={spec.port + 1}
SlurmUser={spec.user}
SlurmdUser={spec.user}
AuthType=auth/munge
CredType=cred/munge
# cred_expire also sets how long a requeued job waits; Slurm accepts 5 s or more.
AuthInfo=socket={d.munge_socket},cred_expire=5
StateSaveLocation={d("state")}
SlurmdSpoolDir={d("spool", "%n")}
SlurmctldPidFile={d("run", "slurmctld.pid")}
SlurmdPidFile={d("run", "slurmd-%n.pid")}
SlurmctldLogFile={d.log("slurmctld")}
SlurmdLogFile={d.log("slurmd-%n")}
# No cgroups, no root, no MPI to set up.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
PropagateResourceLimits=NONE
# Believe the CPUs and memory given here, not those of this machine.
SlurmdParameters=config_overrides
# A lab sends no mail, whatever its jobs ask for.
MailProg=/bin/true
# A node that somebody set DOWN stays so; one that did not answer returns.
ReturnToService=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU={max(1, min(500, spec.memory_mib // spec.cpus))}
# No slurmd forwards messages for others: they share one host.
TreeWidth={max(50, spec.nodes + 1)}
SlurmdTimeout={SLURMD_TIMEOUT_S}
KillWait=2
InactiveLimit=0
MinJobAge=300
MaxJobCount=20000
SchedulerType=sched/backfill
SchedulerParameters={SCHEDULER}
PriorityType=priority/basic
JobCompType=jobcomp/filetxt
JobCompLoc={d("log", "jobcomp.txt")}
{plugins}\
"""
    text += _node_line(spec, 0, own_nodes, "UNKNOWN") if own_nodes else ""
    text += _node_line(spec, own_nodes, spec.cloud, "CLOUD") if spec.cloud else ""
    chosen = spec.partitions or ONE_PARTITION
    lines = "".join(f"PartitionName={name} {words}\n" for name, words in chosen.partitions.items())
    own = accounting.settings(spec) if spec.accounting else {}
    plugin = {"TopologyPlugin": f"topology/{spec.topology[0]}"} if spec.topology[0] else {}
    text = with_settings(with_settings(text, {**own, **chosen.settings, **plugin}), _power_saving(spec))
    return text + lines


def with_settings(text: str, settings: Mapping[str, str]) -> str:
    """slurm.conf with other values of keys: Slurm warns of a key that it finds twice.

    A value that starts with `,` is added to the one that is there.
    """
    for key, value in settings.items():
        had = re.search(rf"^{key}=(.*)$", text, re.MULTILINE)
        if had is None:
            text += f"{key}={value.lstrip(',')}\n"
            continue
        new = had[1] + value if value.startswith(",") else value
        text = f"{text[: had.start()]}{key}={new}{text[had.end() :]}"
    return text


def gres_conf_text(spec: LabSpec) -> str:
    """gres.conf(5): untyped GPUs, so that Slurm hands out the lowest free index first."""
    indexes = f"[0-{spec.gpus - 1}]" if spec.gpus > 1 else "0"
    return f"Name=gpu File={spec.directory('dev')}/nvidia{indexes}\n"


def cgroup_conf_text(version: tuple[int, int]) -> str:
    """cgroup.conf(5) that keeps slurmd away from cgroups.

    slurmd loads a cgroup plugin even if nothing uses one. Its default on a machine with
    cgroup v2 sets up a scope through systemd and is fatal without systemd (containers,
    ordinary users); the one for v1 does nothing until it is used.
    """
    return f"CgroupPlugin={'disabled' if releases.has(version, 'cgroup plugin disabled') else 'cgroup/v1'}\n"


def pal_toml_text(directory: LabDirectory) -> str:
    """slurm-pal's own settings; the directory's name has been checked, so it needs no escapes."""
    return f"""[paths]
state_dir = "{directory("pal")}"
spool = "{directory("pal", "spool")}"
table = "{directory.table}"
gpus = "{directory.gpus}"

[profile]
backend = "emu"
"""


def config_files(spec: LabSpec) -> dict[str, str]:
    """File name below etc/ -> text."""
    text, cgroups = slurm_conf_text(spec), cgroup_conf_text(spec.version)
    for piece, other in spec.conf_edits:
        if piece not in text + cgroups:
            raise UsageError(f"slurm.conf and cgroup.conf of a lab have no {piece!r} that could be replaced")
        text, cgroups = text.replace(piece, other), cgroups.replace(piece, other)
    network = {"topology.conf": spec.topology[1]} if spec.topology[0] else {}
    return {
        **network,
        "slurm.conf": text,
        "gres.conf": gres_conf_text(spec),
        "cgroup.conf": cgroups,
        "pal.toml": pal_toml_text(spec.directory),
    }


def power_programs(spec: LabSpec) -> dict[str, str]:
    """Name below etc/ -> text of those that slurmctld runs."""
    return {verb: power.program_text(spec.directory, verb) for verb in (power.RESUME, power.SUSPEND) if spec.cloud}
