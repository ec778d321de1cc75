# SPDX-License-Identifier: MIT
"""Who goes first among the jobs that may start now without delaying the reserved one.

EASY backfill gives the first job of the queue a reservation and lets any other start that
does not delay it; which of the others is tried first is free. Nobody starves by this
order, since the queue itself, and with it the reservation, is untouched.
"""

from __future__ import annotations


def response_ratio(waited_s: float, expected_run_s: float, gpus: int) -> float:
    """Larger goes first: (waited + expected run) / expected run, times the GPUs.

    Short jobs, jobs that have waited long for their length, and wide jobs, for which a
    gap of that width comes seldom. The ratio is the one of highest-response-ratio-next.
    """
    return gpus * (1.0 + waited_s / max(expected_run_s, 1.0))
