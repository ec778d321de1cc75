# SPDX-License-Identifier: MIT
"""sbatch's options as data: which take an argument, and what their short forms mean.

From sbatch(1) and `sbatch --help` of releases 22.05 to 26.05; the 22.05 rows were
checked one by one against the program. A name that one release lacks does no harm:
sbatch itself refuses it. Options missing here are looked up in `sbatch --help`.
"""

from __future__ import annotations

NONE, OPTIONAL, REQUIRED = 0, 1, 2
"""What follows an option: nothing; perhaps a value after "=" (or glued to a short one); always a value."""

_NONE = """
contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot spread-job stepmgr
test-only usage use-min-nodes verbose version wait external consolidate-segments spread-segments share
"""
_OPTIONAL = "exclusive get-user-env nice no-kill propagate requeue resv-ports oom-kill-step x11"
_REQUIRED = """
account acctg-freq array batch bb bbf begin burst-buffer chdir cluster-constraint clusters comment constraint
container container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user
mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos
reservation resources segment signal sockets-per-node switches thread-spec threads-per-core time time-min tmp
tres-bind tres-per-task uid umask wait-all-nodes wckey wrap
"""

SAME = {"tasks-per-node": "ntasks-per-node"}
"""A name that sbatch takes and does not show -> the option that it is."""

LONG: dict[str, int] = {
    **dict.fromkeys(SAME, REQUIRED),
    **dict.fromkeys(_NONE.split(), NONE),
    **dict.fromkeys(_OPTIONAL.split(), OPTIONAL),
    **dict.fromkeys(_REQUIRED.split(), REQUIRED),
}

SHORT: dict[str, str] = {
    "a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "h": "help", "H": "hold",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters",
    "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "V": "version", "w": "nodelist",
    "W": "wait", "x": "exclude",
}  # fmt: skip

ENVIRONMENT: dict[str, str] = {
    "SBATCH_ARRAY_INX": "array", "SBATCH_CLUSTERS": "clusters", "SLURM_CLUSTERS": "clusters",
    "SBATCH_CONSTRAINT": "constraint", "SBATCH_CORE_SPEC": "core-spec", "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_DISTRIBUTION": "distribution", "SBATCH_EXCLUSIVE": "exclusive", "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_SOCKET": "gpus-per-socket",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task", "SBATCH_GRES": "gres", "SBATCH_IGNORE_PBS": "ignore-pbs",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu", "SBATCH_MEM_PER_GPU": "mem-per-gpu", "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_OVERCOMMIT": "overcommit", "SBATCH_PARTITION": "partition", "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_RESERVATION": "reservation", "SBATCH_SPREAD_JOB": "spread-job", "SBATCH_THREAD_SPEC": "thread-spec",
    "SBATCH_HINT": "hint", "SLURM_HINT": "hint", "SBATCH_THREADS_PER_CORE": "threads-per-core",
    "SBATCH_GRES_FLAGS": "gres-flags", "SBATCH_TIMELIMIT": "time", "SBATCH_TRES_PER_TASK": "tres-per-task",
    "SBATCH_USE_MIN_NODES": "use-min-nodes",
}  # fmt: skip
"""sbatch(1), INPUT ENVIRONMENT VARIABLES, as far as they affect where a job may run."""


def from_help(text: str) -> dict[str, int]:
    """Long options that `sbatch --help` prints: `--x`, `--x=ARG`, `--x[=ARG]`; site plug-ins are among them.

    Slurm itself puts the = before what a plug-in says of its argument: `--x=[ARG]`.
    """
    import re

    found: dict[str, int] = {}
    for name, mark in re.findall(r"^\s+(?:-\w,\s+)?--([A-Za-z0-9][\w-]*)(\[?=\[?)?", text, re.MULTILINE):
        found.setdefault(name, {"": NONE, "=": REQUIRED}.get(mark, OPTIONAL))
    return found
