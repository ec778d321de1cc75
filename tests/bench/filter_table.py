# SPDX-License-Identifier: MIT
"""Size of the filter's table, and what writing and reading it takes.

    python tests/bench/filter_table.py [--sizes 1000 10000] [--busy 0.02 0.7] [--labels 10000] [--script 1000]

Nodes of 8 GPUs, one partition. Written by Python, read by Lua as in slurmctld: the first
submission after a new table, and one of the later ones. Seconds on this machine, single runs. With
--labels the table holds that many labels of measured jobs, and the submissions are by one of their
users; --script is the length of their scripts in bytes. With --priced there are so many partitions more, with
prices, and each job names up to four of them with a goal.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

from filter_cost import script_of, table

from slurm_pal.filter.source import text_of

TIMING = Path(__file__).parents[1] / "lua" / "timing.lua"


def row(nodes: int, busy: float, labels: int, script: str, priced: int, folder: Path) -> str:
    for name in ("job_submit.lua", "pal.lua"):
        (folder / name).write_text(text_of(name))
    began = time.perf_counter()
    text = table(nodes, 8, busy, labels, priced)
    took_s = time.perf_counter() - began
    (folder / "pal_table.lua").write_bytes(text)
    argv = ["lua5.1", str(TIMING), str(folder / "job_submit.lua"), str(nodes), str(os.geteuid()), str(priced)]
    done = subprocess.run(argv, input=script, capture_output=True, text=True, check=True)
    first_ms, later_ms = map(float, done.stdout.split())
    return f"| {nodes} | {busy:.0%} | {len(text) / 1e6:.2f} | {took_s:.2f} | {first_ms:.1f} | {later_ms:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--busy", type=float, nargs="+", default=[0.02, 0.7])
    parser.add_argument("--labels", type=int, default=0)
    parser.add_argument("--script", type=int, default=10)
    parser.add_argument("--priced", type=int, default=0)
    args = parser.parse_args()
    script = "#!/bin/sh\n#PAL goal=cost\n" if args.priced else script_of(args.script)
    print("| nodes | GPUs in use | MB | made in, s | first call, ms | later calls, ms |\n|---|---|---|---|---|---|")
    for nodes in args.sizes:
        for busy in args.busy:
            with tempfile.TemporaryDirectory() as folder:
                print(row(nodes, busy, args.labels, script, args.priced, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
