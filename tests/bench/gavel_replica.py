# SPDX-License-Identifier: MIT
"""The replica of Gavel's simulator against the figures of the published one.

Usage: gavel_replica.py DATA [PATTERN]

DATA is the folder with Gavel's throughput table, its traces and expected_seed0.csv (its
README says where they come from); PATTERN takes only the traces with it in their names. All rows
but the paper-scale traces take about a minute together. CPU time is of this process.
"""

from __future__ import annotations

import csv
import os
import sys
import time

from slurm_pal.research.replica.gavel_jobs import parse_types, workload
from slurm_pal.research.replica.gavel_published import rules_of
from slurm_pal.research.replica.gavel_simulator import GavelSettings, run
from slurm_pal.simulate.inputs.gavel import read_rows
from slurm_pal.simulate.throughput_file import read_throughputs

NAMES = {
    "fifo(fixed)": "gavel:fifo", "fifo_perf": "gavel:fifo-perf", "isolated": "gavel:isolated",
    "max_min_fairness": "gavel:max-min-agnostic", "max_min_fairness_perf": "gavel:max-min",
    "finish_time_fairness": "gavel:ftf-agnostic", "finish_time_fairness_perf": "gavel:ftf",
    "min_total_duration": "gavel:makespan-agnostic", "min_total_duration_perf": "gavel:makespan",
    "max_sum_throughput_perf": "gavel:max-sum", "allox": "gavel:allox", "gandiva": "gavel:gandiva",
}  # fmt: skip
"""Name in the file -> ours."""

WINDOWS = {
    "cont_single_lam2400_n400_s0": (100, 300), "cont_single_lam1800_n400_s0": (100, 300),
    "cont_multi_lam6000_n300_s0": (80, 220), "paper_cont_single_rate5p6_n5600_s0": (4000, 5000),
}  # fmt: skip


def main() -> None:
    data, pattern = sys.argv[1], (sys.argv[2:] or [""])[0]
    table = read_throughputs(os.path.join(data, "simulation_throughputs.json"))
    with open(os.path.join(data, "expected_seed0.csv"), newline="", encoding="utf-8") as stream:
        expected = [row for row in csv.DictReader(stream) if row["policy"] in NAMES and pattern in row["trace"]]
    print("| trace | policy | JCT h | % | p99 h | % | makespan h | % | util | leases extended | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in expected:
        path = os.path.join(data, "traces", row["trace"] + ".trace")
        if not os.path.exists(path):
            continue
        gpus = 36 if row["trace"].startswith("paper") else 12
        work = workload(read_rows(path), parse_types(f"v100:{gpus},p100:{gpus},k80:{gpus}"), table)
        name, began_s = NAMES[row["policy"]], time.process_time()
        found = run(work, name, rules_of(name, work, 0), GavelSettings(window=WINDOWS.get(row["trace"]))).figures
        cells = [
            f"{value / 3600:.4f} | {100 * (value / 3600 / float(row[column]) - 1):+.3f}"
            for value, column in (
                (found.avg_jct_s, "avg_jct_h"), (found.p99_jct_s, "p99_jct_h"), (found.makespan_s, "makespan_h")
            )
        ]  # fmt: skip
        spent_s = time.process_time() - began_s
        tail = f"{found.utilisation:.4f} | {found.extended:.2f} | {spent_s:.1f}"
        print(f"| {row['trace']} | {name} | {' | '.join(cells)} | {tail} |", flush=True)


if __name__ == "__main__":
    main()
