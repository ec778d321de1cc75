# SPDX-License-Identifier: MIT
"""The submit filter itself, in a Lua of its own: job_submit.lua and pal.lua as a site gets them, beside the table."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from slurm_pal.base.cluster import Partition
from slurm_pal.base.errors import MissingPackageError, SlurmError
from slurm_pal.base.files import write_atomic
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.decide.request import Request
from slurm_pal.filter.source import text_of
from slurm_pal.twin.virtual_job import VirtualJob

INTERPRETERS = ("lua5.1", "lua5.3", "lua5.4", "lua")
NO_VAL, NO_VAL16 = 4294967294, 65534
_UNSET: Mapping[str, object] = {
    "min_nodes": NO_VAL, "max_nodes": NO_VAL, "num_tasks": NO_VAL, "ntasks_per_node": NO_VAL16,
    "ntasks_per_gpu": NO_VAL16, "ntasks_per_tres": NO_VAL16, "cpus_per_task": NO_VAL16, "pn_min_cpus": NO_VAL16,
    "shared": NO_VAL16, "time_limit": NO_VAL, "begin_time": 0, "priority": NO_VAL, "het_job_offset": NO_VAL,
    "req_switch": NO_VAL, "contiguous": 0, "environment": {}, "user_id": 1000,
}  # fmt: skip
"""What slurmctld 22.05 shows of a batch job without options: numbers that are not set have special values."""
_NUMBERS = {
    "num_tasks": "ntasks", "ntasks_per_node": "ntasks-per-node", "cpus_per_task": "cpus-per-task",
    "pn_min_cpus": "mincpus",
}  # fmt: skip
_SET = {"admin_comment", "partition", "req_nodes", "exc_nodes", "prefer"}
_END = "."
_DRIVER = """
local load = loadstring or load
local clock = 0
os.time = function() return clock end
slurm = { SUCCESS = 0, ERROR = -1 }
for _, level in ipairs({ "error", "info", "debug", "user" }) do slurm["log_" .. level] = function() end end
dofile(arg[1])
for line in io.lines() do
  local step = assert(load("return " .. line))()
  clock = step.now
  local job = setmetatable({}, {
    __index = step.job,
    __newindex = function(_, key, value)
      step.job[key] = value
      io.write(key, "\\t", (tostring(value):gsub("[\\r\\n]", " ")), "\\n")
    end,
  })
  slurm_job_submit(job, step.partitions, 1000)
  io.write(".\\n")
  io.flush()
end
"""


class LuaFilter:
    """One slurmctld's filter: a `Filter` of the virtual Slurm. `close` ends its process."""

    def __init__(self, folder: str, partitions: Sequence[Partition], classes: Mapping[int, str]) -> None:
        """`folder` has the table; `classes` are the words of users on their next job, by its number."""
        found = next(filter(None, map(shutil.which, INTERPRETERS)), None)
        if found is None:
            raise MissingPackageError("policy 'filter' runs the submit filter's own Lua: apt-get install lua5.1")
        for name in ("job_submit.lua", "pal.lua"):
            write_atomic(os.path.join(folder, name), text_of(name), 0o600)
        driver = os.path.join(folder, "driver.lua")
        write_atomic(driver, _DRIVER, 0o600)
        self._partitions = _literal({p.name: _partition(p) for p in partitions})
        self._scripts = classes
        argv = [found, driver, os.path.join(folder, "job_submit.lua")]
        self._lua = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __call__(self, job: VirtualJob, now_s: float) -> None:
        """job_submit: what the filter sets is set. Raises SlurmError when its Lua has ended."""
        fields = _literal({**_UNSET, **description(job), "script": self._scripts.get(job.job_id, "#!/bin/sh\ntrue\n")})
        step = f"{{now={int(now_s)},partitions={self._partitions},job={fields}}}\n"
        assert self._lua.stdin is not None and self._lua.stdout is not None
        try:
            self._lua.stdin.write(step)
            self._lua.stdin.flush()
        except OSError:
            pass  # it has ended, as its missing answer shows
        found: dict[str, str] = {}
        for line in self._lua.stdout:
            if line.rstrip("\n") == _END:
                break
            key, _, text = line.rstrip("\n").partition("\t")
            found[key] = text
        else:
            raise SlurmError("the submit filter's Lua has ended: it does not run outside the lab's tests")
        self._set(job, {key: text for key, text in found.items() if key in _SET})

    def _set(self, job: VirtualJob, found: Mapping[str, str]) -> None:
        job.admin_comment = found.get("admin_comment", job.admin_comment)
        job.prefer = found.get("prefer", job.prefer)
        job.partitions = (found["partition"],) if "partition" in found else job.partitions
        job.req_nodes = expand(found["req_nodes"]) if "req_nodes" in found else job.req_nodes
        job.exc_nodes = expand(found["exc_nodes"]) if "exc_nodes" in found else job.exc_nodes

    def close(self) -> None:
        """End the process."""
        self._lua.kill()
        self._lua.communicate()


def description(job: VirtualJob) -> dict[str, object]:
    """The fields of slurmctld's job description that its request sets."""
    request: Request = job.request
    options, found = job.options, dict[str, object]()
    if "nodes" in options or request.nodes_max is not None:
        found |= {"min_nodes": request.nodes_min, "max_nodes": request.nodes_max or request.nodes_min}
    found |= {key: int(options[name]) for key, name in _NUMBERS.items() if name in options}
    per_node = options.get("gpus-per-node") or options.get("gres", "").removeprefix("gpu:")
    for key, text in (
        ("tres_per_node", per_node), ("tres_per_job", options.get("gpus", "")),
        ("tres_per_task", options.get("gpus-per-task", "")), ("cpus_per_tres", options.get("cpus-per-gpu", "")),
        ("mem_per_tres", options.get("mem-per-gpu", "")),
    ):  # fmt: skip
        if text:
            found[key] = f"gres:gpu:{text}"
    if "exclusive" in options:
        found["shared"] = 0
    if job.limit_s is not None:
        found["time_limit"] = int(-(-job.limit_s // 60))
    if request.mem_per_node_mib is not None:
        found["min_mem_per_node"] = request.mem_per_node_mib
    if request.mem_per_cpu_mib:
        found["min_mem_per_cpu"] = request.mem_per_cpu_mib
    found |= {"partition": ",".join(job.partitions), "comment": job.comment, "name": options.get("job-name", "job")}
    for key, text in (("exc_nodes", fold(list(job.exc_nodes))), ("req_nodes", fold(list(job.req_nodes))),
                      ("features", job.features), ("prefer", job.prefer)):  # fmt: skip
        if text:
            found[key] = text
    return found


def _partition(partition: Partition) -> dict[str, object]:
    minutes = NO_VAL if partition.default_time_s is None else partition.default_time_s // 60
    return {
        "name": partition.name,
        "nodes": fold(list(partition.nodes)),
        "flag_default": int(partition.default),
        "default_time": minutes,
        "max_time": NO_VAL if partition.max_time_s is None else partition.max_time_s // 60,
    }


def _literal(value: object) -> str:
    """A value as Lua source, on one line; texts byte by byte, so that no text of a user is source."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"[{_literal(k)}]={_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, int | float):
        return repr(value)
    return '"' + "".join(f"\\{byte:03d}" for byte in str(value).encode()) + '"'
