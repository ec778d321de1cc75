# SPDX-License-Identifier: MIT
"""The columns of a `sacct --parsable2` export, and how a line is cut into them.

sacct puts `|` between columns and does not escape a `|` in a value. Only texts that
users choose freely can hold one, so a line with too many cells can be put together
again where the job name is the only such column.
"""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.inputs.collect import Unusable, shown

SEPARATOR = "|"
NAME = "jobname"

PLAIN = frozenset(
    {
        "alloccpus", "allocgres", "allocnodes", "alloctres", "cputime", "cputimeraw", "derivedexitcode", "elapsed",
        "elapsedraw", "eligible", "end", "exitcode", "flags", "jobid", "jobidraw", "ncpus", "nnodes", "ntasks",
        "partition", "planned", "priority", "reqcpus", "reqgres", "reqmem", "reqnodes", "reqtres", "reserved",
        "restarts", "start", "state", "submit", "suspended", "timelimit", "timelimitraw", "totalcpu",
    }
)  # fmt: skip
"""Columns (in lower case) that Slurm or the administrator fills: no separator in them, nothing personal."""

NAMES = frozenset(
    {"account", "associd", "cluster", "gid", "group", "qos", "qosraw", "reservation", "reservationid", "uid", "user"}
)
"""Columns that say who; no separator in them either."""

NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "JobIDRaw or JobID": (("jobidraw",), ("jobid",)),
    "Submit": (("submit",),),
    "State": (("state",),),
    "ElapsedRaw, Elapsed, or Start and End": (("elapsedraw",), ("elapsed",), ("start", "end")),
    "AllocTRES, ReqTRES or AllocGRES": (("alloctres",), ("reqtres",), ("allocgres",)),
}
"""What a trace cannot do without: any one of the alternatives."""

WISHED: dict[str, tuple[tuple[str, ...], str]] = {
    "TimelimitRaw": (("timelimitraw", "timelimit"), "time limits are not known"),
    "ReqTRES": (("reqtres",), "the node counts and GPU types that jobs asked for are not known"),
    "NNodes": (("nnodes", "alloctres"), "the number of nodes of a job is not known"),
    "Eligible": (("eligible",), "a job that waited for another one, or for its begin time, counts from its submission"),
    "Partition": (("partition",), "every job may use any node"),
    "User": (("user",), "users are not known"),
    "Account": (("account",), "accounts are not known"),
    "JobName": ((NAME,), "applications are not known, so neither are sensitivity classes"),
}
"""Columns that may be missing: which ones would do, and what is lost without any of them."""


class SacctColumns(NamedTuple):
    """The header of an export."""

    names: tuple[str, ...]  # in lower case
    free: tuple[str, ...]  # of which users write the text
    closed: bool  # --parsable: every line ends with a separator

    def cut(self, text: str) -> list[str]:
        """The cells of one line, one per column. Raises Unusable when they cannot be separated."""
        cells = text.split(SEPARATOR)
        if self.closed:
            if cells[-1]:
                raise Unusable(f"does not end with {SEPARATOR} as the header does: {shown(text)}")
            cells.pop()
        extra = len(cells) - len(self.names)
        if not extra:
            return cells
        if extra < 0:
            raise Unusable(f"{len(cells)} columns, but the header has {len(self.names)}: {shown(text)}")
        if self.free != (NAME,):
            raise Unusable(
                f"{len(cells)} columns, but the header has {len(self.names)}, "
                f"and the {SEPARATOR} may stand in any of {', '.join(self.free) or 'none of them'}: {shown(text)}"
            )
        first = self.names.index(NAME)
        return [*cells[:first], SEPARATOR.join(cells[first : first + extra + 1]), *cells[first + extra + 1 :]]

    def missing(self) -> list[str]:
        """What is lost because a column of `WISHED` is not there, one line each."""
        return [
            f"column {wished} is missing: {loss}"
            for wished, (alternatives, loss) in WISHED.items()
            if not set(alternatives) & set(self.names)
        ]


def is_header(text: str) -> bool:
    """Whether a line looks like the header of an export: it has a job id and a separator."""
    return SEPARATOR in text and not {"jobid", "jobidraw"}.isdisjoint(_names(text))


def header(text: str) -> SacctColumns:
    """The columns that a header names. Raises UsageError, naming those that are needed and missing."""
    names = _names(text)
    closed = len(names) > 1 and not names[-1]
    if closed:
        names.pop()
    have = set(names)
    lacking = [label for label, ways in NEEDED.items() if not any(set(way) <= have for way in ways)]
    if lacking:
        raise UsageError(f"not a sacct export that can be used; {shown(text)} has no column {'; '.join(lacking)}")
    if len(have) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise UsageError(f"columns {', '.join(twice)} appear twice in the header; ask sacct for each once")
    free = tuple(name for name in names if name not in PLAIN and name not in NAMES)
    return SacctColumns(tuple(names), free, closed)


def _names(text: str) -> list[str]:
    return [name.strip().lower() for name in text.split(SEPARATOR)]
