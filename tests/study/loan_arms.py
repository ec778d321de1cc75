# SPDX-License-Identifier: MIT
"""What lending brings and costs, in the twin, over several days of made-up owners and guests.

    python tests/study/loan_arms.py [--days 12]

The days and arms of tests/bench/loans_live.py; one row for each arm, and for the lending arm with other settings:
quantiles of past demand, and guests that leave for what owners are only expected to need, as published (Aryl).
Means over the days, times in seconds of the trace; in brackets the least and the most of the days' ratios to `preempt`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from unittest.mock import patch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "bench"))

import loans_live

from slurm_pal.loans import lend
from slurm_pal.trial.owners import LOAN, NO_LOAN, PREEMPT, Shared, shared

ROWS: Mapping[str, tuple[str, Mapping[str, str], bool]] = {
    "noloan": (NO_LOAN, {}, False),
    "preempt": (PREEMPT, {}, False),
    "loan": (LOAN, {}, False),
    "loan, expected needs stop guests": (LOAN, {}, True),
    "loan, quantile .95": (LOAN, {"loan.quantile": "0.95"}, False),
    "loan, quantile .5": (LOAN, {"loan.quantile": "0.5"}, False),
}
"""Name -> arm, settings, whether guests leave every node that closes."""
SHOWN = ("owner_p50_s", "owner_p99_s", "owner_most_s", "lost_gpu_s", "restarts", "usage", "guest_jct_s")


def day(arm: str, changed: Mapping[str, str], every: bool, seed: int) -> Shared:
    """One day of one row."""
    own = loans_live.settings_of
    empty = (lambda site, guests, closed, reserve: len(closed)) if every else lend._to_empty
    with (
        patch.object(loans_live, "settings_of", lambda name: {**own(name), **changed}),
        patch.object(lend, "_to_empty", empty),
    ):
        trace = loans_live.trace_of(300, seed)
        found = loans_live.replayed(arm, trace, seed, loans_live.past(trace, seed))
        seen = loans_live.owners.predicted(trace, found)
        return shared(seen, loans_live.NODES * loans_live.GPUS, found.lost_gpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=12)
    days = parser.parse_args().days
    found = {name: [day(*row, seed) for seed in range(1, days + 1)] for name, row in ROWS.items()}
    for name, figures in found.items():
        texts = []
        for key in SHOWN:
            values, usual = [getattr(one, key) for one in figures], [getattr(one, key) for one in found["preempt"]]
            ratios = [mine / other for mine, other in zip(values, usual, strict=True) if other]
            text = f"{sum(values) / days:.{3 if key == 'usage' else 1 if key == 'restarts' else 0}f}"
            texts.append(f"{key} {text} [{min(ratios):.2f}, {max(ratios):.2f}]" if ratios else f"{key} {text}")
        print(f"{name}: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
