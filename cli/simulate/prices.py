# SPDX-License-Identifier: MIT
"""pal simulate --prices FILE --policy min-cost: what long jobs cost on a market whose prices move."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from slurm_pal.base.errors import DataError, Exit, UsageError
from slurm_pal.cli import common, tables
from slurm_pal.report import table
from slurm_pal.report.listing import Listing
from slurm_pal.research.price_replay import (
    FIXED,
    MIN_COST,
    STRATEGIES,
    Cost,
    PriceLog,
    Replay,
    ReplayTerms,
    read_log,
    starts_s,
)
from slurm_pal.simulate.known_throughputs import read_known
from slurm_pal.simulate.settings import ReplaySettings

DAYS = 4.0
HEADER = ("APPLICATION", f"{FIXED} $", *(f"x {name}" for name in STRATEGIES if name != FIXED), "MOVES")


def asks_for_prices(policies: tuple[str, ...]) -> bool:
    """Whether the study of prices is asked for."""
    return MIN_COST in {word.strip() for text in policies for word in text.split(",")}


def run_prices(options: Mapping[str, Any], command: str) -> Exit:
    """Replay and print; the exit code. Raises UsageError and DataError for what cannot be replayed."""
    if not options["prices"]:
        raise UsageError("--policy min-cost needs --prices FILE: a log of prices (docs/simulation.md)")
    if not options["throughputs"]:
        raise UsageError("--policy min-cost needs --throughputs FILE: steps/s by application and type of GPU")
    log = read_log(options["prices"])
    known = read_known(options["throughputs"], time.time())
    types = {one.type for one in log.times_s}
    speeds: dict[str, dict[str, float]] = {}
    for key, entry in known.items():
        if key.gpus == 1 and key.type in types and entry.steps_per_s > 0:
            speeds.setdefault(key.application, {})[key.type] = entry.steps_per_s
    reference = options["reference"] or next(iter(log.times_s)).type
    restart_s = ReplaySettings().move_cost_s if options["move_cost"] is None else options["move_cost"]
    terms = ReplayTerms(options["job_days"] or DAYS, reference, restart_s, options["egress"] or 0.0)
    found = _replayed(log, {name: speed for name, speed in speeds.items() if reference in speed}, terms)
    if not found:
        raise DataError(f"no application of {options['throughputs']} has a speed on type {reference!r} with one GPU")
    _show(found, log, terms, options, command)
    return Exit.OK


Costs = dict[str, dict[str, list[Cost]]]
"""Application -> strategy -> a cost for each start."""


def _replayed(log: PriceLog, speeds: Mapping[str, Mapping[str, float]], terms: ReplayTerms) -> Costs:
    starts = starts_s(log, terms.reference)
    found: Costs = {}
    for name, speed in sorted(speeds.items()):
        replay = Replay(log, speed, terms)
        found[name] = {strategy: [replay.cost(strategy, at_s) for at_s in starts] for strategy in STRATEGIES}
    return found


def _mean(costs: list[Cost]) -> float:
    return fmean(cost.money for cost in costs)


def _show(found: Costs, log: PriceLog, terms: ReplayTerms, options: Mapping[str, Any], command: str) -> None:
    form: tables.Form = options["form"]
    rows = [
        {"application": name, "strategy": strategy, "money": _mean(costs),
         "reduction": _mean(by[FIXED]) / _mean(costs), "moves": fmean(cost.moves for cost in costs),
         "hours": fmean(cost.hours for cost in costs)}
        for name, by in found.items() for strategy, costs in by.items()
    ]  # fmt: skip
    lines: list[list[str]] = []
    for name, by in found.items():
        fixed = _mean(by[FIXED])
        ratios = [f"{fixed / _mean(by[strategy]):.2f}" for strategy in STRATEGIES if strategy != FIXED]
        lines.append([name, f"{fixed:.2f}", *ratios, f"{fmean(cost.moves for cost in by[MIN_COST]):.1f}"])
    if form.parsable2 and not form.columns and not form.sort:
        common.say(*table.parsable(HEADER, lines, form.noheader))
        return
    starts = len(next(iter(found.values()))[FIXED])
    notes = (
        f"Jobs of {terms.days:g} days of work on one GPU of type {terms.reference}, started on each of {starts} days; "
        f"{len(log.times_s)} kinds of instances. x: how many times cheaper than {FIXED}, in the mean.",
        *(f"{name}: {summary}." for name, summary in STRATEGIES.items()),
        f"A move of {MIN_COST} takes {terms.restart_s:g} s, and {terms.egress:g} of money to another market. A market "
        "is no Slurm partition: a study, which only shows what a choice by price is worth.",
    )

    def text() -> None:
        common.say(*tables.lines(HEADER, lines, form.noheader))
        tables.say_notes(["", *notes] if not form.noheader else [])

    listing = Listing(("application", "strategy", "money", "reduction", "moves", "hours"), rows)
    tables.show(form, listing, "simulate-prices", lambda _: _body(found, terms, options, command), text=text)


def _body(found: Costs, terms: ReplayTerms, options: Mapping[str, Any], command: str) -> dict[str, Any]:
    told = {
        name: {
            strategy: {
                "money": _mean(costs), "money_min": min(cost.money for cost in costs),
                "money_max": max(cost.money for cost in costs), "reduction": _mean(by[FIXED]) / _mean(costs),
                "moves": fmean(cost.moves for cost in costs), "hours": fmean(cost.hours for cost in costs),
            }
            for strategy, costs in by.items()
        }
        for name, by in found.items()
    }  # fmt: skip
    return {"applications": told, **terms._asdict(), "prices": options["prices"], "command": command}
