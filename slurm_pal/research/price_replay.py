# SPDX-License-Identifier: MIT
"""What a long job costs on a market whose prices move: a log of prices, replayed for one job. Pure but for `read_log`.

The strategies are those of Narayanan et al. ("Analysis and exploitation of dynamic pricing in the public cloud for ML
training", DISPA 2020), each with one freedom more: the type of GPU, instances of several GPUs (their price is taken by
the GPU), other markets, and a new choice each day. `min-cost` chooses each day, too, but moves only where the saving is
more than twice what the move costs (decide/alternatives.py), as the tick does.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import DataError
from slurm_pal.decide.alternatives import MOVE_FACTOR, worth_moving

DAY_S = 86400.0
COLUMNS = ("market", "type", "gpus", "price", "unix_time")
FIXED, TYPE, SEVERAL, MARKETS, DAILY, MIN_COST = "fixed", "type", "multi-gpu", "markets", "daily", "min-cost"
STRATEGIES = {
    FIXED: "the cheapest instance with one GPU of the reference type, in the first market",
    TYPE: "the same of any type",
    SEVERAL: "also a GPU of an instance that has several",
    MARKETS: "also in other markets",
    DAILY: "chosen anew each day, moves are free",
    MIN_COST: f"chosen anew each day, moved where that saves more than {MOVE_FACTOR:g} times what it costs",
}
MOST_GPUS = 1024


class Instance(NamedTuple):
    """What is for sale."""

    market: str  # "aws/us-east-1c": what stands before the slash is the market, the rest a place in it
    type: str
    gpus: int

    @property
    def group(self) -> str:
        """The market without the place in it: data must leave it when a job goes to another one."""
        return self.market.partition("/")[0]


class PriceLog(NamedTuple):
    """Prices as they were: of each instance, times in order, and what an hour of all of it cost from then on."""

    times_s: Mapping[Instance, Sequence[float]]
    prices: Mapping[Instance, Sequence[float]]

    @property
    def first_s(self) -> float:
        """The first time of the log, Unix s."""
        return min(times[0] for times in self.times_s.values())

    @property
    def last_s(self) -> float:
        """The last one."""
        return max(times[-1] for times in self.times_s.values())

    def per_gpu(self, instance: Instance, at_s: float) -> float:
        """Money for an hour of one GPU, infinite before the instance was for sale."""
        place = bisect_right(self.times_s[instance], at_s) - 1
        return self.prices[instance][place] / instance.gpus if place >= 0 else math.inf


class Cost(NamedTuple):
    """One job by one strategy."""

    money: float
    moves: int
    hours: float


class ReplayTerms(NamedTuple):
    """What is replayed."""

    days: float  # of work, on one GPU of the reference type
    reference: str
    restart_s: float  # what a move takes
    egress: float  # money for leaving a market with the job's data


def read_log(path: str) -> PriceLog:
    """A CSV file with COLUMNS; price: an hour of the whole instance. Raises DataError, with the line that is wrong."""
    rows: dict[Instance, dict[float, float]] = {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header = tuple(name.strip() for name in next(reader, []))
            if header != COLUMNS:
                raise DataError(f"{path}: the header is {','.join(header)!r:.80}, not {','.join(COLUMNS)}")
            for cells in reader:
                if any(cells):
                    instance, at_s, price = _row(path, reader.line_num, cells)
                    rows.setdefault(instance, {})[at_s] = price
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from None
    if not rows:
        raise DataError(f"{path} has no prices")
    ordered = {instance: sorted(found.items()) for instance, found in rows.items()}
    return PriceLog(
        {instance: [at_s for at_s, _ in found] for instance, found in ordered.items()},
        {instance: [price for _, price in found] for instance, found in ordered.items()},
    )


def _row(path: str, number: int, cells: Sequence[str]) -> tuple[Instance, float, float]:
    try:
        market, kind, gpus, price, at_s = (cell.strip() for cell in cells)
        count, money, when_s = int(gpus), float(price), float(at_s)
        if not (market and kind and 0 < count <= MOST_GPUS and 0 < money < math.inf and abs(when_s) < 1e12):
            raise ValueError
    except ValueError:
        raise DataError(f"{path}: line {number}: {','.join(cells)!r:.80} is not {','.join(COLUMNS)}") from None
    return Instance(market, kind, count), when_s, money


class Replay:
    """One application's jobs on one log. `speed`: type -> steps/s of one GPU, for types that can run it."""

    def __init__(self, log: PriceLog, speed: Mapping[str, float], terms: ReplayTerms) -> None:
        """Raises DataError where the reference type is not for sale in the first market, or cannot run it."""
        self._log, self._speed, self._terms = log, speed, terms
        self._for_sale = [one for one in log.times_s if speed.get(one.type, 0.0) > 0]
        self._home = next(iter(log.times_s)).group
        if not self._allowed(FIXED):
            raise DataError(f"no instance with one GPU of type {terms.reference!r} is for sale in {self._home!r}")

    def _allowed(self, strategy: str) -> list[Instance]:
        return [
            one
            for one in self._for_sale
            if (strategy != FIXED or one.type == self._terms.reference)
            and (strategy not in (FIXED, TYPE) or one.gpus == 1)
            and (strategy in (MARKETS, DAILY, MIN_COST) or one.group == self._home)
        ]

    def _value(self, instance: Instance, at_s: float) -> float:
        """Money for an hour's work of one GPU of the reference type."""
        return self._log.per_gpu(instance, at_s) * self._speed[self._terms.reference] / self._speed[instance.type]

    def cheapest(self, strategy: str, at_s: float) -> Instance:
        """The instance that the strategy may take and on which work is cheapest now."""
        return min(self._allowed(strategy), key=lambda one: self._value(one, at_s))

    def cost(self, strategy: str, start_s: float) -> Cost:
        """What the job costs by the strategy; what the log does not reach costs as at its end."""
        terms = self._terms
        here, at_s, money, moves, hours = self.cheapest(strategy, start_s), start_s, 0.0, 0, 0.0
        left_s = terms.days * DAY_S  # of work, on the reference type
        while left_s > 1e-6:
            pace = self._speed[here.type] / self._speed[terms.reference]
            step_s = min(DAY_S, left_s / pace)
            money += step_s / 3600.0 * self._log.per_gpu(here, at_s)
            left_s -= step_s * pace
            at_s += step_s
            hours += step_s / 3600.0
            if left_s > 1e-6 and strategy in (DAILY, MIN_COST):
                there = self.cheapest(strategy, at_s)
                if there != here and (strategy == DAILY or self._pays(here, there, left_s, at_s)):
                    if strategy == MIN_COST:
                        egress = terms.egress if there.group != here.group else 0.0
                        money += terms.restart_s / 3600.0 * self._log.per_gpu(there, at_s) + egress
                        hours += terms.restart_s / 3600.0
                        at_s += terms.restart_s
                    here, moves = there, moves + 1
        return Cost(money, moves, hours)

    def _pays(self, here: Instance, there: Instance, left_s: float, at_s: float) -> bool:
        pace = self._speed[there.type] / self._speed[here.type]
        egress = self._terms.egress if there.group != here.group else 0.0
        left_there_s = left_s * self._speed[self._terms.reference] / self._speed[there.type]
        same_work = self._log.per_gpu(here, at_s) * pace
        return worth_moving(same_work, self._log.per_gpu(there, at_s), left_there_s, self._terms.restart_s, egress)


def starts_s(log: PriceLog, reference: str) -> list[float]:
    """The days on which jobs start, Unix s: each day of the log from which the reference type is for sale."""
    first_s = min((times[0] for one, times in log.times_s.items() if one.type == reference), default=math.inf)
    if not math.isfinite(first_s):
        raise DataError(f"the log has no instance of type {reference!r}")
    day_s = math.ceil(first_s / DAY_S) * DAY_S
    found = []
    while day_s <= log.last_s:
        found.append(day_s)
        day_s += DAY_S
    return found or [first_s]
