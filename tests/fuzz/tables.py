# SPDX-License-Identifier: MIT
"""Fuzzes the readers of our files with bytes that are not ours: the filter's table, the snapshot, labels,
throughputs, traces. A reader says what is wrong, in one line; the filter leaves the job alone.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

from common import Part, mutate, run

from slurm_pal.base.errors import PalError, one_line
from slurm_pal.filter.source import text_of
from slurm_pal.simulate import inputs
from slurm_pal.simulate.throughput_file import read_throughputs
from slurm_pal.store import labels, localities, lua_table, snapshot

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NOW_S = 1_763_712_345
BATCH = 100
"""Tables for each start of Lua."""

RECORDS = {
    "settings": "pass_s=3 lease_max_s=600 run_share=0.5 run_s=3600 barred=1.05 wait_share=0.5 locality=1.7",
    "default": "gpu", "app.resnet50": "A", "prefer.A": "pal_A_v0|pal_A_v1", "pool.gpu.-": "1", "pool.gpu.v100": "1",
    "node.1": "n0 cpus=16 mem=64000 gpus=4 free=4 feat=ib,old A=1.001,1.002,0.98,1 B=1,1,1,1 C=1,1,1,1",
    "node.2": "n1 cpus=16 mem=64000 gpus=4 free=4 feat=ib A=0.95,0.96,0.98,1 B=1,1,1,1 C=1,1,1,1",
    "node.3": "n3 cpus=16 mem=64000 gpus=4 free=4 feat= A=1.2,1.2,1.2,1.2 B=1,1,1,1 C=1.3,1,1,1",
    "list.1.A.1.1": "131 67 130 66 129 65 128 64", "list.1.A.2.1": "131 67 130 66 129 65 128 64 192",
    "list.1.A.1.2": "130 66 129 65 128 64", "list.1.A.1.x": "128 64", "list.1.C.1.1": "192 128 64",
    "plain.1.A.2": "1.012", "slow.1.A.4": "n3", "better.1.A.4": "2",
}  # fmt: skip
LUA_ERROR = re.compile(r"\.lua:\d+:")
UNSET, UNSET_16 = 4294967294, 65534
JOB: dict[str, object] = {
    "min_nodes": UNSET, "max_nodes": UNSET, "num_tasks": UNSET, "ntasks_per_node": UNSET_16, "ntasks_per_gpu": UNSET_16,
    "ntasks_per_tres": UNSET_16, "cpus_per_task": UNSET_16, "pn_min_cpus": UNSET_16, "shared": UNSET_16,
    "time_limit": 120, "begin_time": 0, "priority": UNSET, "het_job_offset": UNSET, "req_switch": UNSET,
    "contiguous": 0, "script": "#!/bin/sh\n#PAL class=A\n", "environment": {},
}  # fmt: skip
"""What slurmctld shows of a plain batch job."""
KNOWN_NODES = {f"n{i}" for i in range(8)}
TRACES = (
    "JobID|Submit|Start|End|ElapsedRaw|State|AllocTRES|NNodes|Timelimit|JobName\n"
    "7|2026-01-01T00:00:00|2026-01-01T00:00:05|2026-01-01T00:01:05|60|COMPLETED|gres/gpu=2,node=1|1|1:00:00|x\n"
    "8_1|2026-01-01T00:00:00|Unknown|Unknown|0|PENDING||1|UNLIMITED|it's|mine\n",
    "job_id,num_gpus,submit_time,duration,model\n1,2,0,100,resnet50\n",
    "; Version: 2.2\n1 0 5 60 2 -1 -1 2 100 -1 1 1 1 1 1 1 -1 -1\n",
)
RATES = ("model,scale_factor,v100,k80\nresnet50,1,2.5,0.5\n", '{"v100": {"(\'resnet50\', 1)": {"null": 2.5}}}')


def literal(value: object) -> str:
    """A value as Lua source."""
    if isinstance(value, dict):
        return "{" + ",".join(f"[{literal(key)}]={literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ",".join(map(literal, value)) + "}"
    if isinstance(value, int):
        return str(value)
    raw = value if isinstance(value, bytes) else str(value).encode()
    return '"' + "".join(f"\\{byte:03d}" for byte in raw) + '"'


# -- the filter's table, read by Lua ----------------------------------------------------------


class Tables(NamedTuple):
    """What one Lua reads, a table a second, each followed by a job."""

    tables: list[bytes]
    gpus: int


def make_filter(rng: random.Random) -> Tables:
    return Tables([_table(rng) for _ in range(BATCH)], rng.randint(1, 4))


def _table(rng: random.Random) -> bytes:
    good = lua_table.encode(lua_table.Header(rng.randrange(10**6), NOW_S, 600.0, "daemon"), RECORDS)
    return mutate(rng, good, rng.choice((1, 2, 6)), 20_000)


def check_filter(made: Tables) -> None:
    """Every job is taken; the filter names only nodes of the partition, and no error of Lua's is logged."""
    path = os.path.join(FOLDER, "pal_table.lua")
    steps: list[object] = []
    for number, table in enumerate(made.tables):
        steps.append(
            {"now": NOW_S + number + 1, "write": [path, table], "job": JOB | {"tres_per_node": f"gres:gpu:{made.gpus}"}}
        )
    partitions = {"gpu": {"name": "gpu", "nodes": "n[0-7]", "flag_default": 1, "default_time": UNSET}}
    argv = ["lua5.1", os.path.join(ROOT, "tests", "lua", "harness.lua"), os.path.join(FOLDER, "job_submit.lua")]
    scenario = literal({"steps": steps, "partitions": partitions}).encode()
    done = subprocess.run(argv, input=scenario, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    verdicts = 0
    for line in done.stdout.decode(errors="replace").splitlines():
        index, _, rest = line.partition("\t")
        key, _, value = rest.partition("\t")
        verdicts += key == "verdict" and value == "0"
        wrong = key == "log_error" and (LUA_ERROR.search(value) is not None or "stopped" in value)
        named = value.split(",") if key in ("set_req_nodes", "set_exc_nodes") else []
        if wrong or not KNOWN_NODES.issuperset(named):
            raise AssertionError(
                f"{key} {value} by table {made.tables[int(index) - 1]!r}" if index.isdecimal() else line
            )
    assert verdicts == len(made.tables), f"{verdicts} of {len(made.tables)} jobs were taken"


# -- readers in Python -------------------------------------------------------------------------


def make_table(rng: random.Random) -> bytes:
    return _table(rng)


def check_table(raw: bytes) -> None:
    path = _file("table", raw)
    try:
        table = lua_table.read_table(path)
    except PalError as error:
        _is_one_line(error)
    else:
        assert lua_table.encode(table.header, table.records)
    try:
        lua_table.read_header(path)
    except PalError as error:
        _is_one_line(error)


def make_snapshot(rng: random.Random) -> bytes:
    scores = [
        snapshot.GpuScore(
            f"n{i // 2}", i % 2, f"GPU-{i}", "V100", {"A": 1.0 + i / 9}, {"A": f"v{i}"}, 1.0, 0.5, ("ecc",)
        )
        for i in range(rng.randint(0, 6))
    ]
    good = snapshot.encode(scores, cluster="c", epoch=7, now_s=1.0)
    if rng.random() < 0.3:
        return mutate(rng, good)
    # The checksum holds, so that what it covers is read.
    changed = mutate(rng, good[: -snapshot.CHECKSUM_BYTES], 3)
    if rng.random() < 0.5:  # and the length
        head, _, body = changed.partition(b"\n")
        start, found, rest = head.partition(b'"bytes": ')
        digits = len(rest) - len(rest.lstrip(b"0123456789"))
        changed = start + found + str(len(body)).encode() * bool(found) + rest[digits:] + b"\n" + body
    return changed + zlib.crc32(changed).to_bytes(snapshot.CHECKSUM_BYTES, "little")


def check_snapshot(raw: bytes) -> None:
    try:
        read = snapshot.read(_file("snapshot", raw))
    except PalError as error:
        _is_one_line(error)
        return
    for row in range(len(read)):
        read.gpu(row)
    for node in read.nodes[:20]:
        read.slowdown("A", node, 0)


def make_labels(rng: random.Random) -> bytes:
    row = {"key": "n:0123456789abcdef", "class": "A", "jobs": 3, "seen": [["A", 0.9, 1763712345.0], ["B", 0.4, 1.0]]}
    good = "\n".join(
        [json.dumps({"schema": labels.SCHEMA}), *(json.dumps(row | {"key": f"n:{i}"}) for i in range(3)), ""]
    )
    return mutate(rng, good.encode())


def check_labels(raw: bytes) -> None:
    path = _file("labels", raw)
    for read in (lambda: labels.read(path), lambda: labels.lookup(path, ["n:1", 'x"}'])):
        try:
            read()
        except PalError as error:
            _is_one_line(error)


def make_localities(rng: random.Random) -> bytes:
    rows = [{"key": f"n0123456789abcde{k}:8", "penalties": [1.3, 1.9], "at_s": 1763712345.0} for k in range(3)]
    return mutate(rng, "\n".join([*map(json.dumps, [{"schema": localities.LOCALITIES.schema}, *rows]), ""]).encode())


def check_localities(raw: bytes) -> None:
    path = _file("localities", raw)
    for read in (lambda: localities.read(path), lambda: localities.lookup(path, "n0123456789abcde1:8")):
        try:
            read()
        except PalError as error:
            _is_one_line(error)


def make_trace(rng: random.Random) -> bytes:
    return mutate(rng, rng.choice(TRACES).encode())


def check_trace(raw: bytes) -> None:
    try:
        trace = inputs.read(_file("trace", raw))
    except PalError as error:
        _is_one_line(error)
        return
    assert all(str(row).isprintable() for row in trace.bad), trace.bad


def make_rates(rng: random.Random) -> tuple[str, bytes]:
    place = rng.randrange(2)
    return ("rates.csv", "rates.json")[place], mutate(rng, RATES[place].encode())


def check_rates(made: tuple[str, bytes]) -> None:
    try:
        read_throughputs(_file(*made))
    except PalError as error:
        _is_one_line(error)


def _file(name: str, raw: bytes) -> str:
    path = os.path.join(FOLDER, name)
    with open(path, "wb") as stream:
        stream.write(raw)
    return path


def _is_one_line(error: Exception) -> None:
    assert one_line(error).isprintable() and "\n" not in one_line(error)


PARTS = {
    "filter": Part(make_filter, check_filter, BATCH),
    **dict.fromkeys(("table", "table again"), Part(make_table, check_table)),
    **dict.fromkeys(("snapshot", "snapshot again"), Part(make_snapshot, check_snapshot)),
    "labels": Part(make_labels, check_labels),
    "localities": Part(make_localities, check_localities),
    "trace": Part(make_trace, check_trace),
    "rates": Part(make_rates, check_rates),
}
FOLDER = ""


def main(arguments: list[str] | None = None) -> int:
    global FOLDER
    with tempfile.TemporaryDirectory() as FOLDER:
        for name in ("job_submit.lua", "pal.lua"):
            Path(FOLDER, name).write_text(text_of(name))
        return run("tables", PARTS, arguments)


if __name__ == "__main__":
    sys.exit(main())
