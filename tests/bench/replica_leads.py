# SPDX-License-Identifier: MIT
"""The published setting and what a round scheduler with free moves could gain: tables of docs/reproduction.md.

Usage: replica_leads.py DATA

DATA is the folder with the reference traces and profiles. Ratios are geometric means over
five traces of the mean completion time, against Packed-S in the same profile without
backfill and without charges, unless said otherwise.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Callable

from slurm_pal.research.replica import blox_pal, published_policies
from slurm_pal.research.replica.active import RoundPolicy, RoundSettings
from slurm_pal.research.replica.ours import ours
from slurm_pal.simulate.inputs.pal_profile import CLASSES, Profile, draw, read_runs
from slurm_pal.simulate.inputs.pal_rows import PalRow, read_sia
from slurm_pal.simulate.profiles import LONGHORN

TRACES = (1, 2, 3, 4, 7)
PLAIN, FILL = RoundSettings(), RoundSettings(backfill=True)
BARRED = FILL._replace(barred={"A": 1.5})
Build = Callable[[Profile, RoundSettings], RoundPolicy]


def published(name: str) -> Build:
    return lambda profile, settings: published_policies.build(name, profile, settings)


SCENARIOS: list[tuple[str, Build, RoundSettings, str]] = [
    *(
        (f"{published_policies.POLICIES[name].artefact}", published(name), PLAIN, "")
        for name in published_policies.POLICIES
    ),
    ("Packed-NS + backfill", published("packed-ns"), FILL, ""),
    ("PM-First + backfill", published("pm-first"), FILL, ""),
    ("PAL + backfill", published("pal"), FILL, ""),
    ("PAL + backfill, class A off GPUs > 1.5", published("pal"), BARRED, ""),
    ("Packed-NS + backfill, class A off GPUs > 1.5", published("packed-ns"), BARRED, ""),
    ("ours, queue order", lambda profile, settings: ours(profile, by_response=False), FILL, ""),
    ("ours, backfill by response ratio", lambda profile, settings: ours(profile), FILL, ""),
    ("PAL, every start and change charged 60 s", published("pal"), PLAIN._replace(start_cost_s=60.0), "charged"),
    ("PAL, every start and change charged 300 s", published("pal"), PLAIN._replace(start_cost_s=300.0), "charged"),
]


def ratio(
    rows: dict[int, list[PalRow]], profile: Profile, build: Build, settings: RoundSettings, charged: bool
) -> float:
    """Geometric mean over the traces; the baseline pays the same charge where there is one."""
    base = settings if charged else PLAIN
    logs = []
    for jobs in rows.values():
        mine = blox_pal.run(jobs, build(profile, settings), profile, settings).figures.avg_jct_s
        theirs = blox_pal.run(
            jobs, published_policies.build("packed-s", profile, base), profile, base
        ).figures.avg_jct_s
        logs.append(math.log(mine / theirs))
    return math.exp(statistics.fmean(logs))


def main() -> None:
    data = sys.argv[1]
    rows = {n: read_sia(os.path.join(data, "traces", f"workload-{n}.csv")) for n in TRACES}
    runs = {c: read_runs(os.path.join(data, "profiles", name)) for c, name in zip(CLASSES, LONGHORN, strict=True)}
    raw, medians = draw(runs, kind="raw"), draw(runs, kind="medians")
    print("| policy | profile as published | per-GPU medians |\n|---|---|---|")
    for name, build, settings, charged in SCENARIOS:
        cells = [f"{ratio(rows, profile, build, settings, bool(charged)):.3f}" for profile in (raw, medians)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
