# SPDX-License-Identifier: MIT
"""How often the self-test is right on emulated GPUs: healthy ones, those drawn slow, and each fault.

    python tests/bench/selftest_faults.py [--gpus 96] [--each 8]

Prints one JSON line for each kind: how many were tested, how many failed, and how many of those named the step that
the fault belongs to. Device time is virtual, so it takes about a quarter of a second for each.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

from slurm_pal.emulation.gpus import draw_registry, load_registry, set_fault, write_registry
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import select
from slurm_pal.profiling.selftest.checks import FAILED
from slurm_pal.profiling.selftest.run import Plan, Report, selftest

FAULTS: dict[str, tuple[float | bool, str]] = {
    "foreign_process": (True, "device"), "missing": (True, "device"), "mig": (True, "device"),
    "ecc": (True, "benchmarks"), "error": (True, "benchmarks"), "hang": (True, "benchmarks"),
    "noisy": (True, "benchmarks"), "drift": (1.25, "levels"),
    "throttle": (1.15, "regime"), "thermal": (1.15, "benchmarks"), "power_brake": (1.15, "regime"),
    "pcie": (2.0, "benchmarks"), "host": (1.5, "levels"),
}  # fmt: skip
"""Fault -> its size, and the step that should name it."""
GPUS_PER_NODE = 8
OUTLIER = 1.1
HANG_S = 2.0


def test(path: str, node: str, index: int, seed: int) -> Report:
    setting = Setting("emu", path, seed, 0.0)
    return selftest(Plan(setting, node, index, (), select(""), 10, 460.0, HANG_S), lambda text: None)


def steps(report: Report) -> set[str]:
    return {check.step for check in report.checks if check.verdict == FAILED}


def show(kind: str, reports: list[Report], named: int, began_s: float) -> None:
    failed = sum(report.verdict == FAILED for report in reports)
    each_s = (time.monotonic() - began_s) / max(1, len(reports))
    row = {"kind": kind, "tested": len(reports), "failed": failed, "right_step": named, "s_each": round(each_s, 2)}
    print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", type=int, default=96, help="without a fault")
    parser.add_argument("--each", type=int, default=8, help="of each fault")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "gpus.json")
        nodes = [f"n{i}" for i in range(-(-options.gpus // GPUS_PER_NODE))]
        write_registry(path, draw_registry(nodes, GPUS_PER_NODE, 11))
        gpus = load_registry(path).gpus[: options.gpus]
        for kind, chosen in (
            ("healthy", [g for g in gpus if g.slowdown["A"] < OUTLIER]),
            ("drawn slow (1.1 to 1.5)", [g for g in gpus if g.slowdown["A"] >= OUTLIER]),
        ):
            began_s = time.monotonic()
            reports = [test(path, g.node, g.index, seed) for seed, g in enumerate(chosen)]
            show(kind, reports, sum("levels" in steps(report) for report in reports), began_s)
            for report in reports if kind == "healthy" else []:
                for check in report.checks:
                    if check.verdict == FAILED:
                        print(json.dumps({"wrongly": check.name, "value": check.value, "text": check.text}), flush=True)
        healthy = [g for g in gpus if g.slowdown["A"] < OUTLIER][: options.each]
        for fault, (value, step) in FAULTS.items():
            began_s, reports = time.monotonic(), []
            for seed, gpu in enumerate(healthy):
                set_fault(path, gpu.node, gpu.index, fault, value)
                reports.append(test(path, gpu.node, gpu.index, seed))
                set_fault(path, gpu.node, gpu.index, fault, None)
            show(
                f"{fault} {value if value is not True else ''}".strip(),
                reports,
                sum(step in steps(r) for r in reports),
                began_s,
            )


if __name__ == "__main__":
    main()
