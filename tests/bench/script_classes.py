# SPDX-License-Identifier: MIT
"""How often the script of a job shows its class, and how often that is right: labelled scripts of our own.

    python tests/bench/script_classes.py [--data DIR] [--json]

Each script of job_scripts.txt goes the way of a submission by palsub, without a word of its user and without history.
A job for CPUs (--exclusive without a word of GPUs) counts with the class by which it would be placed. With DIR
(the runs published with PAL are in pal/profiles) also what supports the measured classes: how much the times of
GPUs differ, each by its median over the median of all, and clock and power by the median of all runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median, pstdev
from typing import Any, NamedTuple

from slurm_pal.base.config import load
from slurm_pal.submit.argv import parse
from slurm_pal.submit.known import verdict
from slurm_pal.submit.options import build
from slurm_pal.submit.script import from_file

try:
    from slurm_pal.decide.request import for_class
except ImportError:  # an earlier version, to compare with
    for_class = None  # type: ignore[assignment]

FILE = Path(__file__).with_name("job_scripts.txt")
NONE = "none"


class Labelled(NamedTuple):
    """One script and the class that it supports."""

    kind: str
    wanted: str  # A, B, C or none
    name: str
    files: dict[str, str]  # job.sh and what lies beside it


def labelled() -> list[Labelled]:
    """The scripts of the file."""
    found = []
    for part in FILE.read_text(encoding="utf-8").split("\n=== ")[1:]:
        head, _, text = part.partition("\n")
        kind, wanted, name = head.split(" | ")
        script, *others = text.split("\n--- ")
        beside = {other.partition("\n")[0]: other.partition("\n")[2] for other in others}
        found.append(Labelled(kind, wanted, name, {"job.sh": script + "\n", **beside}))
    return found


def found_class(one: Labelled, folder: str) -> str:
    """The class by which the script's job would be placed."""
    for name, text in one.files.items():
        Path(folder, name).write_text(text, encoding="utf-8")
    line = parse(["job.sh"])
    script = from_file(os.path.join(folder, "job.sh"), None)
    config = load({"SLURM_PAL_PATHS_SNAPSHOT": os.path.join(folder, "snapshot")})
    known = verdict(("?", ""), parse([f"--chdir={folder}", "job.sh"]), script, config, {})
    request = build(line, {}, script)
    if for_class is not None:
        request = for_class(request, known.sensitivity, known.stage)
    elif request.shape is not None and not request.asks_gpus:
        return "A" if known.sensitivity == "?" else known.sensitivity  # it was placed like class A
    return NONE if request.leave or known.sensitivity == "?" else known.sensitivity


def judged() -> Iterator[tuple[Labelled, str]]:
    """Each script and the class found for it."""
    kept = dict(os.environ)
    try:
        for one in labelled():
            with tempfile.TemporaryDirectory() as folder:
                os.environ.update(XDG_STATE_HOME=folder, SLURM_CONF=os.path.join(folder, "slurm.conf"))
                yield one, found_class(one, folder)
    finally:
        os.environ.clear()
        os.environ.update(kept)


LIMIT_W, MAX_MHZ = 300.0, 1530.0
"""Of the V100 that some of the runs were on; the others have no sensors."""


def spread(path: Path) -> dict[str, Any]:
    """What one file of runs says about its application."""
    with open(path, newline="", encoding="utf-8") as stream:
        runs = [row for row in csv.DictReader(stream) if row["perf"]]
    times: dict[str, list[float]] = defaultdict(list)
    for row in runs:
        times[row["uuid"]].append(float(row["perf"]))
    medians = [median(of_one) for of_one in times.values()]
    relative = [one / median(medians) for one in medians]
    sensed = [row for row in runs if row.get("freq") and row.get("pwr")]
    return {
        "runs": path.stem.removesuffix("-agg"), "gpus": len(relative), "sd": round(pstdev(relative), 4),
        "slowest": round(max(relative), 3),
        "clock": round(median(float(row["freq"]) for row in sensed) / MAX_MHZ, 2) if sensed else None,
        "power": round(median(float(row["pwr"]) for row in sensed) / LIMIT_W, 2) if sensed else None,
    }  # fmt: skip


def main() -> int:
    """Judge and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    support = (
        [spread(path) for path in sorted((asked.data / "pal" / "profiles").glob("*-agg.csv"))] if asked.data else []
    )
    rows = [(one.kind, one.name, one.wanted, found) for one, found in judged()]
    decided = [row for row in rows if row[3] != NONE]
    right = sum(wanted == found for *_, wanted, found in decided)
    supported = sum(wanted != NONE for _, _, wanted, _ in rows)
    wrong = [row for row in rows if row[2] != row[3]]
    report: dict[str, Any] = {
        "schema": "pal.bench.script_classes/1", "scripts": len(rows), "decided": len(decided), "right": right,
        "supported": supported,
        "wrong": [dict(zip(("kind", "name", "wanted", "found"), row, strict=True)) for row in wrong],
        "support": support,
    }  # fmt: skip
    if asked.json:
        print(json.dumps(report))
        return 0
    for row in support:
        print("  ".join(f"{key} {value}" for key, value in row.items() if value is not None))
    for kind, name, wanted, found in wrong:
        print(f"{kind:<13} {name:<28} wanted {wanted:<5} found {found}")
    precision = right / len(decided) if decided else 1.0
    print(f"{len(rows)} scripts: decided {len(decided)}, right {right} (precision {precision:.2f}); ", end="")
    print(f"of {supported} that show a class {right} found (recall {right / supported:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
