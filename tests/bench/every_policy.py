# SPDX-License-Identifier: MIT
"""Every policy for unequal GPUs on every trace at hand, moves charged and free: the table of docs/allocation.md.

Usage: every_policy.py [--data DIR] [--traces NAME,...] [--policies NAME,...] [--move-cost 180] [--keep FILE].
DIR has gavel/ and pal/. Gavel's traces on 12 GPUs of each of three types, all alike; Sia-Philly on 64 GPUs of three
types with nodes and slowdowns. One line for each policy; runs are kept in FILE (JSON) and not repeated. About
an hour of processor time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from sia_rounds import workload

from slurm_pal.allocation.steady import PAL_SIA
from slurm_pal.base.errors import PalError, one_line
from slurm_pal.research.replica.gavel_jobs import parse_types
from slurm_pal.research.unequal_comparison import UnequalComparison, UnequalTask
from slurm_pal.research.unequal_jobs import UnequalWorkload, of_rows
from slurm_pal.research.unequal_policies import ELASTIC, POLICIES, check
from slurm_pal.simulate.inputs.gavel import read_rows
from slurm_pal.simulate.known_throughputs import read_known
from slurm_pal.simulate.profiles import Source, profile_of

GPUS = "v100:12,p100:12,k80:12"
LEFT_OUT = ("gavel:cost", "gavel:cost-slo", "gavel:isolated", "gavel:proportional")
"""By default: those that seek another thing than speed, and the two references."""


class Trace(NamedTuple):
    make: Callable[[Path], UnequalWorkload]
    source: Source | None = None


def gavels(name: str) -> Callable[[Path], UnequalWorkload]:
    def make(data: Path) -> UnequalWorkload:
        kinds = parse_types(GPUS)
        known = read_known(str(data / "gavel" / "throughputs_null.csv"), 0.0)
        return of_rows(name, read_rows(str(data / "gavel" / "traces" / f"{name}.trace")), kinds, known, 1.5)

    return make


TRACES = {
    "static, 1 GPU": Trace(gavels("static_single_n100_s0")),
    "static, gangs": Trace(gavels("static_multi_n100_s0")),
    "arriving, 1 GPU": Trace(gavels("cont_single_lam1800_n400_s0")),
    "arriving, gangs": Trace(gavels("cont_multi_lam4500_n300_s0")),
    **{
        f"Sia-Philly {k}": Trace(lambda data, k=k: workload(data / "pal", str(k)), profile_of("drawn"))
        for k in range(1, 5)
    },
}


def names() -> list[str]:
    """Of each policy that can be run one, but for references, duplicates, and those that change what jobs ask for."""
    same = {"gavel:makespan+nonpreemptive"}
    return [
        name
        for name in POLICIES
        if name not in LEFT_OUT and name not in same and not name.startswith(f"{PAL_SIA}-") and ELASTIC not in name
    ]


class Cell(NamedTuple):
    jct_h: float
    makespan_h: float
    worst_ratio: float
    restarts: float  # per job


def cell(work: UnequalWorkload, source: Source | None, name: str, move_cost_s: float) -> Cell | str:
    """The figures, or why there are none."""
    try:
        check(name, work)
        compared = UnequalComparison(work, (name,), move_cost_s, source=source)
        row = compared.run(UnequalTask(name, 1), lambda done, total: True).figures
    except PalError as error:
        return one_line(error)
    return Cell(row.avg_jct_s / 3600, row.makespan_s / 3600, row.worst_finish_time_ratio, row.moves / len(work.jobs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data")
    parser.add_argument("--traces", default=";".join(TRACES), help="separated by ;")
    parser.add_argument("--policies", default=",".join(names()))
    parser.add_argument("--move-cost", type=float, default=180.0)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    kept = json.loads(given.keep.read_text()) if given.keep and given.keep.exists() else {}
    bounds: dict[str, float] = {}
    policies, traces = given.policies.split(","), given.traces.split(";")
    for trace in traces:
        work = TRACES[trace].make(given.data)
        bounds[trace] = UnequalComparison(work, (), 0.0).bound_s(1) / 3600
        for name in policies:
            for cost_s in (given.move_cost, 0.0):
                key = f"{trace}|{name}|{cost_s:g}"
                if key in kept:
                    continue
                kept[key] = cell(work, TRACES[trace].source, name, cost_s)
                print(key, kept[key], file=sys.stderr, flush=True)
                if given.keep:
                    given.keep.write_text(json.dumps(kept))
    print(table(kept, policies, traces, bounds, given.move_cost))


def table(
    kept: dict[str, list[float] | str], policies: list[str], traces: list[str], bounds: dict[str, float], cost_s: float,
) -> str:  # fmt: skip
    """Of each trace a column: mean completion (free moves) / makespan / worst finish-time ratio / restarts per job."""
    lines = ["| policy | " + " | ".join(traces) + " |", "|---" * (len(traces) + 1) + "|"]
    for name in policies:
        row = []
        for trace in traces:
            charged, free = kept[f"{trace}|{name}|{cost_s:g}"], kept[f"{trace}|{name}|0"]
            if isinstance(charged, str) or isinstance(free, str):
                row.append("-")
                continue
            jct, end, worst, restarts = charged
            row.append(f"{jct:.3g} ({free[0]:.3g}) / {end:.3g} / {worst:.3g} / {restarts:.1f}")
        lines.append(f"| `{name}` | " + " | ".join(row) + " |")
    lines.append("| bound of the makespan | " + " | ".join(f"{bounds[trace]:.3g}" for trace in traces) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
