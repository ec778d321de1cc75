# SPDX-License-Identifier: MIT
"""What became of the jobs of an arm, from the lines that they wrote (job.sh). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from slurm_pal.base.errors import DataError
from slurm_pal.base.numbers import digits

COMPLETED, TIMEOUT, LOST = "COMPLETED", "TIMEOUT", "LOST"
_ENDS = {"end": COMPLETED, "timeout": TIMEOUT, "stop": LOST, "start": LOST, "lost": LOST}


class RanJob(NamedTuple):
    """One job of an arm. Moments are s of the trace, from its first submission."""

    number: int
    submit_s: float
    start_s: float  # first start
    end_s: float
    node: str  # where it ended: node:indexes joined by +
    factor: float  # slowdown x locality there
    moves: int  # starts after the first one
    end: str  # COMPLETED, TIMEOUT or LOST: it did not end by itself
    ran_s: float = 0.0  # all its runs together

    @property
    def jct_s(self) -> float:
        return self.end_s - self.submit_s


def ran(number: int, lines: Sequence[str], submit_s: float, boot_s: float, compress: float) -> RanJob:
    """Read what one job wrote. `submit_s` and `boot_s` are s of the lab: its submission since the first one of the
    trace, and the first submission since the boot. Raises DataError for a job that never started.
    """
    events = [line.split() for line in lines if line.strip()]
    starts = [words for words in events if words[0] == "start"]
    if not starts or any(digits(words[1]) is None for words in events):
        raise DataError(f"job {number} left no times in {len(lines)} lines: it never got GPUs, or its script failed")
    factor, node = starts[-1][2:4]

    def moment_s(words: Sequence[str]) -> float:
        return round((int(words[1]) / 100 - boot_s) * compress, 1)

    return RanJob(
        number, round(submit_s * compress, 1), moment_s(starts[0]), moment_s(events[-1]), node, float(factor),
        len(starts) - 1, _ENDS.get(events[-1][0], LOST), _ran_s(events) * compress,
    )  # fmt: skip


def _ran_s(events: Sequence[Sequence[str]]) -> float:
    """From each start to what follows it, s of the lab."""
    return sum((int(then[1]) - int(words[1])) / 100 for words, then in pairwise(events) if words[0] == "start")


def from_row(row: Mapping[str, object]) -> RanJob:
    """A job as `_asdict` wrote it. Raises DataError."""
    try:
        kinds = (int, float, float, float, str, float, int, str, float)
        known = {"ran_s": 0.0, **row}  # trials of 0.1 do not have it
        return RanJob(*(kind(str(known[name])) for kind, name in zip(kinds, RanJob._fields, strict=True)))
    except (KeyError, ValueError) as error:
        raise DataError(f"a job of the trial cannot be read: {error!r}") from None
