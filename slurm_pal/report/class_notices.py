# SPDX-License-Identifier: MIT
"""What the snapshot says about the classes of class A, in sentences: alarms first, then what is only worth knowing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from slurm_pal.report.table import counted, day
from slurm_pal.variability.notices import FEW, FLAT, KINDS, SHIFTED, Notice


class NoticeLine(NamedTuple):
    """One notice in words; `mend` says what to do about it, if there is anything."""

    alarm: bool
    text: str
    mend: str = ""


def lines(notices: Iterable[Mapping[str, Any]]) -> list[NoticeLine]:
    """The notices of a snapshot; those that this release does not know are left out."""
    known = [notice for table in notices if (notice := _notice(table)) is not None]
    return [_WORDS[n.state](n) for n in sorted(known, key=lambda n: [*_WORDS].index(n.state))]


def _notice(table: Mapping[str, Any]) -> Notice | None:
    try:
        found = Notice(*(kind(table[name]) for name, kind in _FIELDS.items()))
        found = found._replace(unseen=int(table.get("unseen", 0)))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    figures = (found.size, found.other, found.since_s)
    return found if found.state in _WORDS and all(map(math.isfinite, figures)) else None


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "state": str, "model": str, "benchmark": str, "gpus": int, "size": float, "other": float, "since_s": float,
}  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _flat(n: Notice) -> NoticeLine:
    text = (
        f"class A of model {n.model} is flat: all {counted(n.gpus, 'GPU')} are in one class, since they differ by only "
        f"{_percent(n.size)} where runs of one GPU differ by {_percent(n.other)} (standard deviations, {n.benchmark}); "
        "nothing is placed by class there"
    )
    return NoticeLine(
        True, text, f"pal report shows the spread: {n.benchmark} should run at the power limit, and repeat"
    )


def _shifted(n: Notice) -> NoticeLine:
    word, when = "slower" if n.size > 0 else "faster", day(min(max(n.since_s, 0.0), 1e11))
    text = (
        f"model {n.model}: {counted(n.gpus, 'GPU')} of {counted(int(n.other), 'node')} became "
        f"{_percent(abs(n.size))} {word} together ({n.benchmark}, sweep of {when}); scores leave that out"
    )
    if n.unseen:
        others = f"measure some of the {counted(n.unseen, 'GPU')} not measured since (pal-profile run)"
        theirs = f"if they have not changed, it is a matter of those {counted(int(n.other), 'node')}"
        return NoticeLine(True, text, f"{others}: {theirs}")
    return NoticeLine(True, text, "if nobody changed driver, firmware or cooling then, find out what did")


def _kinds(n: Notice) -> NoticeLine:
    text = (
        f"model {n.model} has two kinds of GPUs, perhaps of two board makers: {n.gpus:,} of {n.other:,.0f} are "
        f"{_percent(n.size)} slower; each is compared with its kind before it is called an outlier"
    )
    return NoticeLine(False, text)


def _few(n: Notice) -> NoticeLine:
    text = (
        f"model {n.model} has only {counted(n.gpus, 'GPU')}: its classes are uncertain ({n.other:.0f} in class A), "
        f"and the median that scores refer to is known to {_percent(n.size)} only"
    )
    return NoticeLine(False, text)


_WORDS: dict[str, Callable[[Notice], NoticeLine]] = {FLAT: _flat, SHIFTED: _shifted, KINDS: _kinds, FEW: _few}
