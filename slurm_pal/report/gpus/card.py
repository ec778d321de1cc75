# SPDX-License-Identifier: MIT
"""The site's GPUs on a card: a few numbers as JSON, and a piece of HTML for a portal of the site's own."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from slurm_pal.base.terminal import visible
from slurm_pal.report.html import rendered
from slurm_pal.report.inventory import NEVER_MEASURED, NOT_IN_SLURM, GpuRow

SCHEMA = "pal.card/1"
SENSITIVITY = "A"
"""Compute-bound work, which differs most between GPUs."""
SLOW = 1.1


def card(rows: Sequence[GpuRow], cluster: str, now_s: float, off: Collection[str] = ()) -> dict[str, Any]:
    """The body of pal.card/1, schema included. GPUs that Slurm no longer has do not count.

    `off` are nodes that start no jobs now (down, drained, asleep): their GPUs are not free. `in_use`, `free` and
    `off` (idle, but not free) are None where Slurm did not say so of every GPU.
    """
    known = [row for row in rows if NOT_IN_SLURM not in row.flags]
    scored = [row for row in known if SENSITIVITY in row.slowdown]
    slowest = max(scored, key=lambda row: row.slowdown[SENSITIVITY], default=None)
    ages = [row.age_s for row in known if row.age_s is not None]
    return {
        "schema": SCHEMA,
        "at_s": round(now_s),
        "cluster": cluster or None,
        **_counts(known, off),
        "failed": sum(row.state != "ok" for row in known),
        "never_measured": sum(NEVER_MEASURED in row.flags for row in known),
        "slow": sum(row.slowdown[SENSITIVITY] >= SLOW for row in scored),
        "oldest_s": round(max(ages)) if ages else None,
        "slowest": None if slowest is None else {
            "node": slowest.node, "index": slowest.gpu_index, "model": slowest.model,
            "slowdown": round(slowest.slowdown[SENSITIVITY], 4),
        },
        "classes": [
            {"model": model, "class": name, "slowdown_low": low, "slowdown_high": high, **_counts(group, off)}
            for (model, name), group in _groups(known).items()
            for low, high in [_range(group)]
        ],
    }  # fmt: skip


def _counts(rows: Sequence[GpuRow], off: Collection[str]) -> dict[str, int | None]:
    told = None not in [row.in_use for row in rows]
    idle = [row for row in rows if row.in_use is False]
    lost = sum(row.node in off or row.state != "ok" for row in idle)  # jobs are kept off a GPU that was seen to fail
    return {
        "gpus": len(rows),
        "in_use": len(rows) - len(idle) if told else None,
        "free": len(idle) - lost if told else None,
        "off": lost if told else None,
    }


def _groups(rows: Sequence[GpuRow]) -> dict[tuple[str, str], list[GpuRow]]:
    """By model and variability class, the fastest class first; GPUs without a class are the last of their model."""
    groups: dict[tuple[str, str], list[GpuRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.variability_class.get(SENSITIVITY, "?")), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: (item[0][0], *_order(item[0][1]))))


def _order(name: str) -> tuple[bool, int, str]:
    digits = name.removeprefix("v")
    return (False, int(digits), "") if digits.isdigit() else (True, 0, name)


def _range(rows: Sequence[GpuRow]) -> tuple[float | None, float | None]:
    values = [row.slowdown[SENSITIVITY] for row in rows if SENSITIVITY in row.slowdown]
    return (round(min(values), 4), round(max(values), 4)) if values else (None, None)


def html(body: dict[str, Any]) -> str:
    """The card as a piece of a page: no script, no style sheet, nothing fetched, all text escaped.

    Class names are those of Bootstrap, which portals such as Open OnDemand have; without it the card stays readable.
    """
    rows = [
        {
            "model": visible(one["model"] or "not measured"), "class": visible(one["class"]),
            "slowdown": _slowdown(one["slowdown_low"], one["slowdown_high"]), "gpus": one["gpus"],
            "free": "?" if one["free"] is None else one["free"],
        }
        for one in body["classes"]
    ]  # fmt: skip
    at = time.gmtime(body["at_s"])
    return rendered("slurm_pal.report.gpus", "card.html.j2", {
        "title": f"GPUs of {visible(body['cluster'])}" if body["cluster"] else "GPUs",
        "lines": _lines(body),
        "rows": rows,
        "stamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", at),
        "when": time.strftime("%Y-%m-%d %H:%M UTC", at),
    })  # fmt: skip


def _lines(body: dict[str, Any]) -> list[str]:
    if not body["gpus"]:
        return ["No GPU is known."]
    lines = ["Slurm does not answer: which GPUs are free is not known."]
    if body["free"] is not None:
        lost = f", {body['off']:,} cannot be used now" if body["off"] else ""
        lines = [f"{body['in_use']:,} of {body['gpus']:,} GPUs are in use, {body['free']:,} are free{lost}."]
    if body["failed"]:
        lines.append(f"{body['failed']:,} {_were(body['failed'])} seen to fail: jobs are kept off.")
    if body["slowest"]:
        worst = body["slowest"]
        lines.append(
            f"The slowest, {visible(worst['node'])}:{worst['index']}, takes {worst['slowdown']:.2f} times as long as "
            f"the median GPU of its model; {body['slow']:,} {_are(body['slow'])} at least 10 % slower."
        )
    else:
        lines.append("No speed has been measured yet.")
    return lines


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _slowdown(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "?"
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
