# SPDX-License-Identifier: MIT
"""Kept ticks that were decided again: the verdict, the ticks that differ, one tick from what it saw to what it did."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, NamedTuple

from slurm_pal import __version__
from slurm_pal.base.config import KEYS, Config
from slurm_pal.base.errors import DataError
from slurm_pal.pending.retarget import WishAction
from slurm_pal.report import tick as report
from slurm_pal.report.table import counted
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import JOB_ACTIVE
from slurm_pal.store import snapshot as snapshots
from slurm_pal.tick.again import Again
from slurm_pal.tick.kept import KeptTick
from slurm_pal.tick.tick import TickResult

COLUMNS = (
    "number", "at_s", "release", "acted", "jobs", "wishes", "changes", "moves", "identical", "differences",
)  # fmt: skip
MOST_DIFFERENCES = 5
"""Differences of a tick that are shown; the others are counted."""
_UNCHANGED = (WishAction.KEEP, WishAction.NONE)


class TickRow(NamedTuple):
    """One kept tick, decided again. A tick that could not decide has no wishes and no moves."""

    number: int
    at_s: float
    release: str  # that kept it
    acted: bool
    jobs: int
    wishes: int
    changes: int  # wishes that change a list
    moves: int  # planned
    differences: tuple[str, ...]

    @property
    def identical(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "identical": self.identical, "differences": list(self.differences)}


def row(again: Again) -> TickRow:
    """The row of one tick. The decision itself may go."""
    kept, decided = again.kept, again.decided
    wishes = decided.wishes if decided else ()
    return TickRow(
        kept.head.number, kept.head.at_s, kept.head.release, bool(kept.tick.get("acted")),
        len(_overview(kept).jobs), len(wishes), sum(wish.action not in _UNCHANGED for wish in wishes),
        len(decided.plan.moves) if decided and decided.plan else 0, again.differences,
    )  # fmt: skip


def as_json(rows: list[TickRow]) -> dict[str, Any]:
    """The body of pal.ticks/1."""
    return {"identical": all(one.identical for one in rows), "total": totals(rows),
            "ticks": [one.to_json() for one in rows]}  # fmt: skip


def totals(rows: list[TickRow]) -> dict[str, int]:
    """Sums over all ticks."""
    return {
        "ticks": len(rows), "identical": sum(one.identical for one in rows), "wishes": sum(one.wishes for one in rows),
        "changes": sum(one.changes for one in rows), "moves": sum(one.moves for one in rows),
    }  # fmt: skip


def lines(rows: list[TickRow]) -> list[str]:
    """The verdict, then each tick that differs."""
    said = [verdict(rows)]
    others = sorted({one.release for one in rows} - {__version__})
    if others:
        said.append(
            f"Kept by slurm-pal {', '.join(others)}, decided again by {__version__}: changed rules differ, too."
        )
    for one in rows:
        if not one.identical:
            said += ["", f"tick {one.number} at {when(one.at_s)} differs:", *_shown(one.differences)]
    return said


def verdict(rows: list[TickRow]) -> str:
    """One sentence."""
    sums = totals(rows)
    what = f"{counted(sums['changes'], 'change')} of lists and {counted(sums['moves'], 'move')} in them"
    if sums["identical"] == sums["ticks"]:
        return f"identical: {counted(sums['ticks'], 'tick')} decided again, {what}"
    return f"not identical: {sums['identical']:,} of {counted(sums['ticks'], 'tick')} decided again as before; {what}"


def _shown(differences: tuple[str, ...]) -> list[str]:
    more = len(differences) - MOST_DIFFERENCES
    text = [f"  {one}" for one in differences[:MOST_DIFFERENCES]]
    return [*text, f"  ... and {more} more (--json has all)"] if more > 0 else text


def when(at_s: float) -> str:
    """A moment in the form that `--at` takes."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


# -- one tick ------------------------------------------------------------------------------


def one_as_json(again: Again) -> dict[str, Any]:
    """The body of pal.tick-shown/1."""
    plan = report.as_json(_result(again)) if again.decided else None
    return {"tick": row(again).to_json(), "saw": saw(again.kept), "decided": plan}


def one(again: Again) -> list[str]:
    """What one tick saw, what it decided, and whether it is decided so again."""
    kept, seen = again.kept, saw(again.kept)
    slow = "" if seen["epoch"] is None else f"scores of epoch {seen['epoch']}, published {when(seen['published_s'])}"
    jobs = ", ".join(f"{count:,} {state.lower()}" for state, count in seen["jobs"].items()) or "none"
    said = [
        f"tick {kept.head.number} at {when(kept.head.at_s)} by {seen['user']} ({seen['role']}), "
        f"slurm-pal {kept.head.release}",
        f"saw     {counted(seen['nodes'], 'node')}, {seen['gpus_free']:,} of {seen['gpus']:,} GPUs free; jobs: {jobs}",
        f"        {slow or 'no scores'}; {seen['interval_s']:.1f} s since the tick before",
        f"journal {counted(seen['leases'], 'lease')}, {counted(seen['open_moves'], 'move')} under way",
    ]
    if seen["settings"]:
        said.append(f"set     {', '.join(f'{name} = {value!r}' for name, value in seen['settings'].items())}")
    if kept.tick.get("trouble"):
        said += [f"trouble {line}" for line in kept.tick["trouble"]]
    if kept.failed[0]:
        said.append(f"failed  {kept.failed[0]}: {kept.failed[1]}")
    said.append("again   " + ("identical" if again.identical else "it differs:"))
    said += _shown(again.differences)
    return [*said, "", *report.lines(_result(again))] if again.decided is not None else said


def saw(kept: KeptTick) -> dict[str, Any]:
    """What a tick was decided from, in numbers; settings that are not the defaults by name."""
    overview, config, role = _overview(kept), kept.made.get("config"), kept.made.get("role")
    answers = {heard.name: heard.answer for heard in kept.heard}
    gpus, used = sum(node.n_gpus for node in overview.nodes), sum(node.gpus_used for node in overview.nodes)
    states = Counter(job.state for job in overview.jobs)
    scores = _scores(kept)
    return {
        "role": getattr(role, "name", "?"), "user": getattr(role, "user", "?"), "nodes": len(overview.nodes),
        "gpus": gpus, "gpus_free": gpus - used, "jobs": dict(states.most_common()),
        "active": sum(count for state, count in states.items() if state in JOB_ACTIVE),
        "epoch": scores and scores.epoch, "published_s": scores and scores.written_s,
        "interval_s": float(kept.given.get("interval_s", 0.0)),
        "leases": _size(answers.get("leases")), "open_moves": _size(answers.get("open_moves")),
        "settings": _own(config) if isinstance(config, Config) else {},
    }  # fmt: skip


def _size(answer: object) -> int:
    return len(answer) if isinstance(answer, list | dict | tuple) else 0


def _own(config: Config) -> dict[str, Any]:
    return {f"{s}.{n}": config[s, n] for s, names in KEYS.items() if s != "paths" for n, key in names.items()
            if config[s, n] != key.default}  # fmt: skip


def _scores(kept: KeptTick) -> snapshots.Snapshot | None:
    config = kept.made.get("config")
    raw = {one.path: one.raw for one in kept.reads if not one.trouble}
    if not isinstance(config, Config) or config.snapshot_path not in raw:
        return None
    try:
        return snapshots.read(config.snapshot_path, raw.__getitem__)
    except DataError:
        return None


def _overview(kept: KeptTick) -> Overview:
    found = kept.given.get("overview")
    return found if isinstance(found, Overview) else Overview((), (), (), {})


def _result(again: Again) -> TickResult:
    """The tick as it was, with what is decided now."""
    assert again.decided is not None
    told = again.kept.tick
    return TickResult(
        again.kept.head.at_s, bool(told.get("acted")), str(told.get("paused", "")), float(told.get("query_s", 0.0)),
        int(told.get("queries", 0)), int(told.get("orders", 0)), int(told.get("ingested", 0)), None, again.decided,
        int(told.get("moving", 0)), tuple(map(str, told.get("trouble", ()))),
    )  # fmt: skip
