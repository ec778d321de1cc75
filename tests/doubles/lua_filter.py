# SPDX-License-Identifier: MIT
"""Run the Lua filters outside Slurm, with jobs as slurmctld shows them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_pal.filter.source import PARTS, text_of

ROOT = Path(__file__).parents[2]
NO_VAL, NO_VAL16 = 4294967294, 65534
NOW_S = 1_763_712_345
JOB: dict[str, object] = {
    "min_nodes": NO_VAL, "max_nodes": NO_VAL, "num_tasks": NO_VAL, "ntasks_per_node": NO_VAL16,
    "ntasks_per_gpu": NO_VAL16, "ntasks_per_tres": NO_VAL16, "cpus_per_task": NO_VAL16, "pn_min_cpus": NO_VAL16,
    "shared": NO_VAL16, "time_limit": NO_VAL, "begin_time": 0, "priority": NO_VAL, "het_job_offset": NO_VAL,
    "req_switch": NO_VAL, "contiguous": 0, "script": "#!/bin/sh\ntrue\n", "environment": {},
}  # fmt: skip
"""What slurmctld 22.05 shows of `sbatch --wrap true`: numbers that are not set have special values."""
PARTITIONS = {"gpu": {"name": "gpu", "nodes": "n[0-3]", "flag_default": 1, "default_time": NO_VAL}}
ESCAPED = {byte: f"\\{byte:03d}" for byte in range(256) if not 32 <= byte < 127 or chr(byte) in '"\\'}
"""What Lua's source has of bytes that do not stand for themselves in it."""


class Seen(NamedTuple):
    """What one step did: fields that were set, the verdict and log lines, by key."""

    values: dict[str, str]
    logs: list[str]

    @property
    def mark(self) -> dict[str, str]:
        """The fields of the mark on the job."""
        text = self.values.get("set_admin_comment", self.values.get("set_comment", "")).split(" ")[-1]
        return dict(pair.split("=", 1) for pair in text.removeprefix("pal:").split(";") if pair)


def literal(value: object) -> str:
    """A Python value as Lua source."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"[{literal(k)}]={literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "{" + ",".join(map(literal, value)) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    raw = value if isinstance(value, bytes) else str(value).encode()
    return '"' + raw.decode("latin-1").translate(ESCAPED) + '"'


def install(folder: Path) -> Path:
    """The filters as a site has them, in a folder."""
    for name in ("job_submit.lua", "cli_filter.lua", "pal.lua"):
        (folder / name).write_text(text_of(name))
    (folder / "pal_table.public.lua").symlink_to("pal_table.lua")  # where nothing is known of jobs they are the same
    return folder


def parts() -> dict[str, str]:
    """Part of pal.lua -> its text."""
    return {part: (ROOT / "etc" / "filter" / f"{part}.lua").read_text() for part in PARTS}


def run(
    folder: Path,
    steps: Sequence[Mapping[str, object]],
    *,
    filter_name: str = "job_submit.lua",
    partitions: Mapping[str, object] = PARTITIONS,
    before: str = "",
) -> list[Seen]:
    """Take the steps one after another in one Lua; the result of each, that of loading first."""
    lua = shutil.which("lua5.1")
    if lua is None:
        pytest.skip("lua5.1 is not installed: apt-get install lua5.1")
    scenario: dict[str, object] = {"steps": list(steps), "partitions": partitions}
    if before:
        scenario["before"] = before
    done = subprocess.run(
        [lua, str(ROOT / "tests" / "lua" / "harness.lua"), str(folder / filter_name)],
        input=literal(scenario), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = [Seen({}, []) for _ in range(len(steps) + 1)]
    for line in done.stdout.splitlines():
        index, key, value = line.split("\t", 2)
        step = seen[0 if index == "-" else int(index)]
        if key.startswith("log_"):
            step.logs.append(f"{key[4:]}: {value}")
        else:
            step.values[key] = value
    return seen


def job(now_s: int = NOW_S, **fields: object) -> dict[str, object]:
    """A step: one batch job with these fields."""
    return {"now": now_s, "job": JOB | fields}
