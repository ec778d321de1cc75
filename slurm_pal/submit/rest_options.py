# SPDX-License-Identifier: MIT
"""sbatch's options as a job description for slurmrestd. Pure; what has no counterpart there is refused by its name.

There are two forms: that of v0.0.38, whose keys take most values as sbatch does, and that of v0.0.40 and later, with
numbers in objects and lists of words. Each row was compared with sbatch's own job on a real slurmctld
(tests/slurm/test_rest_submit.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_pal.base.errors import NotByRestError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.parse import seconds
from slurm_pal.slurm.rest_door import NEW_FORM

Description = dict[str, Any]
Row = Callable[[str], Description]

INSTEAD = "leave it out, or submit where sbatch is"
TOKEN = "SLURM_JWT"
_NOT_SET = 0xFFFE
"""NO_VAL16 of slurm.h, where an absent key would mean 0."""
_SUFFIX = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
LOCAL = frozenset(
    {"parsable", "quiet", "verbose", "ignore-pbs", "export", "wrap", "chdir", "job-name", "requeue", "no-requeue"}
)
"""Options that do not become a key here: they concern what is printed, or are read elsewhere."""


class _Unable(Exception):
    """This value has no counterpart."""


def _text(key: str) -> Row:
    return lambda value: {key: value}


def _flag(key: str, value: object = True) -> Row:
    return lambda given: {key: value} if not given else _unable()


def _unable() -> Description:
    raise _Unable


def _whole(value: str) -> int:
    number = digits(value)
    if number is None:
        raise _Unable
    return number


def _number(key: str) -> Row:
    return lambda value: {key: _whole(value)}


def _set(number: int | None) -> Description:
    """A number as later versions write it; None: no limit."""
    return {"set": True, "infinite": number is None, "number": number or 0}


def _set_number(key: str) -> Row:
    return lambda value: {key: _set(_whole(value))}


def _mib(value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)B?", value.upper())
    if not match:
        raise _Unable
    return -(-int(match[1]) * int(1024 * _SUFFIX[match[2]]) // 1024)


def _minutes(value: str) -> int | None:
    if value.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    limit_s = seconds(value)
    if limit_s is None:
        raise _Unable
    return -(-limit_s // 60)


def _limit(key: str) -> Row:
    return lambda value: {key: _set(_minutes(value) or None)}  # 0 is no limit, too


def _nice(value: str) -> Description:
    sign, number = (-1, value[1:]) if value.startswith("-") else (1, value or "100")
    return {"nice": sign * _whole(number)}


def _tres(key: str, separator: str = ":", mib: bool = False) -> Row:
    """GPUs, by number or `type:number,...`, as generic resources."""

    def row(value: str) -> Description:
        parts = [str(_mib(part)) if mib else part for part in value.split(",")]
        return {key: ",".join(f"gres/gpu{separator}{part}" for part in parts)}

    return row


def _per_task(value: str) -> Description:
    """`_amounts` has the keys: they depend on other options, too."""
    return {} if _whole(value) else _unable()


def _gres(value: str) -> Description:
    parts = [part.removeprefix("gres:").removeprefix("gres/") for part in value.split(",")]
    return {"tres_per_node": ",".join(f"gres/{part}" for part in parts)} if value.lower() != "none" else _unable()


def _shared(value: str) -> Description:
    known = {"": "none", "user": "user", "mcs": "mcs", "topo": "topo"}
    return {"shared": [known[value]]} if value in known else _unable()


_MAIL = {
    "BEGIN": "BEGIN", "END": "END", "FAIL": "FAIL", "REQUEUE": "REQUEUE", "INVALID_DEPEND": "INVALID_DEPENDENCY",
    "STAGE_OUT": "STAGE_OUT", "TIME_LIMIT": "TIME=100%", "TIME_LIMIT_90": "TIME=90%", "TIME_LIMIT_80": "TIME=80%",
    "TIME_LIMIT_50": "TIME=50%", "ARRAY_TASKS": "ARRAY_TASKS",
}  # fmt: skip
_ALL_MAIL = ("BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPEND", "STAGE_OUT")


def _mail(value: str) -> Description:
    asked = [word for part in value.upper().split(",") for word in (_ALL_MAIL if part == "ALL" else (part,))]
    if asked == ["NONE"]:
        return {}
    return {"mail_type": [_MAIL[word] for word in asked]} if all(word in _MAIL for word in asked) else _unable()


def _signal(value: str) -> Description:
    match = re.fullmatch(r"(B?:)?([A-Z0-9]{1,10})(?:@([0-9]{1,5}))?", value)
    if not match:
        raise _Unable
    found: Description = {"kill_warning_signal": match[2], "kill_warning_delay": _set(int(match[3] or 60))}
    return found | ({"kill_warning_flags": ["BATCH_JOB"]} if match[1] == "B:" else {})


def _switches(value: str) -> Description:
    count, sign, wait = value.partition("@")
    found: Description = {"required_switches": _set(_whole(count))}
    limit_s = seconds(wait) if sign else None
    if sign and limit_s is None and _minutes(wait) is not None:
        raise _Unable
    return found | ({"wait_for_switch": limit_s} if limit_s is not None else {})


def _mode(value: str) -> str:
    """sbatch looks at the first letter only."""
    names = {"a": "append", "t": "truncate"}
    return names.get(value[:1].lower()) or str(_unable())


def _yes_no(value: str) -> bool:
    if value.lower() not in ("yes", "no"):
        raise _Unable
    return value.lower() == "yes"


def _hosts(key: str, as_list: bool) -> Row:
    """Names of nodes; sbatch takes what has a slash in it for a file of them."""
    return lambda value: _unable() if "/" in value else {key: [value] if as_list else value}


_GRES_FLAGS = {"disable-binding": "GRES_BINDING_DISABLED", "enforce-binding": "GRES_BINDING_ENFORCED"}
_BOTH: dict[str, Row] = {
    "account": _text("account"), "array": _text("array"), "comment": _text("comment"),
    "constraint": _text("constraints"), "dependency": _text("dependency"), "error": _text("standard_error"),
    "hold": _flag("hold"), "input": _text("standard_input"), "licenses": _text("licenses"),
    "mail-user": _text("mail_user"), "mcs-label": _text("mcs_label"), "mincpus": _number("minimum_cpus_per_node"),
    "nice": _nice, "nodes": _text("nodes"), "ntasks": _number("tasks"), "ntasks-per-node": _number("tasks_per_node"),
    "ntasks-per-socket": _number("tasks_per_socket"), "ntasks-per-core": _number("tasks_per_core"),
    "output": _text("standard_output"), "partition": _text("partition"), "prefer": _text("prefer"),
    "qos": _text("qos"), "reservation": _text("reservation"), "wckey": _text("wckey"),
    "sockets-per-node": _number("sockets_per_node"), "threads-per-core": _number("threads_per_core"),
    "acctg-freq": _text("account_gather_frequency"), "batch": _text("batch_features"), "bb": _text("burst_buffer"),
    "burst-buffer": _text("burst_buffer"), "cluster-constraint": _text("cluster_constraint"),
    "container": _text("container"), "cpu-freq": _text("cpu_frequency"), "distribution": _text("distribution"),
    "cpus-per-task": _number("cpus_per_task"),
}  # fmt: skip
OLD: dict[str, Row] = _BOTH | {
    "begin": _text("begin_time"), "deadline": _text("deadline"), "delay-boot": _text("delay_boot"),
    "cpus-per-gpu": _text("cpus_per_gpu"), "exclude": _hosts("exclude_nodes", False),
    "nodelist": _hosts("nodelist", False), "exclusive": lambda value: {"exclusive": value or "exclusive"},
    "gpus": _text("gpus"), "gpus-per-node": _text("gpus_per_node"),
    "gpus-per-socket": _text("gpus_per_socket"), "gpus-per-task": _text("gpus_per_task"), "gres": _text("gres"),
    "gres-flags": _text("gres_flags"), "gpu-bind": _text("gpu_binding"), "gpu-freq": _text("gpu_frequency"),
    "kill-on-invalid-dep": _text("kill_on_invalid_dependency"),
    "mail-type": _text("mail_type"), "mem": lambda value: {"memory_per_node": _mib(value)},
    "mem-per-cpu": lambda value: {"memory_per_cpu": _mib(value)}, "mem-per-gpu": _text("memory_per_gpu"),
    "open-mode": lambda value: {"open_mode": _mode(value)}, "oversubscribe": _flag("oversubscribe"),
    "share": _flag("oversubscribe"), "priority": lambda value: {"priority": str(_whole(value))},
    "signal": lambda value: _unable() if ":" in value else {"signal": value}, "spread-job": _flag("spread_job"),
    "time": _text("time_limit"),
    "time-min": _text("time_minimum"), "tmp": _text("temporary_disk_per_node"),
    "ntasks-per-gpu": _text("ntasks_per_gpu"), "use-min-nodes": _flag("minimum_nodes"),
    "wait-all-nodes": _text("wait_all_nodes"),
}  # fmt: skip
NEW: dict[str, Row] = _BOTH | {
    "begin": _text("begin_time"), "deadline": _text("deadline"),
    "delay-boot": lambda value: {"delay_boot": seconds(value) or _unable()}, "contiguous": _flag("contiguous"),
    "core-spec": _number("core_specification"),
    "container-id": _text("container_id"), "extra": _text("extra"),
    "cpus-per-gpu": _tres("cpus_per_tres"), "exclude": _hosts("excluded_nodes", True),
    "nodelist": _hosts("required_nodes", True), "exclusive": _shared,
    "gpus": _tres("tres_per_job"), "gpus-per-node": _tres("tres_per_node"),
    "gpus-per-socket": _tres("tres_per_socket"), "gpus-per-task": _per_task,
    "gres": _gres, "gpu-bind": lambda value: {"tres_bind": f"gres/gpu:{value}"},
    "gpu-freq": lambda value: {"tres_freq": f"gpu:{value}"},
    "mail-type": _mail, "mem": lambda value: {"memory_per_node": _set(_mib(value))},
    "mem-per-cpu": lambda value: {"memory_per_cpu": _set(_mib(value))},
    "mem-per-gpu": _tres("memory_per_tres", mib=True), "network": _text("network"),
    "no-kill": lambda value: {"kill_on_node_fail": value.lower() == "off"},
    "open-mode": lambda value: {"open_mode": [_mode(value).upper()]},
    "overcommit": _flag("overcommit"), "oversubscribe": _flag("shared", ["oversubscribe"]),
    "share": _flag("shared", ["oversubscribe"]), "priority": _set_number("priority"),
    "reboot": _flag("reboot"), "segment": _set_number("segment_size"), "signal": _signal, "switches": _switches,
    "thread-spec": _number("thread_specification"),
    "time": _limit("time_limit"), "time-min": _limit("time_minimum"), "tmp": _number("temporary_disk_per_node"),
    "tres-bind": _text("tres_bind"), "wait-all-nodes": lambda value: {"wait_all_nodes": value == "1"},
    "ntasks-per-gpu": _number("ntasks_per_tres"),
    "gres-flags": lambda value: {"flags": [_GRES_FLAGS.get(value) or _unable()]},
    "kill-on-invalid-dep": lambda value: {
        "flags": ["KILL_INVALID_DEPENDENCY" if _yes_no(value) else "NO_KILL_INVALID_DEPENDENCY"]
    },
    "spread-job": _flag("flags", ["SPREAD_JOB"]), "use-min-nodes": _flag("flags", ["PREFER_MINIMUM_NODE_COUNT"]),
}  # fmt: skip


def described(asked: Mapping[str, str], version: int, known: frozenset[str] | None = None) -> Description:
    """The keys for these options of sbatch, by long name, those `known` to slurmrestd (None: it refuses others itself).

    Raises NotByRestError for an option without a counterpart.
    """
    table = NEW if version >= NEW_FORM else OLD
    found: Description = {}
    for name, value in asked.items():
        if name in LOCAL or (name == "priority" and "hold" in asked):  # sbatch holds it, whatever its priority
            continue
        row = table.get(name)
        try:
            keys = row(value) if row is not None else _unable()
            if name == "ntasks-per-gpu" and "ntasks" not in asked:  # sbatch derives the one from the other
                _whole(asked.get("gpus", ""))
            if known is not None and not known.issuperset(keys):
                _unable()
        except _Unable:
            raise _not_given(version, name, value) from None
        for key, one in keys.items():  # flags come from several options
            if key in found and isinstance(one, list):
                one = [*found[key], *one] if key == "flags" else _twice(name, key)
            elif key in found:
                one = _twice(name, key)
            found[key] = one
    derived = _amounts(asked) if version >= NEW_FORM else _tasks_of_one_node(asked)
    if known is not None and "oom_kill_step" not in known:  # Slurm had no such option then
        del derived["oom_kill_step"]
    return found | derived


def _not_given(version: int, name: str, value: str) -> NotByRestError:
    shown = f"--{name}={value}" if value else f"--{name}"
    return NotByRestError(f"slurmrestd (v0.0.{version}) cannot be given {shown}: {INSTEAD}")


def _twice(name: str, key: str) -> Any:  # noqa: ANN401
    raise NotByRestError(f"--{name} and another option give slurmrestd two values for {key}: leave one of them out")


def _tasks_of_one_node(asked: Mapping[str, str]) -> Description:
    """v0.0.38 derives the number of tasks from nodes, but not from the one node of a job that does not say it."""
    alone = "ntasks-per-node" in asked and not asked.keys() & {"ntasks", "nodes", "nodelist", "ntasks-per-gpu"}
    return {"tasks": _whole(asked["ntasks-per-node"])} if alone else {}


def _amounts(asked: Mapping[str, str]) -> Description:
    """What sbatch itself derives from nodes, tasks and CPUs of a task."""
    low, _, high = asked.get("nodes", "").partition("-")
    nodes, tasks, per_node = digits(low), digits(asked.get("ntasks", "")), digits(asked.get("ntasks-per-node", ""))
    found: Description = {"oom_kill_step": _NOT_SET}
    if tasks is None and "ntasks-per-gpu" in asked:
        tasks = found["tasks"] = _whole(asked["ntasks-per-gpu"]) * _whole(asked.get("gpus", ""))
    gpus = asked.get("gpus-per-task", "")
    if tasks is None and gpus and "gpus" in asked:
        per_task, all_gpus = digits(gpus), digits(asked["gpus"])
        if not per_task or all_gpus is None or all_gpus % per_task:
            raise NotByRestError(
                "slurmrestd cannot be given --gpus that is no multiple of --gpus-per-task: add --ntasks"
            )
        tasks = found["tasks"] = all_gpus // per_task
    if not nodes and not tasks and "nodelist" in asked:
        nodes = len(expand(asked["nodelist"]))
    if tasks is None and nodes and high in ("", low):
        tasks = nodes * (per_node or 1)
        found |= {"tasks": tasks} if per_node else {}
    if tasks and per_node and "nodes" not in asked:
        found["minimum_nodes"] = -(-tasks // per_node)
    cpus = digits(asked.get("cpus-per-task", ""))
    found["minimum_cpus"] = (nodes or 1) if "overcommit" in asked else (tasks or 1) * (cpus or 1)
    shares = [f"cpu={cpus}"] if cpus else []
    if gpus:
        shares.append(f"gres/gpu={_whole(gpus)}")
        if not asked.keys() & {"gpu-bind", "tres-bind"}:
            found["tres_bind"] = f"gres/gpu:per_task:{gpus}"
    return found | ({"tres_per_task": ",".join(shares)} if shares else {})


def variables(asked: Mapping[str, str], version: int, name: str) -> dict[str, str]:
    """What sbatch tells the job by its environment about these options."""
    found = {variable: asked[option] for option, variable in _TOLD.items() if option in asked}
    found["SLURM_JOB_NAME"] = name
    if "open-mode" in asked:
        found["SLURM_OPEN_MODE"] = _mode(asked["open-mode"])[0]
    if "overcommit" in asked:
        found["SLURM_OVERCOMMIT"] = "1"
    layout, sign, size = asked.get("distribution", "").partition("=")
    if sign:
        found |= {"SLURM_DISTRIBUTION": layout, "SLURM_DIST_PLANESIZE": size}
    if version >= NEW_FORM:
        derived = described(asked, version)
        found |= {name: derived[key] for name, key in _DERIVED.items() if key in derived}
        for name in _OLD_ONLY:
            found.pop(name, None)
    return found


_DERIVED = {"SLURM_TRES_PER_TASK": "tres_per_task", "SLURM_TRES_BIND": "tres_bind"}
_OLD_ONLY = ("SLURM_GPU_BIND", "SLURM_GPUS_PER_TASK")
LAUNCHERS = {
    "OMPI_MCA_plm_slurm_args": "--external-launcher", "PRTE_MCA_plm_slurm_args": "--external-launcher",
    "HYDRA_BOOTSTRAP": "slurm", "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher",
    "I_MPI_HYDRA_BOOTSTRAP": "slurm", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "--external-launcher",
}  # fmt: skip
"""How sbatch, from v0.0.40 on, has MPI start its processes, unless the user says it."""
_TOLD = {
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU", "gpus": "SLURM_GPUS", "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "gpus-per-socket": "SLURM_GPUS_PER_SOCKET", "gpus-per-task": "SLURM_GPUS_PER_TASK", "gpu-bind": "SLURM_GPU_BIND",
    "gpu-freq": "SLURM_GPU_FREQ", "cpus-per-task": "SLURM_CPUS_PER_TASK", "cpu-freq": "SLURM_CPU_FREQ_REQ",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE", "ntasks-per-core": "SLURM_NTASKS_PER_CORE",
    "ntasks-per-socket": "SLURM_NTASKS_PER_SOCKET", "threads-per-core": "SLURM_THREADS_PER_CORE",
    "mem-per-gpu": "SLURM_MEM_PER_GPU", "distribution": "SLURM_DISTRIBUTION",
    "acctg-freq": "SLURM_ACCTG_FREQ", "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
}  # fmt: skip


def environment(mine: Mapping[str, str], version: int, export: str, told: Mapping[str, str]) -> dict[str, str]:
    """The job's environment: what `--export` lets pass of the submitter's, and what sbatch itself adds.

    A token for slurmrestd does not go along. Raises NotByRestError for NONE and lists, with which the job gets its
    user's login environment, and for a variable that is not UTF-8.
    """
    new, word = version >= NEW_FORM, export.upper()
    if word not in ("", "ALL", "NIL") or (word == "NIL" and not new):  # 22.05 takes NIL for the name of a variable
        raise NotByRestError(
            f"slurmrestd (v0.0.{version}) cannot be given --export={export}, with which sbatch has the node read the "
            "user's login environment: use --export=ALL, or submit where sbatch is"
        )
    kept = {name: value for name, value in mine.items() if name != TOKEN}
    if word == "NIL":
        kept = {name: value for name, value in kept.items() if name.startswith(("SLURM_", "SPANK_"))}
    for name, value in kept.items():
        if not _encodes(name) or not _encodes(value):
            raise NotByRestError(f"slurmrestd cannot be given the variable {name!r}, which is not UTF-8: unset it")
    said = {"SLURM_EXPORT_ENV": export} if word == "NIL" else {}
    return {**(LAUNCHERS if new else {}), **kept, **told, **said}


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def job(
    asked: Mapping[str, str], version: int, name: str, arguments: Sequence[str], folder: str,
    surroundings: Mapping[str, str], requeue: bool | None, known: frozenset[str] | None,
) -> Description:  # fmt: skip
    """The job description. `arguments` are the script's, its own path first; none: its text came without one.

    `known` as for `described`. Raises NotByRestError.
    """
    new = version >= NEW_FORM
    found = described(asked, version, known) | {"name": name, "current_working_directory": folder}
    if requeue is not None:
        found |= {"requeue": requeue} if new or requeue else {"no_requeue": True}
    if new:
        return found | {
            "argv": list(arguments), "environment": [f"{key}={value}" for key, value in surroundings.items()],
        }  # fmt: skip
    if len(arguments) > 1:  # slurmrestd of 22.05.8 dies of them
        raise NotByRestError(
            f"slurmrestd (v0.0.{version}) cannot be given arguments of the script: write them into the script, "
            "or submit where sbatch is"
        )
    return found | {"environment": dict(surroundings)}
