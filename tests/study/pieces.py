# SPDX-License-Identifier: MIT
"""Pieces of long traces that fit a live lab: 36 jobs in a row, of up to 40 minutes and 32 GPUs, for `pal trial`.

    python tests/study/pieces.py OUT TRACE... [--load 0.8]

Of each trace one piece, OUT/NAME.csv with the trace's own columns: the one that is submitted in the shortest time, or
with --load the one that comes nearest to that load on 32 GPUs. Jobs that are longer or wider are left out before.
"""

from __future__ import annotations

import argparse
import csv
import os

COUNT, LONGEST_S, GPUS = 36, 2400.0, 32
NAMES = (("submit_time", "duration", "num_gpus"), ("submit_s", "ideal_s", "gpus"))
"""Columns of the traces of Sia-Philly, and of pal.trace/1."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("traces", metavar="TRACE", nargs="+")
    parser.add_argument("--load", type=float)
    asked = parser.parse_args()
    os.makedirs(asked.out, exist_ok=True)
    for path in asked.traces:
        with open(path, encoding="utf-8") as stream:
            lines = stream.read().splitlines()
        comments = [line for line in lines if line.startswith("#")]
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        submit, run, gpus = next(names for names in NAMES if names[0] in rows[0])
        fits = [row for row in rows if float(row[run]) <= LONGEST_S and int(row[gpus]) <= GPUS]
        fits.sort(key=lambda row: float(row[submit]))

        pieces = [fits[first : first + COUNT] for first in range(len(fits) - COUNT + 1)]
        spans_s = [max(1.0, float(part[-1][submit]) - float(part[0][submit])) for part in pieces]
        works_s = [sum(float(row[run]) * int(row[gpus]) for row in part) for part in pieces]
        loads = [work_s / GPUS / span_s for work_s, span_s in zip(works_s, spans_s, strict=True)]
        far = spans_s if asked.load is None else [abs(asked.load / load - 1) for load in loads]
        number = far.index(min(far))
        best = pieces[number]
        print(f"{os.path.basename(path)}: load {loads[number]:.2f}")
        begins_s = float(best[0][submit])
        with open(os.path.join(asked.out, os.path.basename(path)), "w", encoding="utf-8", newline="") as out:
            out.writelines(f"{line}\n" for line in comments)
            writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(row | {submit: f"{float(row[submit]) - begins_s:g}"} for row in best)


if __name__ == "__main__":
    main()
